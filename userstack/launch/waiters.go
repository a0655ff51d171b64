// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// This file has the calls that wait in accept().

// wait makes n a waiter for a connection of the listening socket c. l.mu is held.
//
// The kernel has a reference to a socket in whose accept() a thread waits: a close() by another
// thread does not end the call, and the port stays in use. The launcher has a copy instead. A
// thread that is alone in its process cannot close the socket while it waits, so no copy is
// made for it, which would be in the way after a signal has interrupted the call.
func (l *listener) wait(n *notif, c *socketCopy) error {
	// A thread is in one call at a time: a signal has interrupted an earlier one of this thread. A
	// program with many signals would otherwise have as many waiters before the next review.
	l.dropWaiters(func(o *waiter) bool { return o.n.tid() == n.tid() })
	w := &waiter{n: n, shared: !isAlone(n.tid())}
	if tv, err := unix.GetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && tv.Nano() > 0 {
		w.deadline = time.Now().Add(time.Duration(tv.Nano()))
	}
	if err := l.watchQueue(c.fd); err != nil {
		return err
	}
	var err error
	if w.pidfd, err = openPidfd(n.tid()); err != nil {
		return err
	}
	if w.sub, err = l.s.poll.watch(w.pidfd, unix.EPOLLIN|unix.EPOLLONESHOT, func(uint32) { l.s.tasks.begin("the review of calls of accept", l.review) }); err != nil {
		_ = unix.Close(w.pidfd)
		return err
	}
	if w.shared && l.fd < 0 {
		l.fd, c.fd = c.fd, -1
		l.s.copies.held.Add(1)
	}
	l.waiters = append(l.waiters, w)
	l.dropWaiters(func(*waiter) bool { return false }) // sets the timer
	l.sub.again()
	return nil
}

// watchQueue makes l.sub report that the listening socket fd has a connection. fd may be closed
// then: an epoll instance does not keep the socket open. l.mu is held.
func (l *listener) watchQueue(fd int) error {
	if l.queue >= 0 {
		return nil
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
		l.sub, err = l.s.poll.watch(ep, unix.EPOLLIN|unix.EPOLLONESHOT, func(uint32) { l.s.tasks.begin("the accept of a connection", l.ready) })
	}
	if err != nil {
		_ = unix.Close(ep)
		return err
	}
	l.queue = ep
	return nil
}

// isAlone reports whether thread tid is the only one of its process.
func isAlone(tid int) bool {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+strconv.Itoa(tid)+"/task", &st)
	return err == nil && st.Nlink == 3 // itself, its parent, and one thread
}

func (w *waiter) close() {
	w.sub.stop()
	_ = unix.Close(w.pidfd)
}

// ready gives connections from the backlog to waiters. It runs in its own
// goroutine: another process that has the socket, which the launcher does not
// see, may accept the connection first or hold the lock of the socket.
func (l *listener) ready() {
	for l.serveWaiter() {
	}
}

// serveWaiter gives a connection to the first waiter. It returns false if there is no
// connection, or no waiter.
func (l *listener) serveWaiter() bool {
	l.mu.Lock()
	l.dropWaiters(func(w *waiter) bool { return !w.n.valid() })
	if len(l.waiters) == 0 {
		l.mu.Unlock()
		return false
	}
	w, fd := l.waiters[0], l.fd
	var c *socketCopy
	if fd < 0 {
		l.mu.Unlock()
		var err error
		if c, err = l.s.listening(w.n, l.inode); err == nil {
			fd = c.fd
			defer c.close()
		}
		l.mu.Lock()
		if !slices.Contains(l.waiters, w) {
			l.mu.Unlock()
			return true
		}
		if err != nil { // the process shares its descriptors with another one, which closed this one
			l.dropWaiters(func(o *waiter) bool { return o == w })
			l.mu.Unlock()
			l.s.refuseAccept(w.n, err)
			return true
		}
	}
	a, err := l.take(fd, w.n)
	if c != nil {
		c.close() // before the answer
	}
	if errors.Is(err, unix.EAGAIN) {
		l.sub.again()
		l.mu.Unlock()
		return false
	}
	l.dropWaiters(func(o *waiter) bool { return o == w })
	l.mu.Unlock()
	if err != nil {
		l.s.fail(w.n, errnoOf(err))
		return true
	}
	l.s.answerLater(w.n, func() { l.offer(w.n, a) })
	return true
}

// review removes waiters that do not wait any more, and answers those whose
// timeout is over.
func (l *listener) review() {
	l.mu.Lock()
	now := time.Now()
	var late []*notif
	l.dropWaiters(func(w *waiter) bool {
		if !w.deadline.IsZero() && now.After(w.deadline) {
			late = append(late, w.n)
			return true
		}
		return !w.n.valid()
	})
	l.mu.Unlock()
	for _, n := range late {
		l.s.fail(n, unix.EAGAIN)
	}
}

// dropWaiters removes the waiters for which f returns true. If none is left that needs the copy
// of the socket, it closes the copy. l.mu is held.
func (l *listener) dropWaiters(f func(*waiter) bool) {
	shared, soon := false, validTick
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		if f(w) {
			w.close()
			return true
		}
		shared = shared || w.shared
		if !w.deadline.IsZero() {
			soon = max(0, min(soon, time.Until(w.deadline)))
		}
		return false
	})
	if !shared && l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
		l.s.copies.held.Add(-1)
	}
	switch {
	case len(l.waiters) > 0 && l.timer == nil:
		l.timer = time.AfterFunc(soon, l.s.tasks.guard.Func("the review of calls of accept", l.review))
	case len(l.waiters) > 0:
		l.timer.Reset(soon)
	case l.timer != nil:
		l.timer.Stop()
	}
}

// unwatch releases what watches the queue. l.mu is held.
func (l *listener) unwatch() {
	l.dropWaiters(func(*waiter) bool { return true })
	if l.queue >= 0 {
		l.sub.stop()
		_ = unix.Close(l.queue)
		l.queue, l.sub = -1, nil
	}
	l.early.unwatch()
}
