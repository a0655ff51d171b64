// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A copy of a listening socket keeps its port in use when the program closes the socket. So the
// launcher has copies only for the moment of a call, and those for which the kernel would have
// a reference too, because a thread waits in accept(): see listener.wait. A program whose call
// was interrupted may close the socket and bind another one to the port before the launcher
// has noticed the interruption. So bind() and listen() first wait for the copies of that time
// (settle), and the program never sees one. Other hosts, and programs without the launcher, may
// see that the port is in use for the moment.

// settleTime limits the wait of a bind() or listen() for copies of listening sockets. Looks can
// be delayed by programs without limit.
const settleTime = 500 * time.Millisecond

// copies counts the copies of listening sockets that the launcher has.
type copies struct {
	n    atomic.Int32 // len(open)
	mu   sync.Mutex
	next uint64
	open map[uint64]chan struct{} // closed when the copy is

	held atomic.Int32 // listeners with a copy for threads that wait
}

// begin counts a copy that is about to be made, until end is called.
func (x *copies) begin() (end func()) {
	over := make(chan struct{})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = make(map[uint64]chan struct{})
	}
	x.next++
	id := x.next
	x.open[id] = over
	x.n.Add(1)
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.open[id] == over { // end may be called twice
			delete(x.open, id)
			x.n.Add(-1)
			close(over)
		}
	}
}

// any reports whether there is a copy.
func (x *copies) any() bool { return x.n.Load() > 0 || x.held.Load() > 0 }

// wait waits until the copies of now are closed, for settleTime at most.
func (x *copies) wait() {
	x.mu.Lock()
	open := make([]chan struct{}, 0, len(x.open))
	for _, over := range x.open {
		open = append(open, over)
	}
	x.mu.Unlock()
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	for _, over := range open {
		select {
		case <-over:
		case <-timer.C:
			return
		}
	}
}

// settle returns when the launcher has no copy of a listening socket any more that the program
// may have closed by now.
func (s *supervisor) settle() {
	if !s.copies.any() {
		return
	}
	s.settleHeld()
	s.copies.wait()
}

// settleHeld closes the copies for threads that do not wait any more.
func (s *supervisor) settleHeld() {
	if s.copies.held.Load() == 0 {
		return
	}
	for _, l := range s.sockets.allListeners() {
		l.review()
	}
}

// bind lets the kernel do a bind() when no copy is in its way.
func (s *supervisor) bind(n *notif) {
	if !s.copies.any() {
		s.cont(n)
		return
	}
	s.begin(n, func() {
		s.settle()
		s.cont(n)
	})
}

// A socketCopy is a copy of a listening socket, which close closes. It may be closed twice.
type socketCopy struct {
	fd  int
	end func()
}

func (c *socketCopy) close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
	c.end()
}

// listening makes a copy of the listening socket at the descriptor of call n.
func (s *supervisor) listening(n *notif, inode uint64) (*socketCopy, error) {
	c := &socketCopy{fd: -1, end: s.copies.begin()}
	fd, err := s.looks.socket(n, n.tid(), n.fdArg(), inode, 0)
	if err != nil {
		c.end()
		return nil, err
	}
	c.fd = fd
	return c, nil
}
