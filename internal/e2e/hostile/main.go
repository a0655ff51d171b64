// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/nl"
	"smcr/userstack/broker"
	"smcr/userstack/service"
)

const (
	// idle is how many connections of each kind are kept open.
	idle = 300
	// pause is what each attempt waits before the next one.
	pause = 100 * time.Millisecond
)

func main() {
	// The program ends in time even if the test that started it died.
	time.AfterFunc(5*time.Minute, func() { fatal(errors.New("five minutes are over")) })
	if len(os.Args) == 3 {
		addr, err := netip.ParseAddrPort(os.Args[2])
		switch {
		case err != nil:
			fatal(err)
		case os.Args[1] == "press":
			press(addr)
			return
		case os.Args[1] == "strange":
			fatal(strange(addr))
		case os.Args[1] == "inside":
			fatal(inside(addr))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: hostile press|strange ADDRESS:PORT")
	os.Exit(2)
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// press never returns.
func press(addr netip.AddrPort) {
	var first sync.WaitGroup
	again := func(n int, f func()) {
		for range n {
			first.Add(1)
			go func() {
				for done := first.Done; ; time.Sleep(pause) {
					f()
					if done != nil {
						done()
						done = nil
					}
				}
			}()
		}
	}
	hello, err := (&broker.Message{Type: broker.TypeHello, Size: broker.Version, Text: "hostile"}).AppendBinary(nil)
	if err != nil {
		fatal(err)
	}
	// Nothing is read, and what is open is kept until the stack closes it.
	var mu sync.Mutex
	held := map[string]int{}
	hold := func(socket string, first []byte) func() {
		return func() {
			c, err := dial(socket)
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				mu.Lock()
				held[socket]++
				mu.Unlock()
				if first != nil {
					_, _ = c.Write(first)
				}
				ended(c)
				mu.Lock()
				held[socket]--
				mu.Unlock()
			}()
		}
	}
	again(idle/10, hold(service.RunSocket, nil))
	again(idle/10, hold(service.RunSocket, hello[:len(hello)/2]))
	again(idle/10, hold(nl.UserAddress, nil))
	again(idle/10, hold(nl.UserAddress, []byte{1, 2, 3}))
	again(idle/10, hold(nl.UserAddress, questions()))
	again(4, func() { sessions(addr) })
	again(4, func() { crowded(hello) })
	first.Wait()
	fmt.Println("pressing")
	for {
		time.Sleep(time.Second)
		mu.Lock()
		fmt.Printf("holding %v\n", held)
		mu.Unlock()
	}
}

func dial(socket string) (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
}

// questions is a datagram of as many questions for all families as go in.
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

// ended waits until the other side closes, without reading.
func ended(c *net.UnixConn) {
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	for over := false; !over; time.Sleep(pause) {
		err := rc.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd)}}
			_, err := unix.Poll(p, 0)
			over = err == nil && p[0].Revents != 0
		})
		if err != nil {
			return
		}
	}
}

// sessions opens a session and as many connections in it as the stack takes.
func sessions(addr netip.AddrPort) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cl, err := broker.Dial(ctx, service.RunSocket, "hostile")
	if err != nil {
		return
	}
	defer cl.Close()
	for range idle {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			break
		}
		_ = cl.Listen(ctx, fd)
		_, err = cl.Connect(fd, broker.ConnectRequest{Remote: addr, Nonblock: true})
		_ = unix.Close(fd)
		if err != nil {
			return
		}
	}
	select {
	case <-cl.Done():
	case <-time.After(2 * time.Second):
	}
}

// crowded sends messages with more descriptors than belong to them, and with none.
func crowded(hello []byte) {
	c, err := dial(service.RunSocket)
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
	for i := range uint64(100) {
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
	b, err := (&broker.Message{Type: broker.TypeConnect, Conn: 1000}).AppendBinary(nil)
	if err != nil {
		fatal(err)
	}
	_, _ = c.Write(b)
	time.Sleep(pause)
}
