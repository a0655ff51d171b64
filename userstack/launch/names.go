// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// getname answers getsockname() and getpeername() with the TCP addresses.
func (s *supervisor) getname(n *notif, c *conn) {
	c.calls.offer(c.s.ctx, &stoppedCall{n: n})
	if s.connOf(n) != c {
		s.cont(n)
		return
	}
	c.mu.Lock()
	swapped, ap := c.swapped, c.local
	if c.phase != phaseCarried && c.tcp >= 0 {
		ap = localAddr(c.tcp)
	}
	c.mu.Unlock()
	if !swapped {
		s.cont(n)
		return
	}
	if n.Nr == unix.SYS_GETPEERNAME {
		var e syscall.Errno
		if ap, e = c.peer(n); e != 0 {
			s.fail(n, e)
			return
		}
	}
	err := n.writeSockaddr(n.Args[1], n.Args[2], appendSockaddr(nil, c.domain, ap), false)
	s.fail(n, errnoOf(err))
}

// peer returns the address of the peer, or ENOTCONN. n is a call on the program's end.
func (c *conn) peer(n *notif) (netip.AddrPort, syscall.Errno) {
	c.mu.Lock()
	phase, inPair, over := c.phase, c.report.inPair, c.over
	c.mu.Unlock()
	// The program sees the reset before the service sends its last event.
	if phase != phaseCarried || inPair && (over || c.cut(n)) || c.isDirect() && c.wasReset(n) {
		return netip.AddrPort{}, unix.ENOTCONN
	}
	return c.remote, 0
}

// cut reports whether the other end of the program's end, which n concerns, is closed.
func (c *conn) cut(n *notif) bool { return c.polls(n)&unix.POLLHUP != 0 }

// wasReset reports whether the other program has reset a connection without a process between the
// two, and the program has not read the error yet. A shutdown in both directions is no reset.
func (c *conn) wasReset(n *notif) bool { return c.polls(n)&unix.POLLERR != 0 }

// polls returns the events of the program's end, which n concerns, that are always reported.
func (c *conn) polls(n *notif) int16 {
	c.mu.Lock()
	inode := c.pair.inode
	c.mu.Unlock()
	fd, err := c.s.looks.socket(n, n.tid(), n.fdArg(), inode, lookPatience)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	return polled(fd)
}
