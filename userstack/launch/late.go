// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A server may accept late, or never. Its TCP clients do not notice: the kernel
// makes their connections. An SMC client waits for the answer to its CLC PROPOSAL
// and gives up after some seconds. So connections that have waited for lateDelay
// are accepted early: the launcher takes them from the queue and has the service
// begin with them, and keeps them for the accept() that is to come. A placeholder
// in the queue keeps the listening socket readable meanwhile.
//
// A server that accepts at once is not looked at: an epoll instance of its own
// watches each listening socket without keeping it open, and says once that a
// connection waits. From then on the queue is looked at now and then until it
// is empty.

const (
	// lateDelay is how long a connection waits in the queue before the launcher
	// accepts it.
	lateDelay = 50 * time.Millisecond
	// lateMax is the longest pause between two looks at a queue with which
	// nothing happens.
	lateMax = time.Second
	// lateRetry is the pause after a placeholder could not be made.
	lateRetry = 10 * time.Second
	// lateIdle is how many looks are spent on a socket that does not listen.
	lateIdle = 60
	// sweepFirst is how many listening sockets there are before it is asked
	// which of them are closed.
	sweepFirst = 64
)

// early is what a listener has to do with connections that wait. mu of the
// listener guards it.
type early struct {
	watch   int // epoll instance with the listening socket, or -1
	sub     *subscription
	kick    chan struct{}
	running bool // a goroutine looks at the queue
	closed  bool
	place   *placeholder // in the queue, if spare is not empty
	taken   uint64       // connections taken from the queue so far
	mark    uint64       // what taken reaches when all that waited at the last look are gone
	idle    int          // looks in a row at a socket that does not listen
	before  time.Time    // no placeholder can be made until then
	shared  bool         // a process accepts from the queue that the launcher does not see
	tid, fd int          // of the last call of the program on the socket
}

// arm begins to watch the listening socket fd, of call n.
func (l *listener) arm(n *notif, fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.early
	e.tid, e.fd = n.tid(), n.fdArg()
	e.kick = make(chan struct{}, 1)
	e.watch = -1
	if !l.s.early {
		return
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		// It stays there when fd is closed, until all have closed the socket.
		if err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
			e.sub, err = l.s.poll.watch(ep, unix.EPOLLIN|unix.EPOLLONESHOT, func(uint32) { l.s.wg.Go(l.begin) })
		}
		if err != nil {
			_ = unix.Close(ep)
		}
	}
	if err != nil {
		l.s.log.Warn("cannot watch a listening socket: its clients wait for accept", "err", err)
		return
	}
	e.watch = ep
}

// rearm watches again a socket that had not listened for long.
func (l *listener) rearm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.early.running && !l.early.closed {
		l.early.idle = 0
		l.early.sub.again()
	}
}

// gone tells whether all have closed the listening socket. l.mu is held.
func (l *listener) gone() bool {
	if l.early.watch < 0 {
		return false
	}
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(l.early.watch))
	return err == nil && !bytes.Contains(b, []byte("tfd:"))
}

// sweep forgets the listening sockets that are closed, now and then.
func (s *supervisor) sweep() {
	s.mu.Lock()
	if len(s.listeners) < max(s.sweepAt, sweepFirst) {
		s.mu.Unlock()
		return
	}
	all := make([]*listener, 0, len(s.listeners))
	for _, l := range s.listeners {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.forgetIfGone()
	}
	s.mu.Lock()
	s.sweepAt = 2 * len(s.listeners)
	s.mu.Unlock()
}

// forgetIfGone forgets a listener that all have closed, and tells whether it did.
func (l *listener) forgetIfGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.early.closed && l.gone() {
		l.end()
	}
	return l.early.closed
}

// end forgets a listener. l.mu is held.
func (l *listener) end() {
	l.abandon()
	l.unwatch()
	l.s.mu.Lock()
	if l.s.listeners[l.inode] == l {
		delete(l.s.listeners, l.inode)
		l.s.nLists.Store(int64(len(l.s.listeners)))
	}
	l.s.mu.Unlock()
}

// unwatch releases what watches the socket. l.mu is held.
func (l *listener) unwatch() {
	e := &l.early
	e.closed = true
	if e.watch >= 0 {
		e.sub.stop()
		_ = unix.Close(e.watch)
		e.watch = -1
	}
	l.dropPlace()
}

// dropPlace ends the placeholder, if there is one. l.mu is held.
func (l *listener) dropPlace() {
	if p := l.early.place; p != nil {
		l.early.place = nil
		l.s.places.drop(p)
	}
}

// seen notes where the listening socket is: in call n.
func (l *listener) seen(n *notif) { l.early.tid, l.early.fd = n.tid(), n.fdArg() }

// begin looks at the queue, in which a connection waits, until it is empty.
func (l *listener) begin() {
	l.mu.Lock()
	if l.early.running || l.early.closed {
		l.mu.Unlock()
		return
	}
	l.early.running = true
	l.early.mark = l.early.taken + 1
	l.early.idle = 0
	l.mu.Unlock()
	l.look(lateDelay)
}

// look looks at the queue after a pause, and again, until nothing is to be done.
func (l *listener) look(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.early.kick:
		case <-l.s.ctx.Done():
			return
		}
		more, news := l.lookOnce()
		if !more {
			return
		}
		if pause = min(2*pause, lateMax); news {
			pause = lateDelay
		}
		timer.Reset(pause)
	}
}

// wake has the queue looked at now.
func (l *listener) wake() {
	select {
	case l.early.kick <- struct{}{}:
	default:
	}
}

// lookOnce tells whether there is more to look at, and whether something happened
// since the last time.
func (l *listener) lookOnce() (more, news bool) {
	l.mu.Lock()
	if !l.early.closed && l.gone() {
		l.end()
	}
	if l.early.closed {
		l.mu.Unlock()
		return false, false
	}
	if len(l.spare) == 0 && !readable(l.early.watch) {
		// No copy of the socket is needed to know that; it would keep the port in
		// use if the program closed the socket now.
		defer l.mu.Unlock()
		l.standDown()
		return false, false
	}
	at := endPlace{l.early.tid, l.early.fd}
	l.mu.Unlock()
	fd := l.reach(at)
	l.mu.Lock()
	defer l.mu.Unlock()
	if fd < 0 {
		return !l.early.closed, false
	}
	defer unix.Close(fd)
	if l.early.closed {
		return false, false
	}
	q, err := acceptQueue(fd)
	if err != nil {
		return true, false
	}
	if !q.listens {
		l.abandon()
		l.dropPlace()
		if l.early.idle++; l.early.idle > lateIdle {
			l.early.running = false
			return false, false
		}
		return true, l.early.idle < 4 // listen() is about to be called
	}
	l.early.idle = 0
	return l.inspect(fd, q)
}

// standDown leaves the queue to the epoll instance. l.mu is held.
func (l *listener) standDown() {
	l.early.running = false
	l.early.sub.again()
}

// readable tells whether an epoll instance, or a socket, has something.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// reach copies the listening socket from the program, where a call was seen last
// or wherever it is. It returns -1 if it is out of reach.
func (l *listener) reach(at endPlace) int {
	if fd, err := l.s.looks.socket(nil, at.pid, at.fd, l.inode, lookPatience); err == nil {
		return fd
	}
	fd := l.s.ends.find(l.inode)
	if fd >= 0 {
		if at, ok := l.s.ends.place(l.inode); ok {
			l.mu.Lock()
			l.early.tid, l.early.fd = at.pid, at.fd
			l.mu.Unlock()
		}
	}
	return fd
}

// place tells where a socket was seen last.
func (x *endIndex) place(inode uint64) (endPlace, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, ok := x.at[inode]
	return p, ok
}

// inspect looks at the queue q of the listening socket fd. l.mu is held.
func (l *listener) inspect(fd int, q queue) (more, news bool) {
	e := &l.early
	if len(l.waiters) > 0 && len(l.spare) == 0 {
		e.mark = e.taken + uint64(q.waiting)
		return true, true // they are woken
	}
	before := e.taken
	if len(l.spare) > 0 {
		l.checkPlace()
		if len(l.spare) == 0 {
			return true, true
		}
	}
	waiting := q.waiting
	if e.place != nil {
		waiting--
	}
	switch {
	case len(l.spare) == 0 && q.waiting == 0:
		l.standDown()
		return false, false
	case len(l.spare) > 0 && e.place == nil, len(l.spare) > 0 && waiting > 0, e.taken < e.mark:
		if len(l.spare) == 0 && (e.shared || l.known.Load() == nil || netnsCookie(fd) != ownNetns()) {
			return true, false
		}
		if time.Now().After(e.before) {
			l.takeEarly(fd, q)
		}
	}
	e.mark = e.taken + uint64(max(waiting, 0))
	return true, e.taken != before
}

// checkPlace looks after the placeholder: a process that the launcher does not
// see may have accepted it. l.mu is held.
func (l *listener) checkPlace() {
	e := &l.early
	if e.place == nil {
		return
	}
	where, err := e.place.where()
	switch {
	case err != nil, where == placeQueued:
		return
	case where == placeGone:
		l.dropPlace()
		return
	}
	if !e.shared {
		e.shared = true
		l.s.log.Info("another process accepts connections too: no more are accepted early", "inode", l.inode)
	}
	p := e.place
	e.place = nil
	l.s.places.forget(p)
	a := l.shift()
	l.s.wg.Go(func() { l.s.lend(a, p.fd) })
}
