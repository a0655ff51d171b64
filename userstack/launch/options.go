// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/rights"
	"smcr/userstack/internal/sockopt"
)

// optionTimeout limits the wait for the service to set or read an option.
const optionTimeout = 5 * time.Second

// sockopt answers getsockopt() and setsockopt() on the program's end of a connection.
func (s *supervisor) sockopt(n *notif, c *conn) { (&optionCall{s, n, c}).answer() }

// optionCall is one getsockopt() or setsockopt() on the program's end of a connection.
type optionCall struct {
	s *supervisor
	n *notif
	c *conn
}

// answer answers the call.
func (o *optionCall) answer() {
	s, n, c := o.s, o.n, o.c
	level, name := int(int32(n.Args[1])), int(int32(n.Args[2]))
	get := n.Nr == unix.SYS_GETSOCKOPT
	if get && level == unix.SOL_SOCKET && name == unix.SO_ERROR {
		o.soError()
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
		o.giveInt(c.domain)
	case get && level == unix.SOL_SOCKET && name == unix.SO_PROTOCOL:
		o.giveInt(unix.IPPROTO_TCP)
	case get && level == unix.SOL_SOCKET && name == unix.SO_PEERCRED:
		nobody := binary.NativeEndian.AppendUint32(nil, 0) // struct ucred, as a TCP socket returns it
		nobody = binary.NativeEndian.AppendUint64(nobody, math.MaxUint64)
		s.fail(n, errnoOf(n.writeOption(nobody)))
	case get && level == unix.SOL_SOCKET && name == unix.SO_PEERPIDFD:
		s.fail(n, unix.ENODATA) // the kernel does not know the process of a TCP peer
	case !sockopt.Allowed(level, name):
		s.cont(n)
	case isTCPLevel(level):
		o.answerTCP(get, level, name)
	case get && c.domain == unix.AF_INET:
		s.fail(n, unix.EOPNOTSUPP)
	default:
		s.fail(n, unix.ENOPROTOOPT)
	}
}

// answerTCP answers the call with an option of the TCP socket.
func (o *optionCall) answerTCP(get bool, level, name int) {
	s, n := o.s, o.n
	switch {
	case get && level == unix.SOL_SOCKET && name == unix.SO_PEERNAME:
		s.fail(n, errnoOf(o.peerName()))
	case get:
		v, err := o.get(level, name)
		if err == nil {
			err = n.writeOption(v)
		}
		s.fail(n, errnoOf(err))
	case level == unix.SOL_SOCKET && (name == unix.SO_SNDBUF || name == unix.SO_SNDBUFFORCE):
		switch later, err := o.laterSndbuf(name); {
		case err != nil:
			s.fail(n, errnoOf(err))
		case later:
			s.reply(n, 0)
		default:
			s.cont(n)
		}
	default:
		err := o.set(level, name)
		if err == nil && level == unix.SOL_SOCKET && slices.Contains(getOwn, uint32(name)) {
			s.cont(n) // the kernel sets it on the pair's end, where the program reads it
			return
		}
		s.fail(n, errnoOf(err))
	}
}

// soError answers SO_ERROR, which clears the error.
func (o *optionCall) soError() {
	s, n, c := o.s, o.n, o.c
	c.calls.offer(c.s.ctx, &stoppedCall{n: n})
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil || s.sockets.conn(inode) != c {
		s.cont(n)
		return
	}
	// report.telling is set until the call has its answer, so that no other call gets
	// the same error. The mutex is not held meanwhile, because the answer is written
	// into the program's memory.
	for end := time.Now().Add(lookPatience); !c.report.telling.CompareAndSwap(false, true); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.cont(n)
			return
		}
	}
	defer c.report.telling.Store(false)
	c.mu.Lock()
	e, inPair := c.report.err, c.report.inPair
	c.mu.Unlock()
	if e == 0 {
		s.cont(n)
		return
	}
	told := e
	// The program must not see the same error a second time, as the kernel's error on
	// the pair's end. If it has seen that error already, there is nothing to report.
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
	if _, err := n.replyOnce(0); err != nil {
		s.answered(err)
		return
	}
	if c.report.err == e {
		c.report.err = 0
	}
	c.report.connected = true
	if !c.swapped {
		s.sockets.removeConn(inode, c)
	}
}

// peerName answers SO_PEERNAME, which gives an address of the size that the program
// asks for.
func (o *optionCall) peerName() error {
	n := o.n
	ap, e := o.c.peer(n)
	if e != 0 {
		return e
	}
	l, err := n.read(n.Args[4], 4, 0)
	if err != nil {
		return unix.EFAULT
	}
	sa := appendSockaddr(nil, o.c.domain, ap)
	if int(int32(binary.NativeEndian.Uint32(l))) > len(sa) {
		return unix.EINVAL
	}
	return n.writeOption(sa)
}

// giveInt answers with an option that is a C int.
func (o *optionCall) giveInt(v int) {
	o.s.fail(o.n, errnoOf(o.n.writeOption(binary.NativeEndian.AppendUint32(nil, uint32(v)))))
}

// laterSndbuf records the size that the program asks for, while its end must stay
// unwritable. It returns false if the kernel can set the size at once. It returns
// an error if the program is not allowed to set the size.
func (o *optionCall) laterSndbuf(name int) (later bool, err error) {
	n, c := o.n, o.c
	if c.calls.isOver() || int(int32(n.Args[4])) < 4 {
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
	c.pair.sndbuf, c.pair.sndbufSet = max(int(int32(binary.NativeEndian.Uint32(v))), 1), true
	return true, nil
}

// get returns the value of an option, cut to the size that the program asks for.
func (o *optionCall) get(level, name int) ([]byte, error) {
	n, c := o.n, o.c
	l, err := n.read(n.Args[4], 4, 0)
	if err != nil {
		return nil, unix.EFAULT
	}
	size := int(int32(binary.NativeEndian.Uint32(l)))
	if size < 0 {
		return nil, unix.EINVAL
	}
	if level == unix.IPPROTO_TCP && name == unix.TCP_ZEROCOPY_RECEIVE {
		return nil, unix.EINVAL // no memory of the program is a mapping of the socket
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

// set sets an option to the value in the program's memory.
func (o *optionCall) set(level, name int) error {
	n, c := o.n, o.c
	if level == unix.IPPROTO_TCP {
		switch name {
		case tcpULP:
			return unix.ENOENT // the kernel's answer without the tls module
		case tcpRepair:
			return unix.EPERM
		case unix.TCP_INQ:
			return unix.ENOPROTOOPT // nobody would add the control messages
		}
	}
	size := int(int32(n.Args[4]))
	if size < 0 || size > broker.MaxValue {
		return unix.EINVAL
	}
	v, err := n.read(n.Args[3], size, 0)
	if err != nil {
		return o.unreadable(level, name, size)
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

// isTCPLevel reports whether a TCP socket has options of a level.
func isTCPLevel(level int) bool {
	return level == unix.SOL_SOCKET || level == unix.IPPROTO_TCP || level == unix.IPPROTO_IP || level == unix.IPPROTO_IPV6
}

// unreadable returns the error of setsockopt() with a value that cannot be read: for
// some options the kernel does not look at it.
func (o *optionCall) unreadable(level, name, size int) error {
	fd, err := unix.Socket(o.c.domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return unix.EFAULT
	}
	defer unix.Close(fd)
	err = sockopt.WithRights(0, true, level, name, func() error {
		_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), nowhere, uintptr(size), 0)
		if e != 0 {
			return e
		}
		return nil
	})
	return cmp.Or(err, error(unix.EFAULT))
}

// option sets or reads an option of the TCP socket. From the time when the service
// may begin the CLC handshake, it calls service, because the service has to know what
// is set, and sets some options for its own purposes. Before that, and if the launcher
// relays, it calls here. When the connection is over, it calls here with a new socket,
// in state CLOSE. Both functions use the program's rights r.
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
	if err == nil || errors.As(err, &e) && e != unix.ENOTCONN && !errors.Is(err, broker.ErrServiceGone) {
		return err
	}
	// The connection or the session has ended, and the launcher will get the event, or the
	// service does not answer. A TCP socket takes options also then.
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rightly(r, set, level, name, here)
}

// optionVerdict returns the kernel's answer to setsockopt() of an option that many
// programs set on every connection, if the answer depends only on the value. A question
// to the service would cost the program a hundred microseconds for each option. All
// other options are not known: a new kernel may have them, or an eBPF program may
// refuse them.
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
