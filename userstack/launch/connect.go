// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// connect begins the answer to connect(). Everything but a fresh TCP socket, or
// one whose connection is being made, is left to the kernel.
func (s *supervisor) connect(n *notif) {
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		s.cont(n)
		return
	}
	d := s.sockets.decide(inode)
	s.begin(func() {
		defer s.sockets.decided(d)
		d.before.wait(s.ctx)
		s.connectSocket(n, inode, d)
	})
}

// connectSocket answers connect() on a socket. It ends d as soon as it is known
// what becomes of the socket.
func (s *supervisor) connectSocket(n *notif, inode uint64, d *decision) {
	remote, flowinfo, err := n.sockaddr()
	switch {
	case errors.Is(err, errBusy):
		// Others of the process wait for its memory, perhaps for long. The kernel
		// reads the address in this thread, where it is in nobody's way.
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
	if reason != "" {
		s.native(n, reason)
		return
	}
	if s.worth.any() {
		if c := s.worth.ask(time.Now(), remote); c.tcp {
			// Known to be TCP, by a call that the receiver had no answer to.
			s.leftToTCP(a.tcp, true, c.because)
			a.cleanup()
			s.cont(n)
			return
		} else if c.try {
			a.trial.try = true
		}
	}
	a.start()
}

// native continues a connect() for a reason that counts unless it is notTCP.
func (s *supervisor) native(n *notif, reason string) {
	if reason != notTCP {
		s.stats.tcp(reason)
	}
	s.cont(n)
}

// sockaddr reads the address given to connect(); it is invalid if it is not of
// IPv4 or IPv6.
func (n *notif) sockaddr() (remote netip.AddrPort, flowinfo uint32, err error) {
	l := int(int32(n.Args[2]))
	if l < unix.SizeofSockaddrInet4 || l > unix.SizeofSockaddrAny {
		return remote, 0, nil
	}
	sa, err := n.read(n.Args[1], min(l, unix.SizeofSockaddrInet6), lookPatience)
	if err != nil {
		return remote, 0, err
	}
	remote, flowinfo = parseSockaddr(sa)
	return remote, flowinfo, nil
}

// names tells whether the descriptor that the call names is the socket.
func (n *notif) names(inode uint64) bool { return isLinked(n.tid(), n.fdArg(), inode) }

// notTCP stands for sockets that do not count: not TCP, or not fresh, so that
// the call is bound to fail.
const notTCP = "not a fresh TCP socket"

// isKnown stands for a socket of which another call has begun an attempt since
// connect looked.
const isKnown = "an attempt has begun"

// newAttempt takes a fresh socket for an attempt, or returns the reason why
// the call is to be continued natively.
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
	case flowinfo != 0, domain == unix.AF_INET && !req.Remote.Addr().Is4(), domain == unix.AF_INET6 && req.Remote.Addr().Is4():
		reason = ReasonSocketState // a flow label, or an error that the kernel knows best
	case s.landlock.Load():
		reason = ReasonLandlock
	case s.sessions.live() == nil:
		reason = ReasonNoService
	case !n.valid():
		// Interrupted meanwhile. The program may rely on the connection being
		// made all the same, as the kernel would. What it asked for must be
		// certain, though: the thread id could belong to another by now.
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
	a := &attempt{conn: c, tid: n.tid(), req: req, begun: time.Now(), hup: make(chan struct{}, 1), self: make(chan broker.Event, 1)}
	a.steps = steps{hands: a, n: n, nonblock: req.Nonblock, blocking: !req.Nonblock, decide: s.decide}
	return a, ""
}

// start hands the socket to the service and follows the attempt.
func (a *attempt) start() {
	s := a.s
	err := broker.ErrServiceGone
	a.broker = s.sessions.live()
	if a.broker != nil {
		a.cc, err = a.broker.Connect(a.tcp, a.req)
	}
	if err != nil {
		s.log.Debug("cannot pass a socket to the service", "err", err)
		a.cleanup()
		s.native(a.steps.n, ReasonNoService)
		return
	}
	a.run(sendTimeout(a.tcp))
}

// freshTCP checks that fd is an unconnected TCP socket that a socketpair can
// stand for, and returns its domain, or the reason why not.
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
	if get(soZeroCopy) > 0 {
		return domain, ReasonSocketState
	}
	return domain, ""
}

// tcpClose is TCP_CLOSE (linux/tcp_states.h).
const tcpClose = 7

// sendTimeout reads SO_SNDTIMEO, which bounds a blocking connect; 0 is none.
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
		s.connect(n) // the TCP socket again, and nothing to do with c
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.phase == phaseConnecting:
		s.fail(n, unix.EALREADY)
	case c.phase == phaseCarried && c.report.connected:
		s.fail(n, unix.EISCONN)
	case c.phase == phaseCarried:
		c.report.connected = !isGone(n.reply(0))
	case c.phase == phaseNative && !c.report.connected:
		c.report.connected = !isGone(n.reply(0))
	case c.phase == phaseFailed && c.report.err != 0:
		if !isGone(n.fail(c.report.err)) {
			c.report.err = 0
		}
	case c.swapped: // a failed one whose TCP socket is no more
		s.fail(n, unix.ECONNABORTED)
	default:
		s.sockets.removeConn(c.tcpInode, c)
		s.connect(n)
	}
}

// errMoved tells that the program's descriptor is not what it was.
var errMoved = errors.New("launch: the descriptor changed")

// swapIn makes the program's descriptor of call n the pair's end, unwritable,
// and non-blocking or not.
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

// errShared tells that the process has more descriptors of the pair's end.
var errShared = errors.New("launch: the descriptor was duplicated")

// swapBack gives the program its TCP socket again.
func (c *conn) swapBack(n *notif) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	app, err := c.s.looks.socket(n, n.tid(), n.fdArg(), c.pair.inode, lookPatience)
	if err != nil {
		return err
	}
	defer unix.Close(app)
	if shared(n.tid(), n.fdArg(), c.pair.inode) {
		return errShared
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

// exchange places descriptor to, of the launcher, where call n has from, whose
// inode is given; close-on-exec and epoll registrations stay as they were.
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

// shared tells whether thread tid's process has the socket under another
// number than fd as well.
func shared(tid, fd int, inode uint64) bool {
	dir := "/proc/" + strconv.Itoa(tid) + "/fd"
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		i, err := strconv.Atoi(name)
		if err != nil || i == fd {
			continue
		}
		if ino, err := socketInode(tid, i); err == nil && ino == inode {
			return true
		}
	}
	return false
}

// disconnect makes a TCP socket unconnected again, whatever its state; a
// connection is reset.
func disconnect(fd int) {
	var unspec unix.RawSockaddr // AF_UNSPEC is 0
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
}
