// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"golang.org/x/sys/unix"
)

// With TCP_DEFER_ACCEPT the kernel shows a connection to the program when its first data
// arrives, or its end, or when the time of the option is over. The PROPOSAL of an SMC client
// is data for the kernel, but not for the program. So the launcher holds such a connection back
// until the service has brought data for the program: see listener.holdsBack. A connection
// without SMC is not held back.
//
// The listening socket is readable already when the PROPOSAL arrives. A non-blocking accept()
// fails with EAGAIN then, and the placeholder makes the socket readable again (late.go).

// deferral is what ends the wait of a connection that is held back.
type deferral struct {
	sub   *subscription
	timer *time.Timer
}

// deferUntil returns when a connection of a listening socket with a TCP_DEFER_ACCEPT of defer
// seconds is shown without data. The kernel counts from the SYN.
func (a *accepted) deferUntil() time.Time {
	if a.deferAccept <= 0 {
		return time.Time{}
	}
	age, _ := handshake(a.sock)
	return time.Now().Add(time.Duration(a.deferAccept)*time.Second - age)
}

// program returns the descriptor that the program will get.
func (a *accepted) program() int {
	if a.pair != nil {
		return a.pair.app
	}
	return a.sock
}

// holdsBack holds a back, which call n was about to get, if the program must not see it yet.
// The call then goes on without it. There is a limit, beyond which nothing is held back.
func (l *listener) holdsBack(n *notif, a *accepted) bool {
	if a.until.IsZero() || time.Until(a.until) <= 0 || readable(a.program()) || l.s.earlyHeld.left() <= 0 || !l.canHoldBack(n) {
		return false
	}
	l.goOn(a)
	l.mu.Lock()
	if l.early.closed {
		l.mu.Unlock()
		return false
	}
	sub, err := l.s.poll.watch(a.program(), unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLONESHOT, func(uint32) {
		l.s.tasks.begin(earlyTask, func() { l.show(a) })
	})
	if err != nil {
		l.mu.Unlock()
		return false
	}
	l.s.earlyHeld.add()
	if l.deferred == nil {
		l.deferred = make(map[*accepted]deferral)
	}
	l.deferred[a] = deferral{sub, time.AfterFunc(time.Until(a.until), l.s.tasks.guard.Func(earlyTask, func() { l.show(a) }))}
	l.mu.Unlock()
	l.accept(n)
	return true
}

// canHoldBack reports whether the program of call n learns of a connection that is held back: its
// call waits, or a placeholder can make the listening socket readable.
func (l *listener) canHoldBack(n *notif) bool {
	c, err := l.s.listening(n, l.inode)
	if err != nil {
		return false
	}
	defer c.close()
	flags, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.early
	if flags&unix.O_NONBLOCK == 0 || e.placed {
		return !e.shared
	}
	if e.watch < 0 || e.shared || time.Now().Before(e.before) {
		return false
	}
	p := e.makePlace(c.fd) // to see whether it can be done
	if p == nil {
		return false
	}
	l.s.places.drop(p)
	return true
}

// show gives the program a connection that was held back.
func (l *listener) show(a *accepted) {
	if l.s.ctx.Err() != nil {
		return // close resets it
	}
	l.mu.Lock()
	ours := l.unhold(a)
	l.mu.Unlock()
	if !ours {
		return
	}
	if l.forgetIfGone() {
		a.reset(l.s.ctx)
		return
	}
	l.keep(a)
}

// unhold ends the wait of a connection that is held back, and reports whether it was. The caller
// owns it then. l.mu is held.
func (l *listener) unhold(a *accepted) bool {
	d, ok := l.deferred[a]
	if !ok {
		return false
	}
	delete(l.deferred, a)
	d.sub.stop()
	d.timer.Stop()
	l.s.earlyHeld.give()
	a.until = time.Time{}
	return true
}
