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
	if len(os.Args) == 4 && (os.Args[1] == "forge" || os.Args[1] == "forge-accepted") {
		addr, err := netip.ParseAddrPort(os.Args[2])
		switch {
		case err != nil:
			fatal(err)
		case os.Args[1] == "forge":
			fatal(forge(addr, count(os.Args[3])))
		default:
			fatal(forgeAccepted(addr, count(os.Args[3])))
		}
	}
	if len(os.Args) == 4 && os.Args[1] == "exhaust" {
		addr, err := netip.ParseAddrPort(os.Args[3])
		if err != nil {
			fatal(err)
		}
		fatal(exhaust(os.Args[2], addr))
	}
	if len(os.Args) == 7 && os.Args[1] == "sweep" {
		fatal(sweepArgs(os.Args[2:]))
	}
	if len(os.Args) == 8 && os.Args[1] == "replay" {
		fatal(replayArgs(os.Args[2:]))
	}
	if len(os.Args) == 5 && os.Args[1] == "stages" || len(os.Args) == 4 && os.Args[1] == "stages-accepted" {
		fatal(stagesArgs(os.Args[1:]))
	}
	if len(os.Args) == 2 && os.Args[1] == "squat" {
		fatal(squat())
	}
	fmt.Fprintln(os.Stderr, "usage: hostile exhaust KIND ADDRESS:PORT | hostile forge ADDRESS:PORT N | hostile forge-accepted ADDRESS:PORT PORTS | hostile stages ADDRESS:PORT PORTS N | hostile stages-accepted ADDRESS:PORT PORTS | hostile squat | hostile sweep FROM TO QPN PSN N | hostile replay FROM TO PORT QPN PSN N")
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
	kinds := map[string]func(){
		"control":     func() { again(idle, pause, hold(nil)) },
		"garbage":     func() { again(idle, pause, hold([]byte{1, 2, 3})) },
		"unread":      func() { again(idle, pause, hold(questions())) },
		"linger":      func() { again(idle, pause, lingering([]byte{1, 2, 3})) },
		"connections": func() { again(4, pause, func() { connections(addr) }) },
	}
	if start := kinds[kind]; start != nil {
		start()
	} else if kind == "requests" {
		var count atomic.Int64
		again(requesters, 0, func() { request(); count.Add(1) })
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
func hold(b []byte) func() {
	return func() {
		c, err := dial()
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

// dial connects to the stack.
func dial() (*net.UnixConn, error) {
	return place.Dial(context.Background(), place.Commands)
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
	c, err := dial()
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

// connections has many connections to an address, whose entries the stack keeps until they end.
func connections(addr netip.AddrPort) {
	var fds []int
	for range idle {
		fd, err := freshSocket()
		if err != nil {
			break
		}
		fds = append(fds, fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			fatal(err)
		}
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
	}
	time.Sleep(pause)
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func freshSocket() (int, error) {
	return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}
