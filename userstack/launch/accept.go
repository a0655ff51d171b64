// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// listenTimeout bounds the wait for the service to mark a socket.
	listenTimeout = 5 * time.Second
	// takenTimeout bounds the wait for the service's word on an accepted
	// connection.
	takenTimeout = 10 * time.Second
)

// listener is a listening socket that the service marked. The launcher holds
// a duplicate of it only while calls wait in accept(), as they do themselves.
type listener struct {
	s     *supervisor
	inode uint64

	mu      sync.Mutex
	fd      int // duplicate to wait on, or -1
	sub     *subscription
	timer   *time.Timer
	waiters []*waiter
	// spare holds connections whose accept() was interrupted.
	spare []*accepted
}

// waiter is a call blocked in accept().
type waiter struct {
	n        *notif
	pidfd    int // tells that the thread died
	sub      *subscription
	deadline time.Time // of SO_RCVTIMEO, or zero
}

// accepted is a connection taken from the backlog.
type accepted struct {
	sock   int // the TCP socket
	remote netip.AddrPort
	domain int
	cc     *broker.ClientConn // nil: native
	pair   *pair              // nil: native
}

// listen tells the service of the socket before the kernel gets the call.
func (s *supervisor) listen(n *notif) {
	defer s.cont(n)
	if s.serviceGone() {
		return
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		return
	}
	s.mu.Lock()
	known := s.listeners[inode] != nil
	s.mu.Unlock()
	if known {
		return
	}
	fd, err := getFD(n.tid(), n.fdArg())
	if err != nil {
		s.log.Debug("cannot take over a listening socket", "err", err)
		return
	}
	defer unix.Close(fd)
	if _, reason := freshTCP(fd); reason != "" {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, listenTimeout)
	defer cancel()
	if err := s.broker.Listen(ctx, fd); err != nil {
		s.log.Debug("listening socket stays native", "address", localAddr(fd), "err", err)
		return
	}
	s.mu.Lock()
	s.listeners[inode] = &listener{s: s, inode: inode, fd: -1}
	s.nLists.Store(int64(len(s.listeners)))
	s.mu.Unlock()
}

// accept answers accept() and accept4() on sockets that listen marked.
func (s *supervisor) accept(n *notif) {
	if s.nLists.Load() == 0 {
		s.cont(n)
		return
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		s.cont(n)
		return
	}
	s.mu.Lock()
	l := s.listeners[inode]
	s.mu.Unlock()
	if l == nil || n.Nr == unix.SYS_ACCEPT4 && n.Args[3]&^(unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0 {
		s.cont(n)
		return
	}
	s.wg.Go(func() { l.accept(n) })
}

func (l *listener) accept(n *notif) {
	fd, err := getFD(n.tid(), n.fdArg())
	if err != nil {
		l.s.cont(n)
		return
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || !n.valid() {
		_ = unix.Close(fd)
		l.s.cont(n)
		return
	}
	l.mu.Lock()
	if len(l.spare) > 0 {
		a := l.spare[0]
		l.spare = slices.Delete(l.spare, 0, 1)
		l.mu.Unlock()
		_ = unix.Close(fd)
		l.deliver(n, a)
		return
	}
	if len(l.waiters) == 0 || flags&unix.O_NONBLOCK != 0 {
		a, err := take(fd)
		if err == nil {
			l.mu.Unlock()
			_ = unix.Close(fd)
			l.offer(n, a)
			return
		}
		if flags&unix.O_NONBLOCK != 0 || !errors.Is(err, unix.EAGAIN) {
			l.mu.Unlock()
			_ = unix.Close(fd)
			l.s.fail(n, errnoOf(err))
			return
		}
	}
	defer l.mu.Unlock()
	if err := l.wait(n, fd); err != nil {
		_ = unix.Close(fd)
		l.s.log.Warn("cannot wait for a connection", "err", err)
		l.s.fail(n, unix.ENOBUFS)
	}
}

// take takes a connection from the backlog, or fails with EAGAIN. The socket
// may be a blocking one, so it asks first.
func take(fd int) (*accepted, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return nil, unix.EAGAIN
	}
	sock, sa, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return nil, err
	}
	a := &accepted{sock: sock, remote: toAddrPort(sa), domain: unix.AF_INET}
	if _, ok := sa.(*unix.SockaddrInet6); ok {
		a.domain = unix.AF_INET6
	}
	return a, nil
}

// wait makes n a waiter, and fd, which wait then owns, what is waited on. The
// caller holds l.mu.
func (l *listener) wait(n *notif, fd int) error {
	w := &waiter{n: n}
	if tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && tv.Nano() > 0 {
		w.deadline = time.Now().Add(time.Duration(tv.Nano()))
	}
	var err error
	if w.pidfd, err = openPidfd(n.tid()); err != nil {
		return err
	}
	if w.sub, err = l.s.poll.watch(w.pidfd, unix.EPOLLIN|unix.EPOLLONESHOT, func(uint32) { l.review() }); err != nil {
		_ = unix.Close(w.pidfd)
		return err
	}
	if l.fd >= 0 {
		_ = unix.Close(fd)
	} else {
		if l.sub, err = l.s.poll.watch(fd, unix.EPOLLIN, func(uint32) { l.ready() }); err != nil {
			w.close()
			return err
		}
		l.fd = fd
		l.timer = time.AfterFunc(validTick, l.review)
	}
	l.waiters = append(l.waiters, w)
	return nil
}

func (w *waiter) close() {
	w.sub.stop()
	_ = unix.Close(w.pidfd)
}

// ready gives what is in the backlog to waiters.
func (l *listener) ready() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiters) > 0 {
		w := l.waiters[0]
		if !w.n.valid() {
			w.close()
			l.waiters = slices.Delete(l.waiters, 0, 1)
			continue
		}
		a, err := take(l.fd)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		w.close()
		l.waiters = slices.Delete(l.waiters, 0, 1)
		if err != nil {
			l.s.fail(w.n, errnoOf(err))
			continue
		}
		l.s.wg.Go(func() { l.offer(w.n, a) })
	}
	l.rest()
}

// review drops waiters that wait no more, and ends those whose time is over.
func (l *listener) review() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		late := !w.deadline.IsZero() && now.After(w.deadline)
		if !late && w.n.valid() {
			return false
		}
		if late {
			l.s.fail(w.n, unix.EAGAIN)
		}
		w.close()
		return true
	})
	l.rest()
	if l.fd >= 0 {
		l.timer.Reset(validTick)
	}
}

// rest lets the socket go when nobody waits, as its duplicate would keep the
// port in use.
func (l *listener) rest() {
	if len(l.waiters) > 0 || l.fd < 0 {
		return
	}
	l.sub.stop()
	l.timer.Stop()
	_ = unix.Close(l.fd)
	l.fd, l.sub = -1, nil
}

// close releases everything at the launcher's end.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiters {
		w.close()
	}
	l.waiters = nil
	l.rest()
	for _, a := range l.spare {
		a.close()
	}
	l.spare = nil
}

func (a *accepted) close() {
	_ = unix.Close(a.sock)
	if a.pair != nil {
		a.pair.close()
	}
	if a.cc != nil {
		_ = a.cc.Cancel()
	}
}

// offer asks the service about a, then delivers it.
func (l *listener) offer(n *notif, a *accepted) {
	if !l.offered(a) {
		_ = unix.Close(a.sock)
		// As if the peer had reset the connection while it was in the backlog.
		l.s.fail(n, unix.ECONNABORTED)
		return
	}
	l.deliver(n, a)
}

// offered settles what a becomes. It returns false if a is unusable.
func (l *listener) offered(a *accepted) bool {
	s := l.s
	if s.serviceGone() {
		s.stats.tcp(ReasonNoService)
		return !synHadSMC(a.sock)
	}
	cc, err := s.broker.Accept(a.sock, localAddr(a.sock), a.remote)
	if err != nil {
		s.serviceGone()
		s.stats.tcp(ReasonNoService)
		return !synHadSMC(a.sock)
	}
	timer := time.NewTimer(takenTimeout)
	defer timer.Stop()
	select {
	case ev, ok := <-cc.Events():
		switch {
		case !ok:
			s.serviceGone()
			s.stats.tcp(ReasonNoService)
			return !synHadSMC(a.sock)
		case ev.Kind == broker.EventTaken:
			a.cc = cc
		case ev.Kind == broker.EventNotCandidate:
			s.stats.tcp(ev.Text)
			return true
		default:
			s.stats.failed("the stack refused the connection")
			return false
		}
	case <-timer.C:
		s.log.Warn("connection dropped: the stack does not answer", "remote", a.remote)
		_ = cc.Cancel()
		return false
	case <-s.ctx.Done():
		_ = cc.Cancel()
		return false
	}
	if a.pair, err = newPair(a.sock, false, false); err != nil {
		s.log.Warn("connection dropped", "remote", a.remote, "err", err)
		_ = cc.Cancel()
		return false
	}
	return true
}

// deliver gives a to the waiting call, or keeps it for the next one.
func (l *listener) deliver(n *notif, a *accepted) {
	cloexec, nonblock := false, false
	if n.Nr == unix.SYS_ACCEPT4 {
		cloexec, nonblock = n.Args[3]&unix.SOCK_CLOEXEC != 0, n.Args[3]&unix.SOCK_NONBLOCK != 0
	}
	src := a.sock
	var c *conn
	if a.pair != nil {
		src = a.pair.app
		c = &conn{
			s: l.s, cc: a.cc, domain: a.domain, remote: a.remote, local: localAddr(a.sock), tcp: -1,
			loans: make(chan *loan), settled: make(chan struct{}),
			phase: phaseCarried, pair: a.pair, swapped: true, reported: true, unready: true,
		}
		close(c.settled)
		if tgid, err := tgidOf(n.tid()); err == nil {
			c.tgid = tgid
		}
	}
	err := unix.SetNonblock(src, nonblock)
	if err == nil {
		err = n.writeSockaddr(n.Args[1], n.Args[2], appendSockaddr(nil, a.domain, a.remote), true)
		if err != nil && !isGone(err) {
			// The kernel, too, loses the connection to a bad pointer.
			a.close()
			l.s.fail(n, errnoOf(err))
			return
		}
	}
	if err == nil {
		if c != nil {
			l.s.register(a.pair.inode, c)
		}
		var fd int
		fd, err = n.addAndReply(src, cloexec)
		switch {
		case c == nil:
		case err != nil:
			l.s.unregister(a.pair.inode, c)
		default:
			c.mu.Lock()
			c.fd = fd
			c.mu.Unlock()
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, unix.EMFILE):
		l.keep(a)
		l.s.fail(n, unix.EMFILE)
		return
	default:
		if !isGone(err) {
			l.s.log.Error("cannot deliver a connection", "err", err)
			l.s.fail(n, errnoOf(err))
		}
		l.keep(a)
		return
	}
	_ = unix.Close(a.sock)
	if c == nil {
		return
	}
	a.pair.closeApp()
	if !c.pass() {
		c.unserved()
		return
	}
	c.carried()
}

// keep holds a connection for the next accept(), or gives it to a waiter.
func (l *listener) keep(a *accepted) {
	l.mu.Lock()
	for len(l.waiters) > 0 {
		w := l.waiters[0]
		l.waiters = slices.Delete(l.waiters, 0, 1)
		w.close()
		l.rest()
		if w.n.valid() {
			l.s.wg.Go(func() { l.deliver(w.n, a) })
			l.mu.Unlock()
			return
		}
	}
	l.spare = append(l.spare, a)
	l.mu.Unlock()
}

// synHadSMC tells, without the service, whether the peer's SYN carried the SMC
// option (kind 254, ExID E2D4C3D9, RFC 7609, section 3.1): the peer then waits
// for CLC messages that nobody sends. Without the saved SYN it answers no.
func synHadSMC(sock int) bool {
	var b [256]byte
	n, err := getRaw(sock, unix.IPPROTO_TCP, unix.TCP_SAVED_SYN, b[:])
	if err != nil {
		return false
	}
	return smcOptionIn(b[:n])
}

// smcOptionIn looks into an IP packet with a TCP SYN.
func smcOptionIn(p []byte) bool {
	if len(p) == 0 {
		return false
	}
	ip := 40
	if p[0]>>4 == 4 {
		ip = int(p[0]&15) * 4
	}
	if len(p) < ip+20 {
		return false
	}
	end := min(ip+int(p[ip+12]>>4)*4, len(p))
	for o := p[min(ip+20, end):end]; len(o) > 0 && o[0] != 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return false
		}
		if o[0] == 254 && o[1] == 6 && binary.BigEndian.Uint32(o[2:]) == 0xe2d4c3d9 {
			return true
		}
		o = o[o[1]:]
	}
	return false
}
