// SPDX-License-Identifier: Apache-2.0

package service

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// sharedTCP is a TCP socket of which a program has descriptors too. A *net.TCPConn
// relies on O_NONBLOCK, which the program can clear: each of its reads and writes would
// then block a thread. Those of a sharedTCP wait in Go's poller, and its close does not
// wait for SO_LINGER.
//
// It has the methods that a rendezvous needs (inside.TCPConn). It has no other methods
// of net.TCPConn, because they would rely on O_NONBLOCK.
type sharedTCP struct {
	c     *net.TCPConn
	raw   syscall.RawConn
	reset atomic.Bool // Close resets the connection
}

func newSharedTCP(c *net.TCPConn) (*sharedTCP, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &sharedTCP{c: c, raw: raw}, nil
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
		return bounded.ResetConn(t.c)
	}
	return bounded.CloseConn(t.c)
}

// Abort closes the connection with a reset for the peer.
func (t *sharedTCP) Abort() error {
	_ = t.SetLinger(0)
	return t.Close()
}

// LocalAddr implements net.Conn.
func (t *sharedTCP) LocalAddr() net.Addr { return t.c.LocalAddr() }

// RemoteAddr implements net.Conn.
func (t *sharedTCP) RemoteAddr() net.Addr { return t.c.RemoteAddr() }

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
