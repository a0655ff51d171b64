// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// A stream is a socket of the stack. The methods of a nil stream do nothing.
type stream struct {
	end end

	mu     sync.Mutex
	fd     int // -1: closed; 0: not made
	conn   *net.TCPConn
	lent   int    // the descriptor that others have, or 0
	revoke func() // has them give it back; may be nil
	owed   bool   // it is to be closed then
}

// connect makes the socket. The error matches net.ErrClosed after close.
func (s *stream) connect(ns *namespace, t Tuple) error {
	fd, err := ns.connectAs(t, s.end)
	if err != nil {
		return fmt.Errorf("divert: make a socket for %v: %w", t, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 { // or nobody would close it
		atonce.Close(fd)
		return fmt.Errorf("divert: %w", net.ErrClosed)
	}
	s.fd = fd
	return nil
}

// lend lends the descriptor to others, until giveBack is called: a close has to wait for that. revoke, if not nil, is called then.
func (s *stream) lend(revoke func()) (fd int, giveBack func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd <= 0 || s.lent != 0 {
		return -1, nil, fmt.Errorf("divert: %w", net.ErrClosed)
	}
	s.lent, s.revoke = s.fd, revoke
	return s.fd, s.giveBack, nil
}

func (s *stream) giveBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owed {
		atonce.Close(s.lent)
	}
	s.lent, s.revoke, s.owed = 0, nil, false
}

// dup returns another descriptor of the socket.
func (s *stream) dup() (fd int, err error) {
	err = fmt.Errorf("divert: %w", net.ErrClosed)
	s.control(func(of int) {
		fd, err = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0)
		err = os.NewSyscallError("fcntl", err)
	})
	return fd, err
}

// tcp returns the socket as a connection of package net, which has a descriptor of its own.
func (s *stream) tcp() (*net.TCPConn, error) {
	s.mu.Lock()
	known := s.conn
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	fd, err := s.dup()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("divert: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = c.(*net.TCPConn)
	if s.fd < 0 {
		_ = s.conn.Close()
	}
	return s.conn, nil
}

// close closes the socket, which resets the connection unless finish was called, as soon as those have given it back to whom it
// is lent.
func (s *stream) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	revoke := s.revoke
	switch {
	case s.fd <= 0:
	case s.lent != 0:
		s.owed = true
	default:
		atonce.Close(s.fd)
	}
	s.fd = -1
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.mu.Unlock()
	if revoke != nil {
		revoke()
	}
}

// finish ends the connection in order from now on.
func (s *stream) finish() {
	s.control(func(fd int) {
		_ = atonce.SetLinger(fd, false)
		_ = atonce.Shutdown(fd, unix.SHUT_WR)
	})
}

const (
	// lastWords is how long a reset may wait for what was written before it to be sent, and heardWords for that to be acknowledged.
	lastWords  = time.Second
	heardWords = 2 * time.Millisecond
)

// drain waits until the kernel has sent what was written, as far as the other end takes it, so that a reset is behind it.
// Without a stack on the way it would be: what had arrived before a reset is read before it. To close the socket at once
// would drop all that the congestion window, ten packets at first, has not let go.
//
// Then it waits a moment for the acknowledgement. Before that, a reset by another processor may overtake what is on the
// way, and a reset that does not have the next sequence number resets nothing (RFC 5961, section 3).
func (s *stream) drain() {
	await(lastWords, s.sending)
	await(heardWords, func() bool {
		_, flying := s.flying()
		return flying
	})
}

// await waits until something is over, for a time at most. It asks often, because it mostly is at once.
func await(most time.Duration, goesOn func() bool) {
	const first, last = 20 * time.Microsecond, 5 * time.Millisecond
	began := time.Now()
	for wait := first; goesOn() && time.Since(began) < most; wait = min(2*wait, last) {
		time.Sleep(wait)
	}
}

// sending reports whether something was written that is not sent yet, and will be soon. What the window of the other end
// has no room for is dropped with a reset, as TCP does.
func (s *stream) sending() (is bool) {
	s.info(func(i *unix.TCPInfo) { is = i.Notsent_bytes > 0 && (i.Unacked > 0 || i.Snd_wnd >= i.Snd_mss) })
	return is
}

// flying reports whether the other end has not acknowledged something that was sent. next is the sequence number behind it.
func (s *stream) flying() (next uint32, is bool) {
	s.info(func(i *unix.TCPInfo) { next, is = s.end.snd+uint32(i.Bytes_sent-i.Bytes_retrans), i.Unacked > 0 })
	return next, is
}

// info calls f with what the kernel says of the connection, if there is one.
func (s *stream) info(f func(*unix.TCPInfo)) {
	s.control(func(fd int) {
		var i unix.TCPInfo
		if err := tcpInfo(fd, &i); err == nil && i.State != unix.BPF_TCP_CLOSE {
			f(&i)
		}
	})
}

// over reports whether the kernel has nothing more to do for the connection.
func (s *stream) over() bool {
	done := true
	s.info(func(*unix.TCPInfo) { done = false })
	return done
}

// failed reports whether the connection has ended by an error that nobody has seen, such as that of too many repetitions.
func (s *stream) failed() (failed bool) {
	s.control(func(fd int) {
		code, err := atonce.GetInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		failed = err == nil && code != 0
	})
	return failed
}

// heard reports whether the other end has sent something, or the kernel has nothing more to do for the connection.
func (s *stream) heard() bool {
	heard := true
	s.info(func(i *unix.TCPInfo) { heard = i.Segs_in > 0 })
	return heard
}

// ask has the kernel ask the other end for the connection soon, or not any more.
func (s *stream) ask(on bool) {
	s.control(func(fd int) {
		set := setter{fd: fd}
		if !on {
			set.int(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
			return
		}
		set.int(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle)
		set.int(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepIdle)
		set.int(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount)
		set.int(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	})
}

// control calls f with a descriptor, unless the socket is closed.
func (s *stream) control(f func(fd int)) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd > 0 {
		f(s.fd)
	}
}
