// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// sharedUnix is a net.UnixConn of which others have descriptors. It is read and
// written by way of a Socket.
type sharedUnix struct{ *net.UnixConn }

// Close implements Conn.
func (u sharedUnix) Close() error { return bounded.CloseConn(u.UnixConn) }

// Unix takes over an end of a pair that others have descriptors of, too. No close
// of it waits.
func Unix(c *net.UnixConn) Conn { return sharedUnix{c} }

// File makes a Conn of a duplicate of the stream socket fd. The caller keeps fd open
// for longer, so that the close of the duplicate neither waits nor ends anything.
// Unlike package net it changes no option of the socket but O_NONBLOCK.
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

// TCP is the [Stream] of a TCP socket. It carries urgent bytes.
type TCP struct{ s *Socket }

// NewTCP wraps c, which has to close without waiting.
func NewTCP(c Conn) (*TCP, error) {
	s, err := NewSocket(c)
	if err != nil {
		return nil, err
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

// onlyWriter hides other methods from io.Copy.
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

// lingersZero reports whether the close of the socket must be a reset:
// SO_LINGER is set with a time of 0.
func (t *TCP) lingersZero() bool {
	zero := false
	_ = t.s.rc.Control(func(fd uintptr) {
		l, err := unix.GetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER)
		zero = err == nil && l.Onoff != 0 && l.Linger == 0
	})
	return zero
}

// dropLinger has Close send what is left, whatever SO_LINGER was.
func (t *TCP) dropLinger() {
	_ = t.s.rc.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	})
}

// unsent returns how many bytes the peer has not acknowledged, and how many it has.
func (t *TCP) unsent() (n int, acked uint64) {
	_ = t.s.rc.Control(func(fd uintptr) {
		n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			acked = info.Bytes_acked
			if info.State == unix.BPF_TCP_CLOSE { // it was reset
				n = 0
			}
		}
	})
	return n, acked
}

// Done implements Stream: nothing tells.
func (t *TCP) Done() <-chan struct{} { return nil }
