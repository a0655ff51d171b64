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

// listenTimeout limits the wait until the service has marked a socket.
const listenTimeout = 5 * time.Second

// listen tells the service of the socket before the kernel gets the call.
// Without a service, the launcher records the socket so that a later service
// can mark it. From then on the launcher must answer each accept() on it.
func (s *supervisor) listen(n *notif) {
	defer s.cont(n)
	s.settle()
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
	s.begins(n, fd, inode)
}

// begins marks a socket that listens, or will when call n is answered. fd is a copy of it.
func (s *supervisor) begins(n *notif, fd int, inode uint64) {
	l := newListener(s, inode)
	if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN); err == nil {
		l.saves.Store(v != 0)
	}
	if s.sessions.live() != nil {
		b, err := s.sessions.open(func(b Broker) error { return s.mark(b, fd) })
		switch {
		case err == nil:
			l.known.Store(&b)
		case !errors.Is(err, broker.ErrServiceGone) || !s.sessions.mayReturn():
			return
		}
	}
	l.early.arm(n, fd)
	if !s.sockets.addListener(l) {
		// Another call of the program was answered meanwhile, on the same socket.
		l.early.disarm()
		return
	}
	l.renew(fd) // there may be a session by now
}

// mark makes the service of session b mark a listening socket.
func (s *supervisor) mark(b Broker, fd int) error {
	ctx, cancel := context.WithTimeout(s.ctx, listenTimeout)
	defer cancel()
	err := b.Listen(ctx, fd)
	if err != nil {
		s.log.Debug("listening socket stays native", "address", localAddr(fd), "err", err)
	}
	return err
}

// renew marks the listener in a session that does not know it yet. fd is its
// socket.
func (l *listener) renew(fd int) {
	b, stale := l.stale()
	if !stale {
		return
	}
	if err := l.mark(b, fd); err == nil {
		l.s.log.Debug("listening socket marked again", "address", localAddr(fd))
	}
}

// renewLater does the same as renew in a goroutine, so that a call of the
// program does not wait for it.
func (l *listener) renewLater(fd int) {
	b, stale := l.stale()
	if !stale {
		return
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	c := &socketCopy{dup, l.s.copies.begin()}
	l.s.tasks.begin("the mark of a listening socket", func() {
		defer c.close()
		_ = l.mark(b, dup)
	})
}

// renewAll marks all listeners in the present session. It finds their sockets
// in the processes of the program. If one is not found, the next accept() marks
// it.
func (s *supervisor) renewAll() {
	begin := time.Now()
	for _, l := range s.sockets.allListeners() {
		c := &socketCopy{-1, s.copies.begin()}
		if c.fd = s.ends.findSince(l.inode, begin); c.fd >= 0 {
			l.renew(c.fd)
		}
		c.close()
	}
}

// sweep removes the listeners whose sockets are closed, if there are so many that
// some probably are.
func (t *sockets) sweep() {
	t.mu.Lock()
	few := len(t.listeners) < max(t.sweepAt, sweepFirst)
	t.mu.Unlock()
	if few {
		return
	}
	for _, l := range t.allListeners() {
		l.forgetIfGone()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepAt = 2 * len(t.listeners)
}
