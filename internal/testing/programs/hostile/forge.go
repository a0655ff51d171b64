// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/wire"
)

// forged is the peer ID of the messages that forge writes. It shows on the wire that a
// message is not from the stack.
var forged = smc.PeerID{'F', 'O', 'R', 'G', 'E', 'D', '!', '!'}

// forgers is the number of attempts at the same time.
const forgers = 8

// attemptTime is how long an attempt waits for a connection.
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
	refused, wrote, nothing atomic.Int64
}

// forge connects to addr, n times, and writes forged messages to
// each socket as early and as often as it can. On every fourth socket, it also reads what
// the peer sends. Each attempt goes to the next port: after one, the stack may not
// announce SMC to a port any more.
func forge(addr netip.AddrPort, n int) error {
	all := messages()
	var t tally
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, forgers)
	for range forgers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := t.attempt(port(addr, int(i-1)), int(i), all[int(i)%len(all)], ways[int(i)/len(all)%len(ways)]); err != nil {
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
	fmt.Printf("attempts: %d, written: %d, refused: %d, nothing written: %d\n", n, t.wrote.Load(), t.refused.Load(), t.nothing.Load())
	return nil
}

// port returns the i-th address after addr.
func port(addr netip.AddrPort, i int) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr(), addr.Port()+uint16(i))
}

// attempt connects one socket. Attempts with even numbers write before the
// connection exists; the others wait for a time that grows with the number.
func (t *tally) attempt(addr netip.AddrPort, i int, msg []byte, way func(int, []byte) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	if i%16 == 7 { // as early as a program can ask for
		err = unix.Sendto(fd, msg, unix.MSG_FASTOPEN|unix.MSG_NOSIGNAL, to)
	} else {
		err = unix.Connect(fd, to)
	}
	if err != nil && err != unix.EINPROGRESS { //nolint:errorlint // of a system call
		t.refused.Add(1)
		return nil
	}
	if t.write(fd, i, msg, way) {
		t.wrote.Add(1)
	} else {
		t.nothing.Add(1)
	}
	if i%2 == 0 { // a reset
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	return nil
}

// write writes again and again, from before the connection exists until a moment later. It reports whether anything was
// written.
func (t *tally) write(fd, i int, msg []byte, way func(int, []byte) error) (wrote bool) {
	for end := time.Now().Add(attemptTime); ; {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.State == unix.BPF_TCP_CLOSE || time.Now().After(end) {
			return false
		}
		if info.State == unix.BPF_TCP_ESTABLISHED {
			break
		}
		_ = way(fd, msg)
	}
	if i%2 != 0 {
		time.Sleep(time.Duration(i%1000) * 2 * time.Microsecond)
	}
	if i%4 == 3 {
		_, _, _ = unix.Recvfrom(fd, make([]byte, 1+i%100), unix.MSG_DONTWAIT)
	}
	for range 3 {
		if way(fd, msg) == nil {
			wrote = true
		}
		time.Sleep(time.Millisecond)
	}
	return wrote
}

// forgeAccepted listens at as many ports, from that of addr on. It writes
// forged messages to each connection that it accepts. It ends
// with SIGTERM or SIGINT.
func forgeAccepted(addr netip.AddrPort, ports int) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	var accepts atomic.Int64
	for i := range ports {
		ln, err := lc.Listen(ctx, "tcp4", port(addr, i).String())
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go forgeOn(c.(*net.TCPConn), int(accepts.Add(1)))
			}
		}()
	}
	fmt.Println("listening")
	<-ctx.Done()
	return nil
}

// forgeOn is one accepted connection of forgeAccepted.
func forgeOn(c *net.TCPConn, i int) {
	f, err := c.File()
	_ = c.Close()
	if err != nil {
		fatal(err)
	}
	defer f.Close()
	all := messages()
	fd, msg, way := int(f.Fd()), all[i%len(all)], ways[i/len(all)%len(ways)]
	if i%5 == 3 {
		_ = unix.Shutdown(fd, unix.SHUT_RD)
	}
	for range 20 {
		_ = way(fd, msg)
		time.Sleep(time.Millisecond)
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
