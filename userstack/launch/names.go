// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import "golang.org/x/sys/unix"

// getname answers getsockname() and getpeername() with the TCP addresses.
func (s *supervisor) getname(n *notif, c *conn) {
	c.calls.offer(c.s.ctx, &stoppedCall{n: n})
	if s.connOf(n) != c {
		s.cont(n)
		return
	}
	c.mu.Lock()
	phase, swapped, inPair, over, ap := c.phase, c.swapped, c.report.inPair, c.over, c.local
	if phase != phaseCarried && c.tcp >= 0 {
		ap = localAddr(c.tcp)
	}
	c.mu.Unlock()
	if !swapped {
		s.cont(n)
		return
	}
	if n.Nr == unix.SYS_GETPEERNAME {
		// The program sees the reset before the service sends its last event.
		if phase != phaseCarried || inPair && (over || c.cut(n)) {
			s.fail(n, unix.ENOTCONN)
			return
		}
		ap = c.remote
	}
	err := n.writeSockaddr(n.Args[1], n.Args[2], appendSockaddr(nil, c.domain, ap), false)
	s.fail(n, errnoOf(err))
}

// cut reports whether the other end of the program's end, which n concerns, is closed.
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
