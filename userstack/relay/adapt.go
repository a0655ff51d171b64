// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// sharedUnix is a net.UnixConn of which other processes have descriptors. It must be read
// and written through a Socket.
type sharedUnix struct{ *net.UnixConn }

// Close implements Conn.
func (u sharedUnix) Close() error { return bounded.CloseConn(u.UnixConn) }

// Unix takes over one end of a unix socketpair of which other processes may have
// descriptors. Close of the result does not wait.
func Unix(c *net.UnixConn) Conn { return sharedUnix{c} }

// File returns a Conn of a duplicate of the stream socket fd. The caller must close fd
// after the Conn: then the close of the duplicate neither waits nor ends the connection.
// File sets O_NONBLOCK and, unlike package net, changes no option of the socket. The error
// wraps a syscall.Errno.
func File(fd int) (Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(dup), "socket"), nil
}

// TCP is the [Stream] of a TCP socket. It moves urgent bytes as urgent.
type TCP struct{ s *Socket }

// NewTCP wraps the TCP socket c. Close of c must not wait. Errors: see [NewSocket]. It sets
// SO_RCVLOWAT of c to 1: a program may have set more, which is for the program's own reads, and
// no poll would report less than that.
func NewTCP(c Conn) (*TCP, error) {
	s, err := NewSocket(c)
	if err != nil {
		return nil, err
	}
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1) })
	}
	return &TCP{s}, nil
}

// ReadFrom implements Stream.
func (t *TCP) ReadFrom(r io.Reader) (int64, error) {
	from, ok := r.(*Socket)
	if !ok {
		return io.Copy(onlyWriter{t.s}, r)
	}
	return 0, Copy(t.s, from)
}

// WriteTo implements Stream.
func (t *TCP) WriteTo(w io.Writer) (int64, error) {
	to, ok := w.(*Socket)
	if !ok {
		return io.Copy(w, t.s)
	}
	return 0, Copy(to, t.s)
}

// onlyWriter hides the other methods of a writer from io.Copy.
type onlyWriter struct{ io.Writer }

// CloseWrite implements Stream.
func (t *TCP) CloseWrite() error { return t.s.CloseWrite() }

// Close implements Stream.
func (t *TCP) Close() error { return t.s.Close() }

// Abort implements Stream.
func (t *TCP) Abort() error {
	_ = t.s.rc.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
	return t.s.Close()
}

// lingersZero reports whether SO_LINGER is set with a time of 0, so that a close resets
// the connection.
func (t *TCP) lingersZero() bool {
	zero := false
	_ = t.s.rc.Control(func(fd uintptr) {
		l, err := unix.GetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER)
		zero = err == nil && l.Onoff != 0 && l.Linger == 0
	})
	return zero
}

// dropLinger clears SO_LINGER, so that Close sends the remaining data.
func (t *TCP) dropLinger() {
	_ = t.s.rc.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	})
}

// unsent returns how many written bytes the peer has not acknowledged (n), and how many
// bytes it has acknowledged since the connection began (acked).
func (t *TCP) unsent() (n int, acked uint64) {
	_ = t.s.rc.Control(func(fd uintptr) {
		n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			acked = info.Bytes_acked
			if info.State == unix.BPF_TCP_CLOSE { // the connection was reset
				n = 0
			}
		}
	})
	return n, acked
}

// Done implements Stream. It returns nil, because nothing reports the end of a TCP
// connection.
func (t *TCP) Done() <-chan struct{} { return nil }
