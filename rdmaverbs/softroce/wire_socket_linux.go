// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a non-blocking socket. It is read by a Poller, or by a goroutine
// that waits in Go's poller. Go's poller wakes a goroutine within a few
// microseconds, because the thread that finds the event also runs the
// goroutine. A thread that is blocked in poll(2) needs some tens of
// microseconds.
type socket struct {
	fd   int // for system calls, while the owner knows that it is open
	name string
	file *os.File // nil unless it is in Go's poller
	raw  syscall.RawConn

	unwatch func()       // nil: no Poller reads it
	rewatch func() error // what watch did
	paused  atomic.Bool  // nothing is read
}

// newSocket makes a socket of fd. It closes fd if it fails.
func newSocket(fd int, name string) (*socket, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("softroce: %s: %w", name, err)
	}
	return &socket{fd: fd, name: name}, nil
}

// close closes the socket. whenReadable returns, and a Poller does not read it
// any more.
func (s *socket) close() {
	s.leavePoller()
	if s.file == nil {
		unix.Close(s.fd)
		return
	}
	s.file.Close()
}

// pollable puts the socket into Go's poller. It is called before whenReadable.
func (s *socket) pollable() (err error) {
	s.file = os.NewFile(uintptr(s.fd), s.name)
	if s.raw, err = s.file.SyscallConn(); err != nil {
		return fmt.Errorf("softroce: %s: %w", s.name, err)
	}
	return nil
}

// pollRounds is how often a round of a Poller reads one socket at most, so that
// the other sockets and the acknowledgements get their turn.
const pollRounds = 4

// watch makes p call take when the socket is readable, until the socket is
// closed.
func (s *socket) watch(p Poller, stop *atomic.Bool, take func() bool) (err error) {
	s.rewatch = func() (err error) {
		s.unwatch, err = p.WatchReadable(s.fd, func() {
			for i := 0; i < pollRounds && !stop.Load() && take(); i++ {
			}
		})
		if err != nil {
			return fmt.Errorf("softroce: watch a socket: %w", err)
		}
		return nil
	}
	return s.rewatch()
}

// pause ends the reading of the socket until resume. What arrives meanwhile stays in the
// socket.
func (s *socket) pause() {
	s.paused.Store(true)
	s.leavePoller()
}

// leavePoller ends the reading by a Poller.
func (s *socket) leavePoller() {
	if s.unwatch != nil {
		s.unwatch()
		s.unwatch = nil
	}
}

// resume reads the socket again after pause.
func (s *socket) resume() error {
	s.paused.Store(false)
	if s.rewatch == nil {
		return nil // its goroutine reads it when the next packet arrives
	}
	return s.rewatch()
}

// whenReadable calls take when the socket is readable, again as long as it
// returns true. It returns when the socket is closed or stop is set.
func (s *socket) whenReadable(stop *atomic.Bool, take func() bool) {
	drain := func(uintptr) (done bool) {
		for !stop.Load() {
			if s.paused.Load() || !take() {
				return false
			}
		}
		return true
	}
	for !stop.Load() {
		err := s.raw.Read(drain)
		if err == nil || errors.Is(err, os.ErrClosed) {
			return
		}
		// The poller reports an error of the socket, such as ENETDOWN when the
		// netdev goes down, if nothing else is to be reported. The error stays
		// until the next event, so read it away.
		_ = s.raw.Control(func(fd uintptr) {
			_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		})
		time.Sleep(time.Millisecond)
	}
}
