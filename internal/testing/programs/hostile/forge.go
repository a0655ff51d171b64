// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// forged is the peer ID of the messages that forge writes. It shows on the wire that a
// message is not from the stack.
var forged = smc.PeerID{'F', 'O', 'R', 'G', 'E', 'D', '!', '!'}

// forgers is the number of attempts at the same time.
const forgers = 8

// attemptTime is the time limit of an attempt.
const attemptTime = 20 * time.Second

// messages returns CLC messages of all kinds with a forged sender.
func messages() (out [][]byte) {
	end := wire.Endpoint{
		PeerID: forged, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 1}, QPN: 17, PSN: 1, MTU: smc.MTU(3),
		RMB: smc.RToken{RKey: 0x101, Addr: 0x1000}, RMBEIndex: 1, AlertToken: 0x01020304, RMBESize: 1,
	}
	for _, m := range []wire.CLC{
		wire.Proposal{PeerID: forged, GID: end.GID, MAC: end.MAC, IPv4: netip.MustParsePrefix("10.77.0.0/24"), Growth: make([]byte, wire.ProposalGrowthLinux)},
		wire.Accept{Endpoint: end},
		wire.Confirm{Endpoint: end},
		wire.Decline{PeerID: forged, Diagnosis: smc.DiagMem},
		wire.Decline{PeerID: forged, Diagnosis: smc.DiagSync, OutOfSync: true},
	} {
		b, err := m.AppendBinary(nil)
		if err != nil {
			fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// ways are the system calls that can send b.
var ways = []func(fd int, b []byte) error{
	func(fd int, b []byte) error { return send(fd, b, 0) },
	func(fd int, b []byte) error { return send(fd, b, unix.MSG_OOB) },
	func(fd int, b []byte) error { return send(fd, b[:1], 0) },
	func(fd int, b []byte) error { return send(fd, slices.Concat(b, b, b), unix.MSG_MORE) },
	spliceTo,
}

func send(fd int, b []byte, flags int) error {
	_, err := unix.SendmsgN(fd, b, nil, nil, flags|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

func spliceTo(fd int, b []byte) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if _, err := unix.Write(p[1], b); err != nil {
		return err
	}
	_, err := unix.Splice(p[0], nil, fd, nil, len(b), unix.SPLICE_F_NONBLOCK)
	return err
}

// tally counts attempts by their results.
type tally struct {
	tcp, wrote, failed, ready, late atomic.Int64
}

// forge makes the stack connect sockets to addr, n times, and writes forged messages to
// each as early and as often as it can. On every fourth socket, it also reads the
// messages of the peer. Each attempt goes to the next port: after one, the stack may not
// announce SMC to a port any more.
func forge(addr netip.AddrPort, n int) error {
	all := messages()
	var t tally
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, forgers)
	for range forgers {
		wg.Go(func() {
			ctx := context.Background()
			cl, err := broker.DialStack(ctx, "forge")
			if err != nil {
				errs <- err
				return
			}
			defer cl.Close()
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := t.attempt(cl, port(addr, int(i-1)), int(i), all[int(i)%len(all)], ways[int(i)/len(all)%len(ways)]); err != nil {
					errs <- fmt.Errorf("attempt %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	fmt.Printf("attempts: %d, not with SMC: %d, written: %d, failed: %d, over SMC: %d, without end: %d\n", n, t.tcp.Load(), t.wrote.Load(), t.failed.Load(), t.ready.Load(), t.late.Load())
	return nil
}

// port returns the i-th address after addr.
func port(addr netip.AddrPort, i int) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr(), addr.Port()+uint16(i))
}

// attempt makes the stack connect one socket. Attempts with even numbers write before the
// connection exists; the others wait for a time that grows with the number.
func (t *tally) attempt(cl *broker.Client, addr netip.AddrPort, i int, msg []byte, way func(int, []byte) error) error {
	fd, err := freshSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Nothing of the connection may remain.
	defer unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) //nolint:errcheck // the test sees
	c, err := cl.Connect(fd, broker.ConnectRequest{Remote: addr, Nonblock: true})
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { t.write(fd, i, msg, way, over) })
	defer writer.Wait()
	defer close(over)
	marked := false // the peer has announced SMC
	timer := time.NewTimer(attemptTime)
	defer timer.Stop()
	for {
		select {
		case ev, ok := <-c.Events():
			switch {
			case !ok:
				return cl.Err()
			case ev.Kind == broker.EventNotCandidate && marked: // it is to be made again, over TCP
				t.tcp.Add(1)
				return nil
			case ev.Kind == broker.EventNotCandidate, ev.Kind == broker.EventEstablished && !ev.PeerSMC:
				return fmt.Errorf("event %d: %s: the test shows nothing", ev.Kind, ev.Text)
			case ev.Kind == broker.EventEstablished:
				marked = true
				if err := c.Proceed(); err != nil {
					return err
				}
			case ev.Kind == broker.EventReady && ev.Mode == broker.ModeTCP:
				t.tcp.Add(1)
				return c.Cancel()
			case ev.Kind == broker.EventReady:
				t.ready.Add(1)
				// On the TCP socket below SMC, a write must not be sent either.
				for range 3 {
					_ = way(fd, msg)
				}
				return c.Cancel()
			case ev.Kind == broker.EventFailed:
				t.failed.Add(1)
				return nil
			case ev.Kind == broker.EventClosed:
				return nil
			}
		case <-timer.C:
			t.late.Add(1)
			return c.Cancel()
		}
	}
}

// write writes again and again until over is closed.
func (t *tally) write(fd, i int, msg []byte, way func(int, []byte) error, over <-chan struct{}) {
	var info *unix.TCPInfo
	for {
		select {
		case <-over:
			return
		default:
		}
		var err error
		if info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		if info.State == unix.BPF_TCP_ESTABLISHED {
			break
		}
	}
	if i%2 != 0 {
		time.Sleep(time.Duration(i%1000) * 2 * time.Microsecond)
	}
	if i%4 == 3 {
		_, _, _ = unix.Recvfrom(fd, make([]byte, 1+i%100), unix.MSG_DONTWAIT)
	}
	if way(fd, msg) == nil {
		t.wrote.Add(1)
	}
	for range 2 {
		select {
		case <-over:
			return
		case <-time.After(time.Millisecond):
			_ = way(fd, msg)
		}
	}
}

// forgeAccepted listens at as many ports, from that of addr on, with marked sockets. It writes
// forged messages to each connection that it accepts, before and after the stack gets it. It ends
// with SIGTERM or SIGINT.
func forgeAccepted(addr netip.AddrPort, ports int) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	cl, err := broker.DialStack(ctx, "forge")
	if err != nil {
		return err
	}
	defer cl.Close()
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	var accepts atomic.Int64
	for i := range ports {
		ln, err := lc.Listen(ctx, "tcp4", port(addr, i).String())
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = ln.Close() })
		lf, err := ln.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		err = cl.Listen(ctx, int(lf.Fd()))
		_ = lf.Close()
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go forgeOn(cl, c.(*net.TCPConn), int(accepts.Add(1)))
			}
		}()
	}
	fmt.Println("listening")
	<-ctx.Done()
	return nil
}

// forgeOn is one accepted connection of forgeAccepted.
func forgeOn(cl *broker.Client, c *net.TCPConn, i int) {
	f, err := c.File()
	_ = c.Close()
	if err != nil {
		fatal(err)
	}
	defer f.Close()
	all := messages()
	fd, msg, way := int(f.Fd()), all[i%len(all)], ways[i/len(all)%len(ways)]
	if i%3 == 0 {
		_ = way(fd, msg)
	}
	if i%5 == 4 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 1)
	}
	if i%5 == 3 {
		_ = unix.Shutdown(fd, unix.SHUT_RD)
	}
	if err := accepted(cl, fd, func() { _ = way(fd, msg) }); err != nil {
		fmt.Fprintln(os.Stderr, "hostile: accepted:", err)
	}
}

// accepted passes an accepted connection to the stack, and calls write until the stack
// has answered.
func accepted(cl *broker.Client, fd int, write func()) error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	c, err := cl.Accept(fd, netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		return err
	}
	timer := time.NewTimer(attemptTime)
	defer timer.Stop()
	for {
		select {
		case ev, ok := <-c.Events():
			switch {
			case !ok, ev.Kind == broker.EventClosed, ev.Kind == broker.EventNotCandidate:
				return nil
			case ev.Kind == broker.EventTaken:
				if err := c.Attach(p[1]); err != nil {
					return err
				}
			case ev.Kind == broker.EventBroken:
				_ = c.BrokenDone()
			case ev.Kind == broker.EventReady && ev.Mode == broker.ModeTCP:
				return c.Cancel()
			case ev.Kind == broker.EventReady:
				write()
				return c.Cancel()
			}
		case <-time.After(500 * time.Microsecond):
			write()
		case <-timer.C:
			return errors.Join(errors.New("no end"), c.Cancel())
		}
	}
}

// count parses the number of attempts.
func count(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		fatal(fmt.Errorf("%q attempts", s))
	}
	return n
}
