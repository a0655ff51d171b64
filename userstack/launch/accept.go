// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/broker"
	"smcr/userstack/internal/sockopt"
)

// takenTimeout limits the wait for the service's answer about an accepted
// connection.
const takenTimeout = 10 * time.Second

// accept answers accept() and accept4() on listening sockets that are marked, also those that
// another launcher has marked.
func (s *supervisor) accept(n *notif) {
	adopts := s.sessions.live() != nil
	if !s.sockets.anyListener() && !adopts {
		s.cont(n)
		return
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		s.refuseAccept(n, err)
		return
	}
	l := s.sockets.listener(inode)
	switch {
	case n.Nr == unix.SYS_ACCEPT4 && n.Args[3]&^(unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0:
		s.cont(n)
	case l != nil:
		s.begin(n, func() { l.accept(n) })
	case adopts && !s.sockets.foreign.has(inode):
		s.begin(n, func() { adopt(s, n, inode) })
	default:
		s.cont(n)
	}
}

func (l *listener) accept(n *notif) {
	c, err := l.s.listening(n, l.inode)
	if err != nil {
		l.s.refuseAccept(n, err)
		return
	}
	defer c.close() // it is closed before each answer: see copies
	flags, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFL, 0)
	if err != nil || !n.valid() {
		c.close()
		l.s.cont(n)
		return
	}
	l.renewLater(c.fd)
	l.mu.Lock()
	l.early.seen(n)
	if a := l.next(c.fd); a != nil {
		l.mu.Unlock()
		c.close()
		l.deliver(n, a)
		return
	}
	if len(l.waiters) == 0 || flags&unix.O_NONBLOCK != 0 {
		a, err := l.take(c.fd, n)
		if err == nil {
			l.mu.Unlock()
			c.close()
			l.offer(n, a)
			return
		}
		if flags&unix.O_NONBLOCK != 0 || !errors.Is(err, unix.EAGAIN) {
			l.mu.Unlock()
			c.close()
			l.s.fail(n, errnoOf(err))
			return
		}
	}
	err = l.wait(n, c)
	c.close() // a connection that has come meanwhile is the answer as soon as the lock is free
	l.mu.Unlock()
	if err != nil {
		l.s.log.Warn("cannot wait for a connection", "err", err)
		l.s.fail(n, unix.ENOBUFS)
	}
}

// refuseAccept answers accept() after the launcher failed to look at the socket. The
// kernel answers the call for a socket that is not a marked one. It must not do so
// because something is exhausted: the program would get a connection whose peer was told
// that this host speaks SMC, and would read the messages of CLC as data. The connection
// stays in the queue.
func (s *supervisor) refuseAccept(n *notif, err error) {
	if exhausted(err) {
		s.fail(n, errnoOf(err))
		return
	}
	s.cont(n)
}

// take accepts a connection for call n, or fails with EAGAIN. The socket may be
// blocking, so it first asks whether there is a connection.
func take(fd int, n *notif) (*accepted, error) {
	if !readable(fd) {
		return nil, unix.EAGAIN
	}
	o := launcherIDs()
	if o.uid == 0 {
		var err error
		if o, err = n.l.looks.threads.owner(n.tid()); exhausted(err) {
			return nil, err
		} else if err != nil || !n.valid() {
			return nil, unix.EAGAIN // the call is over
		}
	}
	make := o.make
	if n.here {
		make = func(accept func() error) error { return o.makeHere(n, accept) }
	}
	a, err := takeReady(fd, n.nonblocks(), make)
	if a != nil && !n.here { // see acceptHere
		a.readDefer(fd)
	}
	return a, err
}

// nonblocks reports whether accept4() is to make a non-blocking socket.
func (n *notif) nonblocks() bool {
	return n.Nr == unix.SYS_ACCEPT4 && n.Args[3]&unix.SOCK_NONBLOCK != 0
}

// close releases everything that the launcher has for the listener.
func (l *listener) close() {
	var left []*accepted
	l.mu.Lock()
	l.unwatch()
	for l.spare.len() > 0 {
		left = append(left, l.discard())
	}
	for a := range l.deferred {
		l.unhold(a)
		left = append(left, a)
	}
	l.mu.Unlock()
	for _, a := range left {
		if a.await(); a.pair == nil {
			a.reset(l.s.ctx)
		} else {
			a.close()
		}
	}
}

func (a *accepted) close() {
	a.await()
	switch {
	case a.unusable:
		return
	case a.follows:
		a.leave()
		return
	}
	if a.passed {
		a.c.closeOwn()
	} else {
		_ = unix.Close(a.sock)
	}
	if a.served {
		a.c.drop()
	}
	if a.pair != nil {
		a.pair.close()
	}
	if a.cc != nil {
		_ = a.cc.Cancel()
	}
}

// conn returns the conn of a, and creates it if necessary. n is the call that
// gets it, or nil.
func (a *accepted) conn(n *notif, s *supervisor) *conn {
	if a.c == nil {
		a.c = &conn{
			s: s, broker: a.broker, cc: a.cc, domain: a.domain, remote: a.remote, local: localAddr(a.sock), tcp: -1,
			calls: newCallQueue(),
			phase: phaseCarried, pair: a.pair, swapped: true, unready: true,
			report: outcomeReport{connected: true},
		}
		close(a.c.calls.over)
	}
	if n != nil {
		if tgid, err := s.looks.threads.tgid(n.tid()); err == nil {
			a.c.mu.Lock()
			a.c.at.pid = tgid
			a.c.mu.Unlock()
		}
	}
	return a.c
}

// pass passes the service its end of the pair, once.
func (a *accepted) pass() {
	if a.local {
		a.passLocal()
		return
	}
	if !a.passed {
		a.c.own = broker.NewDescriptor(a.sock)
		a.passed, a.served = true, a.c.pass()
	}
}

// deliver gives a to the waiting call, or keeps it for the next one.
func (l *listener) deliver(n *notif, a *accepted) {
	a.await()
	if a.unusable {
		l.s.fail(n, unix.ECONNABORTED)
		return
	}
	if l.holdsBack(n, a) {
		return
	}
	cloexec, nonblock := n.Nr == unix.SYS_ACCEPT4 && n.Args[3]&unix.SOCK_CLOEXEC != 0, n.nonblocks()
	src := a.sock
	var c *conn
	if a.pair != nil {
		src = a.pair.app
		c = a.conn(n, l.s)
	}
	var err error
	if a.pair != nil || a.shared || a.nonblock != nonblock {
		err = unix.SetNonblock(src, nonblock)
	}
	if err == nil {
		err = n.writeSockaddr(n.Args[1], n.Args[2], appendSockaddr(nil, a.domain, a.remote), true)
		if exhausted(err) {
			l.keep(a)
			l.s.fail(n, errnoOf(err))
			return
		}
		if err != nil && !isGone(err) {
			// The kernel also loses the connection if the pointer is bad.
			a.close()
			l.s.fail(n, errnoOf(err))
			return
		}
	}
	if err == nil {
		if c != nil {
			l.s.sockets.addConn(a.pair.inode, c)
			// First: the program goes on at once when the service has its end
			// of the pair its descriptor, and the peer waits for the CLC
			// handshake.
			a.pass()
		}
		var fd int
		fd, err = l.handOver(n, a, cloexec)
		switch {
		case c == nil:
		case err != nil:
			l.s.sockets.removeConn(a.pair.inode, c)
		default:
			c.mu.Lock()
			c.at.fd = fd
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
	if c == nil {
		return
	}
	if a.follows {
		if c.isOver() { // it may have been forgotten
			l.s.sockets.retire(c)
		}
		return
	}
	l.carry(a)
}

// carry follows a connection whose end of the pair was passed to the service.
func (l *listener) carry(a *accepted) {
	c := a.c
	if !a.served {
		_ = c.cc.Cancel() // if the session still exists, the service releases the socket
		if !c.takeBack() {
			c.abortOwn()
			c.endUnattached()
			return
		}
	}
	l.s.tasks.begin(connTask, c.carried) // a new goroutine, because the stack of this one has grown
}

// offer asks the service about a, then delivers it. After a panic nobody has the socket, so
// offer closes it: the peer must not wait.
func (l *listener) offer(n *notif, a *accepted) {
	over := false
	defer func() {
		if !over {
			a.reset(l.s.ctx)
		}
	}()
	if !l.offered(a) {
		a.unusable = !l.makeReset(a)
	}
	l.deliver(n, a)
	over = true
}

// offered asks the service about a and sets a up for the answer. It returns
// false if a cannot be used.
func (l *listener) offered(a *accepted) bool {
	s := l.s
	a.shared = true
	a.saved = l.saves.Load()
	b := s.sessions.live()
	if b == nil {
		return s.withoutService(a, false)
	}
	// A SYN-ACK never has the option if the SYN does not have it. So the
	// connection is TCP.
	if b.ByOption() && !a.saved && a.readSYN() == synWithout {
		l.overTCP(a)
		return true
	}
	had := sockopt.ReadsOf(a.sock) // the service reads messages, and sets its own
	var cc *broker.ClientConn
	b, err := s.sessions.open(func(b Broker) (err error) {
		cc, err = b.Accept(a.sock, localAddr(a.sock), a.remote)
		return err
	})
	if err != nil {
		return s.withoutService(a, true)
	}
	ev, err := s.answerFor(cc)
	switch {
	case errors.Is(err, errNoAnswer):
		s.log.Warn("connection dropped: the stack does not answer", "remote", a.remote)
		_ = cc.Cancel()
		return false
	case err != nil: // the program has ended
		_ = cc.Cancel()
		return false
	case ev.Kind == broker.EventClosed:
		// The service has ended or is about to, or does not know the
		// socket.
		return s.withoutService(a, true)
	case ev.Kind == broker.EventTaken:
		a.cc, a.broker = cc, b
	case ev.Kind == broker.EventLocal:
		return l.offeredLocal(a, b, cc, ev)
	case ev.Kind == broker.EventNotCandidate:
		if ev.Text == ReasonLocal {
			s.stats.local()
		} else {
			s.stats.tcp(ev.Text)
		}
		if ev.PeerSMC { // the rendezvous is over
			a.left = ev.Reason == uint32(smc.DiagPeerNoSMC)
			a.until = a.deferUntil()
			return true
		}
		// The service may not have read from the socket, so it may not have
		// answered the peer.
		return s.plain(a, ev.Errno != 0)
	default:
		s.stats.failed("the stack refused the connection")
		return false
	}
	if a.pair, err = newPair(a.sock, false, false); err != nil {
		s.log.Warn("connection dropped", "remote", a.remote, "err", err)
		_ = cc.Cancel()
		return false
	}
	had.Set(a.pair.app)
	a.until = a.deferUntil()
	return true
}

// errNoAnswer means that the service did not answer in time.
var errNoAnswer = errors.New("launch: no answer")

// answerFor waits for the first word of the service about an accepted connection, which is
// EventClosed also after the end of the session. The error is errNoAnswer, or that of s.ctx. An
// answer that is there counts, also in a launcher that got no processor time until its limit was
// over.
func (s *supervisor) answerFor(cc *broker.ClientConn) (broker.Event, error) {
	timer := time.NewTimer(takenTimeout)
	defer timer.Stop()
	event := func(ev broker.Event, ok bool) (broker.Event, error) {
		if !ok {
			ev.Kind = broker.EventClosed
		}
		return ev, nil
	}
	select {
	case ev, ok := <-cc.Events():
		return event(ev, ok)
	case <-s.ctx.Done():
		return broker.Event{}, s.ctx.Err()
	case <-timer.C:
		select {
		case ev, ok := <-cc.Events():
			return event(ev, ok)
		default:
			return broker.Event{}, errNoAnswer
		}
	}
}
