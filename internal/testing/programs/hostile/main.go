// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/userstack/broker"
)

const (
	// longest is how long the program runs.
	longest = 10 * time.Minute
	// idle is the number of connections of each kind that stay open.
	idle = 300
	// requesters is the number of goroutines that make no pause.
	requesters = 16
	// pause is the time between two attempts.
	pause = 100 * time.Millisecond
)

func main() {
	// The program ends even if the test that started it was killed.
	time.AfterFunc(longest, func() { fatal(fmt.Errorf("%v are over", longest)) })
	if len(os.Args) == 4 && (os.Args[1] == "forge" || os.Args[1] == "forge-own" || os.Args[1] == "forge-accepted") {
		addr, err := netip.ParseAddrPort(os.Args[2])
		switch {
		case err != nil:
			fatal(err)
		case os.Args[1] == "forge":
			fatal(forge(addr, count(os.Args[3])))
		case os.Args[1] == "forge-own":
			fatal(forgeOwn(addr, count(os.Args[3])))
		default:
			fatal(forgeAccepted(addr, count(os.Args[3])))
		}
	}
	if n := len(os.Args); n == 4 && (os.Args[1] == "exhaust" || os.Args[1] == "block") || n == 3 {
		addr, err := netip.ParseAddrPort(os.Args[n-1])
		switch {
		case err != nil:
			fatal(err)
		case n == 4 && os.Args[1] == "block":
			fatal(block(os.Args[2], addr))
		case n == 4:
			fatal(exhaust(os.Args[2], addr))
		case os.Args[1] == "foreign":
			fatal(foreign(addr))
		case os.Args[1] == "inside":
			fatal(inside(addr))
		}
	}
	if len(os.Args) == 5 && os.Args[1] == "prepared" {
		addr, err := netip.ParseAddrPort(os.Args[2])
		if err != nil {
			fatal(err)
		}
		fatal(prepared(addr, os.Args[3], os.Args[4]))
	}
	if len(os.Args) == 7 && os.Args[1] == "sweep" {
		fatal(sweepArgs(os.Args[2:]))
	}
	if len(os.Args) == 8 && os.Args[1] == "replay" {
		fatal(replayArgs(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[1] == "squat" {
		fatal(squat())
	}
	fmt.Fprintln(os.Stderr, "usage: hostile exhaust|block KIND ADDRESS:PORT | hostile forge|forge-own ADDRESS:PORT N | hostile forge-accepted ADDRESS:PORT PORTS | hostile foreign ADDRESS:PORT | hostile prepared ADDRESS:PORT NUMBER PID | hostile squat | hostile sweep FROM TO QPN PSN N | hostile replay FROM TO PORT QPN PSN N")
	os.Exit(2)
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// exhaust returns only after an error.
func exhaust(kind string, addr netip.AddrPort) error {
	hello, err := (&broker.Message{Type: broker.TypeHello, Size: broker.Version, Text: "hostile"}).AppendBinary(nil)
	if err != nil {
		return err
	}
	kinds := map[string]func(){
		"idle":           func() { again(idle, pause, hold(place.Launchers, nil)) },
		"hello":          func() { again(idle, pause, hold(place.Launchers, hello)) },
		"half":           func() { again(idle, pause, hold(place.Launchers, hello[:len(hello)/2])) },
		"control":        func() { again(idle, pause, hold(place.Commands, nil)) },
		"garbage":        func() { again(idle, pause, hold(place.Commands, []byte{1, 2, 3})) },
		"unread":         func() { again(idle, pause, hold(place.Commands, questions())) },
		"sessions":       func() { again(4, pause, func() { sessions(addr) }) },
		"crowded":        func() { again(4, pause, func() { crowded(hello) }) },
		"linger":         func() { again(idle, pause, lingering(place.Launchers, hello)) },
		"linger-control": func() { again(idle, pause, lingering(place.Commands, []byte{1, 2, 3})) },
	}
	fast := map[string]func(){
		"requests": request,
		"hellos":   func() { greet(hello) },
	}
	if start := kinds[kind]; start != nil {
		start()
	} else if f := fast[kind]; f != nil {
		var count atomic.Int64
		again(requesters, 0, func() { f(); count.Add(1) })
		go again(1, time.Second, func() { fmt.Println("times", count.Load()) })
	} else if kind == "all" {
		for _, start := range kinds {
			start()
		}
	} else {
		return fmt.Errorf("no kind %q", kind)
	}
	fmt.Println("exhausting")
	select {}
}

// again runs f in n goroutines without end, with a pause after each time. It returns when
// each has run f once.
func again(n int, pause time.Duration, f func()) {
	var first sync.WaitGroup
	for range n {
		first.Add(1)
		go func() {
			f()
			first.Done()
			for {
				time.Sleep(pause)
				f()
			}
		}()
	}
	first.Wait()
}

// hold opens a connection, sends b if it is not empty, and waits until the stack closes
// the connection.
func hold(socket string, b []byte) func() {
	return func() {
		c, err := dial(socket)
		if err != nil {
			return
		}
		if b != nil {
			_, _ = c.Write(b)
		}
		go func() {
			defer c.Close()
			ended(c)
		}()
	}
}

func dial(socket string) (*net.UnixConn, error) {
	return place.Dial(context.Background(), socket)
}

// questions returns a datagram with as many requests for all families as fit in.
func questions() (b []byte) {
	const request, dump, controller, getFamily = 0x1, 0x300, 0x10, 3
	for range 3000 {
		b = binary.NativeEndian.AppendUint32(b, 20)
		b = binary.NativeEndian.AppendUint16(b, controller)
		b = binary.NativeEndian.AppendUint16(b, request|dump)
		b = append(b, make([]byte, 8)...) // sequence, port
		b = append(b, getFamily, 1, 0, 0)
	}
	return b
}

// request sends requests to the control socket, and reads the answers for as long as they
// come.
func request() {
	c, err := dial(place.Commands)
	if err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	defer c.Close()
	if _, err := c.Write(questions()); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	for b := make([]byte, 64<<10); ; {
		if _, err := c.Read(b); err != nil {
			return
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	}
}

// greet opens a session and closes it.
func greet(hello []byte) {
	c, err := dial(place.Launchers)
	if err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	_, _ = c.Write(hello)
	_ = c.Close()
}

// ended waits, without reading, until the other side closes.
func ended(c *net.UnixConn) {
	rc, err := c.SyscallConn()
	for over := err != nil; !over; {
		time.Sleep(pause)
		err := rc.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd)}}
			_, err := unix.Poll(p, 0)
			over = err == nil && p[0].Revents != 0
		})
		over = over || err != nil
	}
}

// sessions opens a session and as many connections in it as the stack accepts. It prints
// the result of the first one that is refused.
func sessions(addr netip.AddrPort) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cl, err := broker.DialStack(ctx, "hostile")
	if err != nil {
		return
	}
	defer cl.Close()
	said := false
	for range idle {
		fd, err := freshSocket()
		if err != nil {
			break
		}
		_ = cl.Listen(ctx, fd)
		conn, err := cl.Connect(fd, broker.ConnectRequest{Remote: addr, Nonblock: true})
		_ = unix.Close(fd)
		if err != nil {
			return
		}
		select {
		case ev := <-conn.Events():
			if !said {
				fmt.Printf("a connection: kind %d: %s\n", ev.Kind, ev.Text)
			}
			said = true
		case <-time.After(time.Millisecond):
		}
	}
}

// crowded sends messages with more descriptors than they need, and with none.
func crowded(hello []byte) {
	c, err := dial(place.Launchers)
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := c.Write(hello); err != nil {
		return
	}
	var fds []int
	for range 20 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			break
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	for i := range uint64(20) {
		for _, t := range []broker.Type{broker.TypeConnect, broker.TypeAccept, broker.TypeListen} {
			b, err := (&broker.Message{Type: t, Conn: i + 1, Seq: uint32(i)}).AppendBinary(nil)
			if err != nil {
				fatal(err)
			}
			if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
				return
			}
		}
	}
	// The session must still exist.
	b, err := (&broker.Message{Type: broker.TypeGetOption, Seq: 1000, Size: 4}).AppendBinary(nil)
	if err != nil {
		fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	for buf := make([]byte, broker.MaxMessage); ; {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if m, err := broker.ParseMessage(buf[:n]); err == nil && m.Type == broker.TypeResult && m.Seq == 1000 {
			fmt.Println("the session goes on")
			break
		}
	}
	if b, err = (&broker.Message{Type: broker.TypeConnect, Conn: 1000}).AppendBinary(nil); err != nil {
		fatal(err)
	}
	_, _ = c.Write(b)
	time.Sleep(pause)
}
