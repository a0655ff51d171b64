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

// A server may accept late, or never. TCP clients do not notice this, because
// the kernel makes their connections. An SMC client waits for the answer to its
// CLC PROPOSAL and gives up after some seconds. So connections that have waited
// for lateDelay are accepted early: the launcher takes them from the queue,
// passes them to the service, and keeps them for the next calls of accept().
// Meanwhile a placeholder in the queue keeps the listening socket readable.
//
// A server that accepts at once costs nothing: each listening socket is in a
// separate epoll instance, which does not keep the socket open and reports once
// that a connection waits. From then on the launcher looks at the queue from
// time to time until it is empty.

const (
	// lateDelay is how long a connection waits in the queue before the launcher
	// accepts it.
	lateDelay = 50 * time.Millisecond
	// lateMax is the longest pause between two looks at a queue that does not
	// change.
	lateMax = time.Second
	// lateRetry is the pause after a placeholder could not be made.
	lateRetry = 10 * time.Second
	// lateIdle is the number of looks at a socket that does not listen before
	// the launcher stops looking.
	lateIdle = 60
)

// arm begins to watch the listening socket fd, of call n.
func (e *early) arm(n *notif, fd int) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.tid, e.fd = n.tid(), n.fdArg()
	e.kick = make(chan struct{}, 1)
	e.watch = -1
	if !e.l.s.early {
		return
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		// It stays there when fd is closed, until all have closed the socket.
		if err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
			e.sub, err = e.l.s.poll.watch(ep, unix.EPOLLIN|unix.EPOLLONESHOT, func(uint32) { e.l.s.tasks.begin(earlyTask, e.begin) })
		}
		if err != nil {
			_ = unix.Close(ep)
		}
	}
	if err != nil {
		e.l.s.log.Warn("cannot watch a listening socket: its clients wait for accept", "err", err)
		return
	}
	e.watch = ep
}

// disarm ends the watch for good.
func (e *early) disarm() {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.unwatch()
}

// rearm watches a socket again that did not listen for a long time.
func (e *early) rearm() {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if !e.running && !e.closed {
		e.idle = 0
		e.sub.again()
	}
}

// gone reports whether all processes have closed the listening socket. l.mu is
// held.
func (e *early) gone() bool {
	if e.watch < 0 {
		return false
	}
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(e.watch))
	return err == nil && !bytes.Contains(b, []byte("tfd:"))
}

// forgetIfGone removes a listener whose socket all processes have closed. It
// reports whether the listener is removed.
func (l *listener) forgetIfGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.early.closed && l.early.gone() {
		l.end()
	}
	return l.early.closed
}

// end removes a listener. l.mu is held.
func (l *listener) end() {
	l.abandon()
	l.unwatch()
	l.s.sockets.removeListener(l)
}

// unwatch releases what watches the socket. l.mu is held.
func (e *early) unwatch() {
	e.closed = true
	if e.watch >= 0 {
		e.sub.stop()
		_ = unix.Close(e.watch)
		e.watch = -1
	}
	e.dropPlace()
}

// dropPlace ends the placeholder, if there is one. l.mu is held.
func (e *early) dropPlace() {
	if p := e.place; p != nil {
		e.place = nil
		e.l.s.places.drop(p)
	}
}

// seen records where the listening socket is: at the descriptor of call n.
func (e *early) seen(n *notif) { e.tid, e.fd = n.tid(), n.fdArg() }

// begin looks at the queue, in which a connection waits, until it is empty.
func (e *early) begin() {
	e.l.mu.Lock()
	if e.running || e.closed {
		e.l.mu.Unlock()
		return
	}
	e.running = true
	e.mark = e.taken + 1
	e.idle = 0
	e.l.mu.Unlock()
	e.look(lateDelay)
}

// look looks at the queue after a pause, and again until there is nothing to
// do.
func (e *early) look(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-e.kick:
		case <-e.l.s.ctx.Done():
			return
		}
		more, news := e.lookOnce()
		if !more {
			return
		}
		if pause = min(2*pause, lateMax); news {
			pause = lateDelay
		}
		timer.Reset(pause)
	}
}

// wake makes the next look happen now.
func (e *early) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// lookOnce looks at the queue. more reports whether another look is necessary,
// and news whether the queue changed since the last look.
func (e *early) lookOnce() (more, news bool) {
	e.l.mu.Lock()
	if !e.closed && e.gone() {
		e.l.end()
	}
	if e.closed {
		e.l.mu.Unlock()
		return false, false
	}
	if e.l.spare.len() == 0 && !readable(e.watch) {
		// This check needs no copy of the socket. A copy would keep the port in
		// use if the program closed the socket now.
		defer e.l.mu.Unlock()
		e.stopLooking()
		return false, false
	}
	at := endPlace{e.tid, e.fd}
	e.l.mu.Unlock()
	defer e.l.s.copies.begin()()
	fd := e.reach(at)
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if fd < 0 {
		return !e.closed, false
	}
	defer unix.Close(fd)
	if e.closed {
		return false, false
	}
	q, err := acceptQueue(fd)
	if err != nil {
		return true, false
	}
	if !q.listens {
		e.l.abandon()
		e.dropPlace()
		if e.idle++; e.idle > lateIdle {
			e.running = false
			return false, false
		}
		return true, e.idle < 4 // the program is about to call listen()
	}
	e.idle = 0
	return e.inspect(fd, q)
}

// stopLooking ends the looks: the epoll instance reports the next connection.
// l.mu is held.
func (e *early) stopLooking() {
	e.running = false
	e.sub.again()
}

// readable reports whether an epoll instance or a socket is readable.
func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// reach returns a copy of the listening socket from the program, or -1 if it is
// not found. It looks at the last known place, and then in all processes.
func (e *early) reach(at endPlace) int {
	if fd, err := e.l.s.looks.socket(nil, at.pid, at.fd, e.l.inode, lookPatience); err == nil {
		return fd
	}
	fd := e.l.s.ends.find(e.l.inode)
	if fd >= 0 {
		if at, ok := e.l.s.ends.place(e.l.inode); ok {
			e.l.mu.Lock()
			e.tid, e.fd = at.pid, at.fd
			e.l.mu.Unlock()
		}
	}
	return fd
}

// inspect looks at the queue q of the listening socket fd. l.mu is held.
func (e *early) inspect(fd int, q queue) (more, news bool) {
	if len(e.l.waiters) > 0 && e.l.spare.len() == 0 {
		e.mark = e.taken + uint64(q.waiting)
		return true, true // they are woken
	}
	before := e.taken
	if e.l.spare.len() > 0 {
		e.checkPlace()
		if e.l.spare.len() == 0 {
			return true, true
		}
	}
	waiting := q.waiting
	if e.place != nil {
		waiting--
	}
	switch {
	case e.l.spare.len() == 0 && q.waiting == 0:
		e.stopLooking()
		return false, false
	case e.l.spare.len() > 0 && e.place == nil, e.l.spare.len() > 0 && waiting > 0, e.taken < e.mark:
		if e.l.spare.len() == 0 && (e.shared || e.l.known.Load() == nil || netnsCookie(fd) != ownNetns()) {
			return true, false
		}
		if time.Now().After(e.before) {
			e.l.takeEarly(fd, q)
		}
	}
	e.mark = e.taken + uint64(max(waiting, 0))
	return true, e.taken != before
}

// checkPlace checks the placeholder: a process that the launcher does not see
// may have accepted it. l.mu is held.
func (e *early) checkPlace() {
	if e.place == nil {
		return
	}
	where, err := e.place.where()
	switch {
	case err != nil, where == placeQueued:
		return
	case where == placeGone:
		e.dropPlace()
		return
	}
	if !e.shared {
		e.shared = true
		e.l.s.log.Info("another process accepts connections too: no more are accepted early", "inode", e.l.inode)
	}
	p := e.place
	e.place = nil
	e.l.s.places.forget(p)
	a := e.l.shift()
	e.l.s.tasks.begin(earlyTask, func() { e.l.s.carryEarly(a, p.fd) })
}
