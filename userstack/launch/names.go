// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/rights"
)

// optionTimeout bounds the wait for the service to set or read an option.
const optionTimeout = 5 * time.Second

func localAddr(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return toAddrPort(sa)
}

// getname answers getsockname() and getpeername() with the TCP addresses.
func (s *supervisor) getname(n *notif, c *conn) {
	c.lend(&loan{n: n})
	if s.connOf(n) != c {
		s.cont(n)
		return
	}
	c.mu.Lock()
	phase, swapped, inPair, over, ap := c.phase, c.swapped, c.inPair, c.over, c.local
	if phase != phaseCarried && c.tcp >= 0 {
		ap = localAddr(c.tcp)
	}
	c.mu.Unlock()
	if !swapped {
		s.cont(n)
		return
	}
	if n.Nr == unix.SYS_GETPEERNAME {
		// The program sees the reset before the service says its last.
		if phase != phaseCarried || inPair && (over || c.cut(n)) {
			s.fail(n, unix.ENOTCONN)
			return
		}
		ap = c.remote
	}
	err := n.writeSockaddr(n.Args[1], n.Args[2], appendSockaddr(nil, c.domain, ap), false)
	s.fail(n, errnoOf(err))
}

// cut tells whether the program's end, which n is about, has been cut off.
func (c *conn) cut(n *notif) bool {
	c.mu.Lock()
	inode := c.pair.inode
	c.mu.Unlock()
	fd, err := c.s.looks.socket(n, n.tid(), n.fdArg(), inode, lookPatience)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return pollHup(fd)
}

// errnoOf is the errno to answer for err, 0 for nil.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return errnoOr(err, unix.EINVAL)
}

// sockopt answers getsockopt() and setsockopt() for the pair's end.
func (s *supervisor) sockopt(n *notif, c *conn) {
	level, name := int(int32(n.Args[1])), int(int32(n.Args[2]))
	get := n.Nr == unix.SYS_GETSOCKOPT
	if get && level == unix.SOL_SOCKET && name == unix.SO_ERROR {
		s.soError(n, c)
		return
	}
	c.mu.Lock()
	swapped := c.swapped
	c.mu.Unlock()
	if !swapped {
		s.cont(n)
		return
	}
	switch {
	case get && level == unix.SOL_SOCKET && name == unix.SO_DOMAIN:
		s.giveInt(n, c.domain)
	case get && level == unix.SOL_SOCKET && name == unix.SO_PROTOCOL:
		s.giveInt(n, unix.IPPROTO_TCP)
	case get && level == unix.SOL_SOCKET && name == unix.SO_PEERCRED:
		nobody := binary.NativeEndian.AppendUint32(nil, 0) // struct ucred of TCP
		nobody = binary.NativeEndian.AppendUint64(nobody, math.MaxUint64)
		s.fail(n, errnoOf(n.writeOption(nobody)))
	case get:
		v, err := c.getOption(n, level, name)
		if err == nil {
			err = n.writeOption(v)
		}
		s.fail(n, errnoOf(err))
	case level == unix.SOL_SOCKET && (name == unix.SO_SNDBUF || name == unix.SO_SNDBUFFORCE):
		switch later, err := c.laterSndbuf(n, name); {
		case err != nil:
			s.fail(n, errnoOf(err))
		case later:
			s.reply(n, 0)
		default:
			s.cont(n)
		}
	default:
		err := c.setOption(n, level, name)
		if err == nil && level == unix.SOL_SOCKET && name == unix.SO_LINGER && c.isDirect() && n.setsAbort() {
			c.takesDetour(n)
		}
		if err == nil && level == unix.SOL_SOCKET {
			s.cont(n) // also on the pair's end, where it is read
			return
		}
		s.fail(n, errnoOf(err))
	}
}

// soError answers SO_ERROR, which clears the error.
func (s *supervisor) soError(n *notif, c *conn) {
	c.lend(&loan{n: n})
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil || s.lookup(inode) != c {
		s.cont(n)
		return
	}
	// Until the call has its answer, so that no other gets the same. The mutex is
	// not held for that long: the answer goes into the program's memory.
	for end := time.Now().Add(lookPatience); !c.telling.CompareAndSwap(false, true); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.cont(n)
			return
		}
	}
	defer c.telling.Store(false)
	c.mu.Lock()
	e, inPair := c.err, c.inPair
	c.mu.Unlock()
	if e == 0 {
		s.cont(n)
		return
	}
	told := e
	// The kernel's own error on the pair's end must not be seen as well; if
	// it was seen, there is none any more.
	if fd, err := s.looks.socket(n, n.tid(), n.fdArg(), inode, lookPatience); err == nil {
		cut := pollHup(fd)
		own, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if inPair && cut && own == 0 && err == nil {
			told = 0
		}
		_ = unix.Close(fd)
	}
	if err := n.writeOption(binary.NativeEndian.AppendUint32(nil, uint32(told))); err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := n.reply(0); err != nil {
		s.answered(err)
		return
	}
	if c.err == e {
		c.err = 0
	}
	c.reported = true
	if !c.swapped {
		s.unregister(inode, c)
	}
}

// pollHup reports whether the other end of the pair was closed.
func pollHup(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLHUP != 0
}

func (s *supervisor) giveInt(n *notif, v int) {
	s.fail(n, errnoOf(n.writeOption(binary.NativeEndian.AppendUint32(nil, uint32(v)))))
}

// laterSndbuf keeps the size that the program asks for while its end is kept
// unwritable. It returns false when the kernel can set it at once. The error is
// that of a program which may not set it.
func (c *conn) laterSndbuf(n *notif, name int) (later bool, err error) {
	if c.isSettled() || int(int32(n.Args[4])) < 4 {
		return false, nil
	}
	v, err := n.read(n.Args[3], 4, 0)
	r := n.rights(unix.SOL_SOCKET, name)
	if err != nil || !n.valid() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != phaseConnecting {
		return false, nil
	}
	if name == unix.SO_SNDBUFFORCE {
		err := c.rightly(r, true, unix.SOL_SOCKET, name, func(fd int) error {
			return setRaw(fd, unix.SOL_SOCKET, name, v)
		})
		if err != nil {
			return false, err
		}
	}
	c.pair.sndbuf = max(int(int32(binary.NativeEndian.Uint32(v))), 1)
	return true, nil
}

// option has an option of the TCP socket set or read: by the service from when
// it may begin the CLC handshake, as it has to know what is set, and sets some
// for its own purposes meanwhile; before, and where the launcher relays, by here.
// When the connection is over, the launcher has a fresh socket, in state CLOSE,
// answer. Whoever does it does it with the program's rights r.
func (c *conn) option(r rights.Rights, set bool, level, name int, service func(ctx context.Context) error, here func(fd int) error) error {
	c.mu.Lock()
	served := !c.over && (c.tcp < 0 || c.served && !c.here && c.phase != phaseFailed)
	if !served {
		defer c.mu.Unlock()
		return c.rightly(r, set, level, name, here)
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.s.ctx, optionTimeout)
	defer cancel()
	err := service(ctx)
	var e syscall.Errno
	switch {
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, broker.ErrServiceGone):
		// It has ended, and the launcher is about to hear of it.
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.rightly(r, set, level, name, here)
	case err == nil || errors.As(err, &e):
		return err
	}
	return unix.ENOTCONN
}

// withSocket calls f with the TCP socket if the launcher has it, else with a
// fresh one. c.mu is held.
func (c *conn) withSocket(f func(fd int) error) error {
	if c.tcp >= 0 {
		return f(c.tcp)
	}
	fd, err := unix.Socket(c.domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func (c *conn) getOption(n *notif, level, name int) ([]byte, error) {
	l, err := n.read(n.Args[4], 4, 0)
	if err != nil {
		return nil, unix.EFAULT
	}
	size := int(int32(binary.NativeEndian.Uint32(l)))
	if size < 0 {
		return nil, unix.EINVAL
	}
	size = min(size, broker.MaxValue)
	r := n.rights(level, name)
	var v []byte
	err = c.option(r, false, level, name, func(ctx context.Context) (err error) {
		v, err = c.cc.GetOption(ctx, r, level, name, size)
		return err
	}, func(fd int) error {
		buf := make([]byte, max(size, 1))
		m, err := getRaw(fd, level, name, buf)
		v = buf[:min(m, size)]
		return err
	})
	return v, err
}

func (c *conn) setOption(n *notif, level, name int) error {
	if level == unix.IPPROTO_TCP {
		switch name {
		case tcpULP:
			return unix.ENOENT // as without the tls module
		case tcpRepair:
			return unix.EPERM
		}
	}
	size := int(int32(n.Args[4]))
	if size < 0 || size > broker.MaxValue {
		return unix.EINVAL
	}
	v, err := n.read(n.Args[3], size, 0)
	if err != nil {
		return unix.EFAULT
	}
	r := n.rights(level, name)
	if !n.valid() {
		return unix.ENOENT
	}
	here := func(fd int) error { return setRaw(fd, level, name, v) }
	if e, known := optionVerdict(level, name, v); known {
		if e != 0 {
			return e
		}
		return c.option(r, true, level, name, func(context.Context) error { return c.cc.PassOption(level, name, v) }, here)
	}
	return c.option(r, true, level, name, func(ctx context.Context) error { return c.cc.SetOption(ctx, r, level, name, v) }, here)
}

// optionVerdict returns what the kernel says to an option of a TCP socket that many
// programs set on every connection, where the value alone decides. To wait for the
// service costs the program a hundred microseconds each. What is not known here a
// kernel may learn, or a policy (eBPF) may refuse.
func optionVerdict(level, name int, value []byte) (e syscall.Errno, known bool) {
	least, most := math.MinInt32, math.MaxInt32
	switch {
	case level == unix.SOL_SOCKET && name == unix.SO_KEEPALIVE, level == unix.IPPROTO_TCP && name == unix.TCP_NODELAY:
	case level == unix.IPPROTO_TCP && (name == unix.TCP_KEEPIDLE || name == unix.TCP_KEEPINTVL):
		least, most = 1, 32767
	case level == unix.IPPROTO_TCP && name == unix.TCP_KEEPCNT:
		least, most = 1, 127
	default:
		return 0, false
	}
	if len(value) < 4 {
		return unix.EINVAL, true
	}
	if v := int(int32(binary.NativeEndian.Uint32(value))); v < least || v > most {
		return unix.EINVAL, true
	}
	return 0, true
}
