// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// setsDefer reports whether n sets TCP_DEFER_ACCEPT.
func (n *notif) setsDefer() bool {
	return n.Nr == unix.SYS_SETSOCKOPT && int32(n.Args[1]) == unix.IPPROTO_TCP && int32(n.Args[2]) == unix.TCP_DEFER_ACCEPT
}

// tellsDefer tells the stack of TCP_DEFER_ACCEPT on a listening socket before the call
// returns: two programs are not joined then, because the kernel completes the connection
// when data comes over TCP. It returns false if there is nothing to tell.
func (s *supervisor) tellsDefer(n *notif) bool {
	if !n.setsDefer() || !s.sockets.anyListener() {
		return false
	}
	b := s.sessions.live()
	if b == nil || !b.Local() {
		return false
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		return false
	}
	l := s.sockets.listener(inode)
	if l == nil {
		return false
	}
	s.begin(n, func() {
		l.tellDefer(n, b)
		s.cont(n) // the kernel sets it again, and reports what is wrong with the value
	})
	return true
}

// tellDefer sets the option and has the stack look at the socket.
func (l *listener) tellDefer(n *notif, b Broker) {
	v, err := n.read(n.Args[3], 4, lookPatience)
	if err != nil || n.Args[4] < 4 {
		return
	}
	c := &socketCopy{-1, l.s.copies.begin()}
	defer c.close()
	if c.fd, err = l.s.looks.socket(n, n.tid(), n.fdArg(), l.inode, lookPatience); err != nil {
		c.fd = -1
		return
	}
	if unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, int(int32(binary.NativeEndian.Uint32(v)))) == nil {
		_ = l.mark(b, c.fd)
	}
}
