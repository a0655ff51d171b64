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

// socket is a non-blocking socket whose reader is a Poller, or waits in Go's poller. That
// wakes a waiting goroutine within microseconds where a thread blocked in
// poll(2) needs tens: the thread that finds the event runs the goroutine.
type socket struct {
	fd   int // for system calls, while the owner knows that it is open
	name string
	file *os.File // nil unless it is in Go's poller
	raw  syscall.RawConn

	unwatch func() // nil: no Poller reads it
}

// newSocket takes over fd, also when it fails.
func newSocket(fd int, name string) (*socket, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("softroce: %s: %w", name, err)
	}
	return &socket{fd: fd, name: name}, nil
}

// close closes the socket; whenReadable returns, and a Poller reads it no more.
func (s *socket) close() {
	if s.unwatch != nil {
		s.unwatch()
	}
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

// pollRounds is how often a Poller's round takes from one socket at most: the
// others, and the acknowledgements, are to have their turn.
const pollRounds = 4

// watch has p call take when the socket is readable, until it is closed.
func (s *socket) watch(p Poller, stop *atomic.Bool, take func() bool) (err error) {
	s.unwatch, err = p.WatchReadable(s.fd, func() {
		for i := 0; i < pollRounds && !stop.Load() && take(); i++ {
		}
	})
	if err != nil {
		return fmt.Errorf("softroce: watch a socket: %w", err)
	}
	return nil
}

// whenReadable calls take, again as long as it returns true, else when the
// socket is readable, until it is closed or stop is set by whoever closes it.
func (s *socket) whenReadable(stop *atomic.Bool, take func() bool) {
	drain := func(uintptr) (done bool) {
		for !stop.Load() {
			if !take() {
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
		// The poller reports an error of the socket, such as ENETDOWN when
		// the netdev goes down, if nothing else is to be reported. It lasts
		// until the next event.
		_ = s.raw.Control(func(fd uintptr) {
			_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		})
		time.Sleep(time.Millisecond)
	}
}
