// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/rounds"
)

// Socket is a non-blocking stream socket that the loop watches in place of Go's
// poller, which would be woken for each packet too. Its SyscallConn works as
// that of a *net.UnixConn.
type Socket struct {
	loop *Loop
	w    *Watch
	sim  rounds.Stream // in place of a descriptor; nil outside of a simulation
	stop func()        // ends the watch of sim

	mu       sync.Mutex
	fd       int
	changed  sync.Cond // on mu: what follows has changed
	in, out  uint64    // counts of the events for reading and for writing
	waiting  int       // calls of RawConn that wait
	refs     int       // calls that use fd
	closed   bool
	deadline time.Time // for reading; only times in the past are used
	hook     func(readable, writable, plain bool)
	room     bool // epoll is to tell of room for writing, once
}

// The events of a socket. EPOLLOUT is asked for only while somebody waits for
// room: a unix socket would tell of it each time the other end reads.
const (
	always  = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET&0xffffffff
	forRoom = always | unix.EPOLLOUT
)

// NewSocket takes over fd, a non-blocking socket, unless it fails.
func (l *Loop) NewSocket(fd int) (*Socket, error) {
	s := &Socket{loop: l, fd: fd}
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

// NewStream makes a Socket of a stream that is none of the kernel's, and takes it
// over. Its descriptor is -1: only the methods of Socket read and write.
func (l *Loop) NewStream(sim rounds.Stream) *Socket {
	s := &Socket{loop: l, fd: -1, sim: sim}
	s.changed.L = &s.mu
	s.stop = sim.Watch(always, s.event)
	return s
}

// Loop returns the loop that watches the socket.
func (s *Socket) Loop() *Loop { return s.loop }

// Hook has f called in the loop with each event of the socket: that it may be
// readable, or may have room, now. A hang-up is both. plain tells that data
// could be read when the loop asked, and no urgent byte, end or error was there.
// Room is told after AwaitRoom, or while a writer waits. Nil ends that; a call may
// be under way.
func (s *Socket) Hook(f func(readable, writable, plain bool)) {
	s.mu.Lock()
	s.hook = f
	s.mu.Unlock()
}

// AwaitRoom has one event tell when there is room for writing, also if there is
// some already.
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

// change has other events told. mu is held.
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
	if hook != nil {
		hook(readable, writable, events&^unix.EPOLLOUT == unix.EPOLLIN)
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
		bounded.CloseAside(s.fd, nil) // in the loop it must not wait for what lies in the queue
		s.fd = -1
	}
}

// Close ends all calls that wait, and closes the descriptor when the last call
// that uses it has returned.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.closed = true
	s.hook = nil
	s.changed.Broadcast()
	if s.refs == 0 {
		s.free()
	}
	return nil
}

// CloseWrite shuts down writing.
func (s *Socket) CloseWrite() error {
	fd, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	if s.sim != nil {
		return s.sim.CloseWrite()
	}
	return os.NewSyscallError("shutdown", unix.Shutdown(fd, unix.SHUT_WR))
}

// SetReadDeadline ends the calls that wait to read, now and from now on, if t is
// in the past. Other times are not supported and mean none.
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

// SyscallConn returns the socket for system calls of the caller's own.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return rawConn{s}, nil }

// Control calls f with the descriptor, which stays open meanwhile.
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

// retry calls f until it reports that it is done, again after each event that
// count counts.
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
