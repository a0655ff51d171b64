// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/bounded"
)

// sharedTCP is a TCP socket of which a program has descriptors too. A *net.TCPConn
// relies on O_NONBLOCK, which the program can clear: each of its reads and writes would
// then block a thread. Those of a sharedTCP wait in Go's poller, and its close does not
// wait for SO_LINGER. Package net also changes options of a socket, which belong to the
// program, and asks for its addresses in a way that stops all goroutines: see
// bounded.Sockname. So the socket is a file here.
//
// It has the methods that a rendezvous needs (inside.TCPConn). It has no other methods
// of net.TCPConn, because they would rely on O_NONBLOCK.
//
// A program can make the kernel hold the lock of the socket, so calls on it are bounded like
// those on the descriptor of the program.
type sharedTCP struct {
	c     *os.File
	raw   syscall.RawConn
	reset atomic.Bool // Close resets the connection

	local, remote net.Addr
	user          uint32 // who has passed the socket
}

// newSharedTCP makes a sharedTCP of fd, a duplicate of sock. It closes fd or takes it over. The
// socket does not block any more.
func newSharedTCP(fd int, sock *broker.Descriptor) (_ *sharedTCP, err error) {
	t := &sharedTCP{user: sock.User()}
	if err = sock.Bounded(func() (err error) {
		if t.local, err = tcpAddr(bounded.Sockname(fd)); err == nil {
			t.remote, err = tcpAddr(bounded.Peername(fd))
		}
		return err
	}); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if errors.Is(err, unix.EAFNOSUPPORT) {
		err = fmt.Errorf("%w: %w", errSocket, err)
	}
	if err != nil {
		_ = bounded.Close(fd)
		return nil, fmt.Errorf("service: take a program's socket: %w", err)
	}
	t.c = os.NewFile(uintptr(fd), "socket")
	// The program may have cleared O_NONBLOCK meanwhile.
	if err := t.c.SetDeadline(time.Time{}); err != nil {
		_ = t.c.Close()
		return nil, fmt.Errorf("service: take a program's socket: %w", err)
	}
	raw, err := t.c.SyscallConn()
	if err != nil {
		_ = t.c.Close()
		return nil, err
	}
	t.raw = boundedRaw{raw, sock}
	return t, nil
}

// tcpAddr makes the address of package net.
func tcpAddr(sa unix.Sockaddr, err error) (net.Addr, error) {
	ap, err := socketAddr(sa, err)
	if err != nil {
		return nil, err
	}
	a := net.TCPAddrFromAddrPort(ap)
	if sa6, ok := sa.(*unix.SockaddrInet6); ok && sa6.ZoneId != 0 {
		a.Zone = strconv.Itoa(int(sa6.ZoneId))
		if dev, err := net.InterfaceByIndex(int(sa6.ZoneId)); err == nil {
			a.Zone = dev.Name
		}
	}
	return a, nil
}

// boundedRaw is a RawConn whose functions run like those of Descriptor.Bounded. They do not
// count while they wait in Go's poller.
type boundedRaw struct {
	syscall.RawConn
	sock *broker.Descriptor
}

// Control implements syscall.RawConn.
func (r boundedRaw) Control(f func(fd uintptr)) error {
	return r.sock.Bounded(func() error { return r.RawConn.Control(f) })
}

// Read implements syscall.RawConn.
func (r boundedRaw) Read(f func(fd uintptr) bool) error { return r.until(r.RawConn.Read, f) }

// Write implements syscall.RawConn.
func (r boundedRaw) Write(f func(fd uintptr) bool) error { return r.until(r.RawConn.Write, f) }

func (r boundedRaw) until(wait func(func(fd uintptr) bool) error, f func(fd uintptr) bool) error {
	var refused error
	err := wait(func(fd uintptr) (done bool) {
		refused = r.sock.Bounded(func() error {
			done = f(fd)
			return nil
		})
		return done || refused != nil
	})
	return cmp.Or(refused, err)
}

// Read implements net.Conn.
func (t *sharedTCP) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	rerr := t.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, os.NewSyscallError("recvfrom", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (t *sharedTCP) Write(b []byte) (n int, err error) {
	werr := t.raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			var m int
			m, err = unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			switch err {
			case nil:
				n += m
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
		return true
	})
	if werr != nil {
		return n, werr
	}
	return n, os.NewSyscallError("sendmsg", err)
}

// Close implements net.Conn.
func (t *sharedTCP) Close() error {
	if t.reset.Load() {
		return bounded.ResetConn(t.c, t.user)
	}
	return bounded.CloseConn(t.c)
}

// Abort closes the connection with a reset for the peer.
func (t *sharedTCP) Abort() error {
	_ = t.SetLinger(0)
	return t.Close()
}

// LocalAddr implements net.Conn.
func (t *sharedTCP) LocalAddr() net.Addr { return t.local }

// RemoteAddr implements net.Conn.
func (t *sharedTCP) RemoteAddr() net.Addr { return t.remote }

// SetDeadline implements net.Conn.
func (t *sharedTCP) SetDeadline(at time.Time) error { return t.c.SetDeadline(at) }

// SetReadDeadline implements net.Conn.
func (t *sharedTCP) SetReadDeadline(at time.Time) error { return t.c.SetReadDeadline(at) }

// SetWriteDeadline implements net.Conn.
func (t *sharedTCP) SetWriteDeadline(at time.Time) error { return t.c.SetWriteDeadline(at) }

// SetLinger with 0 makes Close reset the connection. Close sets the option, because
// the call that sets it waits for the socket's lock. Other values are not used.
func (t *sharedTCP) SetLinger(sec int) error {
	t.reset.Store(sec == 0)
	return nil
}

// SyscallConn implements syscall.Conn.
func (t *sharedTCP) SyscallConn() (syscall.RawConn, error) { return t.raw, nil }
