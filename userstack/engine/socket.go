// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
	"smcr/userstack/internal/rounds"
)

// Socket is a non-blocking TCP socket that a loop watches. It is not in Go's poller,
// which would be woken for each packet too. SyscallConn works like that of a
// *net.TCPConn.
type Socket struct {
	loop *Loop
	w    *Watch
	sim  rounds.Stream // replaces fd in a simulation; otherwise nil
	stop func()        // ends the watch of sim
	gone func()        // gives fd back, or nil: it is closed

	mu       sync.Mutex
	fd       int
	changed  sync.Cond // on mu; signals changes of the fields below
	in, out  uint64    // counts of the events for reading and for writing
	waiting  int       // calls of RawConn that wait
	refs     int       // calls that use fd
	closed   bool
	deadline time.Time // for reading: zero, or a time that has passed
	hook     func(readable, writable, plain bool)
	fault    func() // called after a panic in hook; may be nil
	room     bool   // epoll must report once that there is room for writing
}

// The events of a socket. EPOLLOUT is watched only while somebody waits for room: it would
// come with each acknowledgement.
const (
	always  = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET&0xffffffff
	forRoom = always | unix.EPOLLOUT
)

// NewSocket makes a Socket of fd, which must be non-blocking. Close closes fd. After an
// error, fd is still the caller's to close. Errors: see [Loop.Watch].
func (l *Loop) NewSocket(fd int) (*Socket, error) { return l.NewLent(fd, nil, nil) }

// NewLent is NewSocket for a descriptor that stays open: gone is called when the Socket does not use it any more. hook is the
// first function of Hook; it is called for all events.
func (l *Loop) NewLent(fd int, hook func(readable, writable, plain bool), gone func()) (*Socket, error) {
	s := &Socket{loop: l, fd: fd, hook: hook, gone: gone}
	s.changed.L = &s.mu
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	s.w, err = l.Watch(fd, always, s.event)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewStream makes a Socket of a simulated stream, which Close closes. Its descriptor is -1:
// it must be read and written by the methods of Socket.
func (l *Loop) NewStream(sim rounds.Stream) *Socket {
	s := &Socket{loop: l, fd: -1, sim: sim}
	s.changed.L = &s.mu
	s.stop = sim.Watch(always, s.event)
	return s
}

// Loop returns the loop that watches the socket.
func (s *Socket) Loop() *Loop { return s.loop }

// Hook makes the loop call f for each event of the socket: it may be readable, or there may
// be room for writing. A hang-up is reported as both. If plain is true, there was data to
// read, and no urgent byte, end of stream or error. Room is reported after AwaitRoom, and
// while a writer waits. A nil f ends the calls, but a call may still be running.
func (s *Socket) Hook(f func(readable, writable, plain bool)) {
	s.mu.Lock()
	s.hook = f
	s.mu.Unlock()
}

// OnFault makes the loop call f after a panic in the function of Hook. The socket is not
// watched any more then. A nil f ends this.
func (s *Socket) OnFault(f func()) {
	s.mu.Lock()
	s.fault = f
	s.mu.Unlock()
}

// AwaitRoom asks for one event when there is room for writing. The event comes at once if
// there is room already.
func (s *Socket) AwaitRoom() {
	s.mu.Lock()
	s.awaitRoom()
	s.mu.Unlock()
}

// awaitRoom is AwaitRoom with mu held.
func (s *Socket) awaitRoom() {
	if !s.room {
		s.room = true
		s.change(forRoom)
	}
}

// change replaces the events that are watched. mu is held.
func (s *Socket) change(events uint32) {
	switch {
	case s.sim != nil:
		s.sim.Change(events)
	case s.fd >= 0:
		s.w.change(s.fd, events)
	}
}

func (s *Socket) event(events uint32) {
	readable := events&^uint32(unix.EPOLLOUT) != 0
	writable := events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0
	s.mu.Lock()
	if readable {
		s.in++
	}
	if writable {
		s.out++
		if s.room {
			s.room = false
			s.change(always)
		}
	}
	hook := s.hook
	if s.waiting > 0 {
		s.changed.Broadcast()
	}
	s.mu.Unlock()
	if hook == nil {
		return
	}
	returned := false
	defer func() {
		if !returned { // a panic: see Loop.SetGuard
			s.broken()
		}
	}()
	hook(readable, writable, events&^unix.EPOLLOUT == unix.EPOLLIN)
	returned = true
}

// broken tells the owner that the socket is not watched any more.
func (s *Socket) broken() {
	s.mu.Lock()
	fault := s.fault
	s.hook, s.fault = nil, nil
	s.mu.Unlock()
	if fault != nil {
		fault()
	}
}

// acquire keeps the descriptor open until release.
func (s *Socket) acquire() (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return -1, net.ErrClosed
	}
	s.refs++
	return s.fd, nil
}

func (s *Socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs--; s.refs == 0 && s.closed {
		s.free()
	}
}

// free closes the descriptor. mu is held.
func (s *Socket) free() {
	if s.sim != nil {
		s.stop()
		_ = s.sim.Close()
		return
	}
	if s.fd >= 0 {
		s.w.Stop(s.fd)
		if s.gone != nil {
			s.gone()
		} else {
			_ = atonce.Close(s.fd)
		}
		s.fd = -1
	}
}

// Close ends all waiting calls with net.ErrClosed. The descriptor is closed when the last
// call that uses it has returned. A second Close returns net.ErrClosed.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.closed = true
	s.hook, s.fault = nil, nil
	s.changed.Broadcast()
	if s.refs == 0 {
		s.free()
	}
	return nil
}

// CloseWrite shuts down writing. Errors: net.ErrClosed, or one that wraps a syscall.Errno.
func (s *Socket) CloseWrite() error {
	fd, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	if s.sim != nil {
		return s.sim.CloseWrite()
	}
	return os.NewSyscallError("shutdown", atonce.Shutdown(fd, unix.SHUT_WR))
}

// SetReadDeadline ends current and later calls that wait to read with
// os.ErrDeadlineExceeded if t is in the past. Any other t clears the deadline: deadlines in
// the future are not supported. The error is net.ErrClosed after Close.
func (s *Socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if !t.IsZero() && t.After(time.Now()) {
		t = time.Time{}
	}
	s.deadline = t
	s.changed.Broadcast()
	return nil
}

// SyscallConn implements syscall.Conn. It never fails.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return rawConn{s}, nil }

// Control calls f with the descriptor, which stays open until f returns. The error is
// net.ErrClosed after Close.
func (s *Socket) Control(f func(fd uintptr)) error { return rawConn{s}.Control(f) }

type rawConn struct{ s *Socket }

// Control implements syscall.RawConn.
func (r rawConn) Control(f func(fd uintptr)) error {
	fd, err := r.s.acquire()
	if err != nil {
		return err
	}
	defer r.s.release()
	f(uintptr(fd))
	return nil
}

// Read implements syscall.RawConn.
func (r rawConn) Read(f func(fd uintptr) (done bool)) error {
	return r.s.retry(f, &r.s.in, true)
}

// Write implements syscall.RawConn.
func (r rawConn) Write(f func(fd uintptr) (done bool)) error {
	return r.s.retry(f, &r.s.out, false)
}

// retry calls f, and again after each event that count counts, until f returns true.
func (s *Socket) retry(f func(fd uintptr) bool, count *uint64, read bool) error {
	fd, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	for {
		s.mu.Lock()
		seen := *count
		closed, late := s.closed, read && !s.deadline.IsZero()
		s.mu.Unlock()
		switch {
		case closed:
			return net.ErrClosed
		case late:
			return os.ErrDeadlineExceeded
		case f(uintptr(fd)):
			return nil
		}
		s.mu.Lock()
		s.waiting++
		if !read {
			s.awaitRoom()
		}
		for *count == seen && !s.closed && (!read || s.deadline.IsZero()) {
			s.changed.Wait()
		}
		s.waiting--
		s.mu.Unlock()
	}
}
