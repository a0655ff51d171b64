// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// preparedTime is how long the stack may take for one connection.
	preparedTime = 30 * time.Second
	// interferences is how often a socket is disturbed, and disturbing the time in between.
	interferences = 2000
	disturbing    = 50 * time.Microsecond
)

// A preparation makes the stack's handshake on the user's own socket go wrong.
type preparation struct {
	name   string
	before func(sock, stack int) error // before the stack has it
	during func(sock int)              // again and again, while the stack uses it
}

func option(level, name, value int) func(sock, stack int) error {
	return func(sock, _ int) error { return unix.SetsockoptInt(sock, level, name, value) }
}

func sockBytes(level, name int, b []byte) func(sock, stack int) error {
	return func(sock, _ int) error { return unix.SetsockoptString(sock, level, name, string(b)) }
}

var preparations = []preparation{
	{name: "small segments", before: option(unix.IPPROTO_TCP, unix.TCP_MAXSEG, 88)},
	{name: "no room to receive", before: option(unix.SOL_SOCKET, unix.SO_RCVBUF, 1)},
	{name: "no room to send", before: option(unix.SOL_SOCKET, unix.SO_SNDBUF, 1)},
	{name: "a filter that drops all", before: dropAll},
	{name: "short times", before: func(sock, _ int) error {
		tv := unix.Timeval{Usec: 1}
		if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
	}},
	{name: "a short user timeout", before: option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1)},
	{name: "a long linger", before: func(sock, _ int) error {
		return unix.SetsockoptLinger(sock, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})
	}},
	{name: "a signal for the stack", before: killStack},
	{name: "a peek offset", before: option(unix.SOL_SOCKET, unix.SO_PEEK_OFF, 1)},
	{name: "a low-water mark", before: option(unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1<<20)},
	{name: "an IP option", before: sockBytes(unix.IPPROTO_IP, unix.IP_OPTIONS, []byte{7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0})},
	{name: "one hop", before: option(unix.IPPROTO_IP, unix.IP_TTL, 1)},
	{name: "an algorithm without progress", before: option(unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, 1)},
	{name: "cork", before: option(unix.IPPROTO_TCP, unix.TCP_CORK, 1)},
	{name: "flags", during: func(sock int) { _ = unix.SetNonblock(sock, false) }},
	{name: "a thief", during: func(sock int) {
		var b [4096]byte
		_, _, _ = unix.Recvfrom(sock, b[:], unix.MSG_DONTWAIT)
	}},
	{name: "a writer", during: func(sock int) {
		_ = unix.Sendto(sock, []byte("\xe2\xd4\xc3\xd9garbage"), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}},
	{name: "urgent bytes", during: func(sock int) {
		_ = unix.Sendto(sock, []byte("!"), unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	}},
	{name: "shutdown for reading", during: func(sock int) { _ = unix.Shutdown(sock, unix.SHUT_RD) }},
	{name: "shutdown for writing", during: func(sock int) { _ = unix.Shutdown(sock, unix.SHUT_WR) }},
	{name: "disconnected", during: func(sock int) {
		var none unix.RawSockaddr
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(sock), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	}},
	{name: "TLS in the kernel", during: func(sock int) { _ = unix.SetsockoptString(sock, unix.IPPROTO_TCP, unix.TCP_ULP, "tls") }},
}

// dropAll attaches a filter that lets no packet in.
func dropAll(sock, _ int) error {
	none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	return unix.SetsockoptSockFprog(sock, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none[0]})
}

// killStack asks for SIGKILL to the stack whenever there is data.
func killStack(sock, stack int) error {
	if _, err := unix.FcntlInt(uintptr(sock), unix.F_SETOWN, stack); err != nil {
		return nil //nolint:nilerr // the kernel refuses it already
	}
	if _, err := unix.FcntlInt(uintptr(sock), unix.F_SETSIG, int(unix.SIGKILL)); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(sock), unix.F_SETFL, unix.O_ASYNC)
	return err
}

// prepared makes the stack connect a socket of the preparation with a number, and prints the name
// and the outcome.
func prepared(addr netip.AddrPort, number, pid string) error {
	i, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if i >= len(preparations) {
		fmt.Println("no more")
		return nil
	}
	stack, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*preparedTime)
	defer cancel()
	cl, err := broker.DialStack(ctx, "hostile")
	if err != nil {
		return err
	}
	defer cl.Close()
	out, err := preparations[i].try(ctx, cl, addr, stack)
	if err != nil {
		return fmt.Errorf("%s: %w", preparations[i].name, err)
	}
	fmt.Printf("%s: %s\n", preparations[i].name, out)
	return nil
}

func (p *preparation) try(ctx context.Context, cl *broker.Client, addr netip.AddrPort, stack int) (string, error) {
	sock, err := freshSocket()
	if err != nil {
		return "", err
	}
	defer unix.Close(sock)
	if p.before != nil {
		if err := p.before(sock, stack); err != nil {
			return "the kernel refuses: " + err.Error(), nil
		}
	}
	c, err := cl.Connect(sock, broker.ConnectRequest{Remote: addr})
	if err != nil {
		return "", err
	}
	defer c.Cancel() //nolint:errcheck // it may be over
	if p.during != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			for range interferences {
				select {
				case <-over:
					return
				default:
				}
				p.during(sock)
				time.Sleep(disturbing)
			}
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, preparedTime)
	defer cancel()
	for {
		select {
		case ev, ok := <-c.Events():
			switch {
			case !ok:
				return "closed", nil
			case ev.Kind == broker.EventEstablished && ev.PeerSMC:
				if err := c.Proceed(); err != nil {
					return "", err
				}
			default:
				return outcome(ev), nil
			}
		case <-ctx.Done():
			return "no answer", nil
		}
	}
}

// outcome describes the last event of a connection.
func outcome(ev broker.Event) string {
	switch ev.Kind {
	case broker.EventReady:
		return "ready"
	case broker.EventEstablished:
		return "TCP: " + ev.Text
	case broker.EventNotCandidate:
		return "not SMC: " + ev.Text
	case broker.EventFailed:
		return "failed: " + ev.Errno.Error()
	}
	return fmt.Sprintf("event %d: %s", ev.Kind, ev.Text)
}
