// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// connect begins the answer to connect(). The kernel answers the call unless
// the socket is an unconnected TCP socket or one with an attempt.
func (s *supervisor) connect(n *notif) {
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		s.cont(n)
		return
	}
	d := s.sockets.decide(inode)
	s.begin(n, func() {
		defer s.sockets.decided(d)
		d.before.wait(s.ctx)
		s.connectSocket(n, inode, d)
	})
}

// connectSocket answers connect() on a socket. It ends d as soon as the
// decision about the socket is made.
func (s *supervisor) connectSocket(n *notif, inode uint64, d *decision) {
	s.settleHeld() // a listening socket that the program has closed takes no connection
	remote, flowinfo, err := n.sockaddr()
	switch {
	case errors.Is(err, errBusy):
		// Other calls of the process wait for its memory, perhaps for a long
		// time. The kernel reads the address in the thread of the program,
		// where no other call has to wait for it.
		s.native(n, ReasonBusy)
		return
	case err != nil || !remote.IsValid():
		s.cont(n)
		return
	}
	if c := s.sockets.conn(inode); c != nil {
		s.sockets.decided(d)
		s.rejoin(n, c)
		return
	}
	a, reason := s.newAttempt(n, inode, broker.ConnectRequest{Remote: remote}, flowinfo)
	s.sockets.decided(d)
	if c := s.sockets.conn(inode); reason == isKnown && c != nil {
		s.rejoin(n, c)
		return
	}
	switch reason {
	case "":
	case ReasonLocal:
		s.stats.local()
		s.cont(n)
		return
	default:
		s.native(n, reason)
		return
	}
	if s.worth.any() {
		if c := s.worth.ask(time.Now(), remote); c.tcp {
			// The destination is known to be TCP, but the receiver could not
			// answer the call.
			s.leftToTCP(a.tcp, true, c.because)
			a.cleanup()
			s.cont(n)
			return
		} else if c.try {
			a.trial.try = true
		}
	}
	if a.lone, err = s.ends.copied(n, inode, s.sessions.last()); err != nil {
		a.cleanup()
		s.native(n, reasonOfCopy(err))
		return
	}
	a.start()
}

// native lets the kernel do a connect(). It counts the reason unless it is
// notTCP.
func (s *supervisor) native(n *notif, reason string) {
	if reason != notTCP {
		s.stats.tcp(reason)
	}
	s.cont(n)
}

// names reports whether the descriptor in the call is the socket with that
// inode.
func (n *notif) names(inode uint64) bool { return isLinked(n.tid(), n.fdArg(), inode) }

// notTCP is the reason for sockets that are not counted: those that are not
// TCP, and those that are not unconnected, for which the call fails.
const notTCP = "not a fresh TCP socket"

// isKnown is the reason for a socket for which another call has begun an
// attempt in the meantime.
const isKnown = "an attempt has begun"

// newAttempt makes an attempt for an unconnected socket, or returns the reason
// why the kernel must do the call.
func (s *supervisor) newAttempt(n *notif, inode uint64, req broker.ConnectRequest, flowinfo uint32) (*attempt, string) {
	domain := 0
	tcp, reason, err := s.looks.checkedSocket(n, n.tid(), n.fdArg(), inode, lookPatience, func(fd int) (reason string) {
		domain, reason = freshTCP(fd)
		return reason
	})
	switch {
	case reason != "":
		return nil, reason
	case errors.Is(err, errMoved), errors.Is(err, errNotSocket):
		return nil, ReasonSocketState
	case errors.Is(err, errBusy):
		return nil, ReasonBusy
	case err != nil:
		s.log.Debug("cannot take over a socket", "err", err)
		return nil, ReasonNoAccess
	}
	switch {
	case s.sessions.staysHere(req.Remote.Addr()):
		reason = ReasonLocal
	case flowinfo != 0, domain == unix.AF_INET && !req.Remote.Addr().Is4(), domain == unix.AF_INET6 && req.Remote.Addr().Is4():
		reason = ReasonSocketState // a flow label, or an error that the kernel must report
	case s.landlock.Load():
		reason = ReasonLandlock
	case s.sessions.live() == nil:
		reason = ReasonNoService
	case !n.valid():
		// The call was interrupted. The kernel would still make the connection,
		// and the program may rely on this. But the address must be certain:
		// the thread id may belong to another thread by now.
		if again, _, err := n.sockaddr(); err != nil || again != req.Remote || !n.names(inode) {
			reason = ReasonInterrupted
		}
	}
	if reason != "" {
		_ = unix.Close(tcp)
		return nil, reason
	}
	flags, err := unix.FcntlInt(uintptr(tcp), unix.F_GETFL, 0)
	if err != nil {
		_ = unix.Close(tcp)
		return nil, ReasonSocketState
	}
	req.Nonblock = flags&unix.O_NONBLOCK != 0
	c := &conn{
		s: s, domain: domain, remote: req.Remote, tcp: tcp, tcpInode: inode,
		blocking: !req.Nonblock, trial: trial{worth: s.worth, to: req.Remote},
		calls: newCallQueue(),
	}
	if !s.sockets.addConn(inode, c) {
		_ = unix.Close(tcp)
		return nil, isKnown
	}
	a := &attempt{conn: c, tid: n.tid(), call: n.ID, req: req, begun: time.Now(), hup: make(chan struct{}, 1), self: make(chan broker.Event, 1)}
	a.steps = steps{hands: a, n: n, nonblock: req.Nonblock, blocking: !req.Nonblock, decide: s.decide}
	return a, ""
}

// start makes the attempt. After a panic nobody follows the connection, so start gives it up.
func (a *attempt) start() {
	over := false
	defer func() {
		if !over {
			a.abandon()
		}
	}()
	a.passAndRun()
	over = true
}

// passAndRun passes the socket to the service and runs the attempt.
func (a *attempt) passAndRun() {
	s := a.s
	var err error
	a.broker, err = s.sessions.open(func(b Broker) (err error) {
		a.cc, err = b.Connect(a.tcp, a.req)
		return err
	})
	if err != nil {
		s.log.Debug("cannot pass a socket to the service", "err", err)
		a.cleanup()
		s.native(a.steps.n, ReasonNoService)
		return
	}
	a.run(sendTimeout(a.tcp))
}

// freshTCP checks that fd is an unconnected TCP socket that a socketpair can
// replace. It returns the domain, and the reason if it cannot be replaced.
func freshTCP(fd int) (domain int, reason string) {
	get := func(name int) int {
		v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name)
		if err != nil {
			return -1
		}
		return v
	}
	domain = get(unix.SO_DOMAIN)
	if domain != unix.AF_INET && domain != unix.AF_INET6 ||
		get(unix.SO_TYPE) != unix.SOCK_STREAM || get(unix.SO_PROTOCOL) != unix.IPPROTO_TCP {
		return domain, notTCP
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != tcpClose {
		return domain, notTCP
	}
	// The kernel adds control messages for these options to the data, or puts messages into the
	// error queue.
	if get(soZeroCopy) > 0 || get(unix.SO_TIMESTAMP) > 0 || get(unix.SO_TIMESTAMPNS) > 0 || get(unix.SO_TIMESTAMPING) > 0 {
		return domain, ReasonSocketState
	}
	if inq, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_INQ); err == nil && inq != 0 {
		return domain, ReasonSocketState
	}
	return domain, ""
}

// tcpClose is TCP_CLOSE (linux/tcp_states.h).
const tcpClose = 7

// sendTimeout returns SO_SNDTIMEO, the timeout of a blocking connect(). 0 means
// none.
func sendTimeout(fd int) time.Duration {
	tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil {
		return 0
	}
	return time.Duration(tv.Nano())
}

// rejoin answers connect() on a socket whose connection is known: a second
// call, or one restarted after a signal.
func (s *supervisor) rejoin(n *notif, c *conn) {
	nonblock, err := c.nonblocking(func() (int, error) { return s.looks.fdFlags(n) })
	if err != nil {
		s.cont(n)
		return
	}
	if c.calls.offer(c.s.ctx, &stoppedCall{n: n, wait: true, nonblock: nonblock}) {
		return
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		s.cont(n)
		return
	}
	if s.sockets.conn(inode) != c {
		s.connect(n) // the descriptor is the TCP socket again, which does not belong to c
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.phase == phaseConnecting:
		s.fail(n, unix.EALREADY)
	case c.phase == phaseCarried && c.report.connected && !c.repeated(n):
		s.fail(n, unix.EISCONN)
	case c.phase == phaseCarried:
		c.tellConnected(n)
	case c.phase == phaseNative && !c.report.connected:
		c.report.connected = !isGone(n.reply(0))
	case c.phase == phaseFailed && c.report.err != 0:
		if !isGone(n.fail(c.report.err)) {
			c.report.err = 0
		}
	case c.swapped: // a failed connection whose TCP socket is closed
		s.fail(n, unix.ECONNABORTED)
	default:
		s.sockets.removeConn(c.tcpInode, c)
		s.connect(n)
	}
}

// tellConnected makes n return 0. c.mu is held.
func (c *conn) tellConnected(n *notif) {
	unsure, err := n.replyOnce(0)
	c.s.answered(err)
	c.report.connected = err == nil
	if again := c.report.told.callID == n.call(); !again && (c.blocking && n.l.signals() || unsure) {
		c.report.told = toldCall{n.call(), time.Now()}
	}
}

// repeatTime is how long after its first answer a call counts as the one that was answered.
const repeatTime = 100 * time.Millisecond

// repeated reports whether n is the call that was told of the connection and has lost this answer to
// a signal, so that the kernel repeats it. It may also be a second call of the program, which TCP
// refuses. Programs do that with a non-blocking socket, to learn that it is connected. So this is only
// thought of a blocking one, or if a signal was seen (unsure). c.mu is held.
func (c *conn) repeated(n *notif) bool {
	return c.report.told.callID == n.call() && time.Since(c.report.told.at) < repeatTime
}

// swapIn replaces the program's descriptor of call n by the pair's end, which
// is not writable yet.
func (c *conn) swapIn(n *notif, nonblock bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swapped {
		return nil
	}
	if c.pair == nil {
		var err error
		if c.pair, err = newPair(c.tcp, nonblock, true); err != nil {
			return err
		}
	}
	c.pair.carryAsync(c.tcp, n)
	c.s.sockets.addConn(c.pair.inode, c)
	if err := c.s.exchange(n, c.tcpInode, c.tcp, c.pair.app); err != nil {
		c.s.sockets.removeConn(c.pair.inode, c)
		return err
	}
	c.swapped = true
	c.pair.closeApp()
	c.at.fd = n.fdArg()
	if tgid, err := c.s.looks.threads.tgid(n.tid()); err == nil {
		c.at.pid = tgid
	}
	return nil
}

// swapBack replaces the pair's end in the program by the TCP socket.
func (c *conn) swapBack(n *notif) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	app, err := c.s.looks.socket(n, n.tid(), n.fdArg(), c.pair.inode, lookPatience)
	if err != nil {
		return err
	}
	defer unix.Close(app)
	if _, err := c.s.ends.unique(n, c.pair.inode, nil); err != nil {
		return err
	}
	if f, err := unix.FcntlInt(uintptr(app), unix.F_GETFL, 0); err == nil {
		if err := unix.SetNonblock(c.tcp, f&unix.O_NONBLOCK != 0); err != nil {
			return err
		}
	}
	if err := c.s.exchange(n, c.pair.inode, app, c.tcp); err != nil {
		return err
	}
	c.swapped = false
	c.s.sockets.removeConn(c.pair.inode, c)
	return nil
}

// exchange replaces the socket from, with the given inode, in call n's
// descriptor by the launcher's descriptor to. The close-on-exec flag and epoll
// registrations do not change.
func (s *supervisor) exchange(n *notif, inode uint64, from, to int) error {
	tid, fd := n.tid(), n.fdArg()
	flags, err := s.looks.fdFlags(n)
	if err != nil {
		return err
	}
	regs, err := s.epolls.registrations(n)
	if err != nil {
		return err
	}
	defer closeRegistrations(regs)
	move := func(from, to int) error { return s.looks.move(n, regs, from, to) }
	// Another thread may have closed the descriptor while the call waited.
	if ino, err := socketInode(tid, fd); err != nil || ino != inode {
		return errMoved
	}
	if !n.valid() {
		return unix.ENOENT
	}
	if err := move(from, to); err != nil {
		return err
	}
	if err := n.setFD(to, fd, flags&unix.O_CLOEXEC != 0); err != nil {
		if e := move(to, from); e != nil {
			s.log.Warn("cannot restore epoll registrations", "err", e)
		}
		return err
	}
	return nil
}
