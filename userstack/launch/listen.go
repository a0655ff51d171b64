// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// listenTimeout bounds the wait for the service to mark a socket.
const listenTimeout = 5 * time.Second

// listen tells the service of the socket before the kernel gets the call.
// Without one the socket is remembered, so that a later one can mark it: from
// then on no accept() may take a connection without the launcher.
func (s *supervisor) listen(n *notif) {
	defer s.cont(n)
	b := s.sessions.live()
	if b == nil && !s.sessions.mayReturn() {
		return
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		return
	}
	known := s.sockets.listener(inode)
	if known != nil && !known.forgetIfGone() {
		known.early.rearm()
		return
	}
	s.sockets.sweep()
	fd, reason, err := s.looks.checkedSocket(n, n.tid(), n.fdArg(), inode, lookPatience, func(fd int) string {
		_, reason := freshTCP(fd)
		return reason
	})
	switch {
	case reason != "":
		return
	case err != nil:
		s.log.Debug("cannot take over a listening socket", "err", err)
		return
	}
	defer unix.Close(fd)
	l := &listener{s: s, inode: inode, fd: -1, early: early{watch: -1}}
	l.early.l = l
	if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN); err == nil {
		l.saves = v != 0
	}
	if b != nil {
		switch err := s.mark(b, fd); {
		case err == nil:
			l.known.Store(&b)
		case !errors.Is(err, broker.ErrServiceGone) || !s.sessions.mayReturn():
			return
		}
	}
	l.early.arm(n, fd)
	s.sockets.addListener(l)
	l.renew(fd) // there may be a session since
}

// mark has a listening socket marked in session b.
func (s *supervisor) mark(b Broker, fd int) error {
	ctx, cancel := context.WithTimeout(s.ctx, listenTimeout)
	defer cancel()
	err := b.Listen(ctx, fd)
	if err != nil {
		s.log.Debug("listening socket stays native", "address", localAddr(fd), "err", err)
	}
	return err
}

// stale reports whether there is a session that does not know the listener yet.
// The caller has to tell it then: the next call says no.
func (l *listener) stale() (Broker, bool) {
	b := l.s.sessions.live()
	if b == nil {
		return nil, false
	}
	old := l.known.Load()
	if old != nil && *old == b {
		return nil, false
	}
	return b, l.known.CompareAndSwap(old, &b)
}

// knows reports whether session b was told of the listener.
func (l *listener) knows(b Broker) bool {
	known := l.known.Load()
	return known != nil && *known == b
}

// renew marks the listener, of which fd is a descriptor, in a session that does
// not know it yet.
func (l *listener) renew(fd int) {
	b, stale := l.stale()
	if !stale {
		return
	}
	if err := l.s.mark(b, fd); err == nil {
		l.s.log.Debug("listening socket marked again", "address", localAddr(fd))
	}
}

// renewLater is renew of a call of the program, which does not wait for it.
func (l *listener) renewLater(fd int) {
	b, stale := l.stale()
	if !stale {
		return
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	l.s.wg.Go(func() {
		defer unix.Close(dup)
		_ = l.s.mark(b, dup)
	})
}

// renewAll marks all listeners in the present session, wherever in the program
// they are. Of one that is out of reach the next accept() makes up for it.
func (s *supervisor) renewAll() {
	begin := time.Now()
	for _, l := range s.sockets.allListeners() {
		if fd := s.ends.findSince(l.inode, begin); fd >= 0 {
			l.renew(fd)
			_ = unix.Close(fd)
		}
	}
}
