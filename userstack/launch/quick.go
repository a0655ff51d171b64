// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"golang.org/x/sys/unix"
)

// This file answers calls on connections that are known to be TCP, without the
// stack. The stack is told later (see notes).

// connectHere lets the kernel do a connect() to an address of this machine, or to
// one for which SMC is not useful, and returns true. Otherwise it returns false.
// The receiver calls it.
func (s *supervisor) connectHere(n *notif) bool {
	remote, _, err := n.sockaddr()
	if err != nil || !remote.IsValid() {
		return false
	}
	var because outcome
	local := s.sessions.staysHere(remote.Addr())
	if !local {
		tcp := false
		if s.worth.any() && s.sessions.live() != nil {
			because, tcp = s.worth.now(time.Now(), remote)
		}
		if !tcp {
			return false
		}
	}
	fd, err := s.looks.threads.getFD(n.tid(), n.fdArg())
	if err != nil {
		return false
	}
	closed := false
	closeIt := func() {
		if !closed {
			closed = true
			_ = unix.Close(fd)
		}
	}
	defer closeIt()
	if s.sockets.anyToAsk() {
		inode, err := inodeOf(fd)
		if err != nil {
			return false
		}
		if c, d := s.sockets.connOrDecision(inode); c != nil || d != nil {
			return false
		}
	}
	if p, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || p != unix.IPPROTO_TCP {
		return false
	}
	switch {
	case !local:
		s.leftToTCP(fd, true, because)
	case isClosed(fd): // otherwise the call makes no connection
		s.stats.local()
	}
	closeIt() // before the answer: see handOver
	s.cont(n)
	return true
}

// isClosed reports whether a TCP socket is not connected and does not listen.
func isClosed(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == tcpClose
}

// acceptHere answers accept() of a non-blocking listener if there is no
// connection, or one over TCP, or begins the answer. Otherwise it returns
// false. The receiver calls it.
func (s *supervisor) acceptHere(n *notif) bool {
	if n.Nr == unix.SYS_ACCEPT4 && n.Args[3]&^(unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0 {
		return false
	}
	b := s.sessions.live()
	if b == nil || !b.ByOption() {
		return false
	}
	fd, inode, err := s.looks.copied(n)
	if err != nil {
		return false
	}
	closed := false
	closeIt := func() {
		if !closed {
			closed = true
			_ = unix.Close(fd)
		}
	}
	defer closeIt()
	l := s.sockets.listener(inode)
	if l == nil || l.saves.Load() || !l.knows(b) {
		return false
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		return false
	}
	if !l.mu.TryLock() {
		return false
	}
	if l.spare.len() > 0 {
		l.mu.Unlock()
		return false
	}
	l.early.seen(n)
	a, err := l.take(fd, n)
	l.mu.Unlock()
	without := err == nil && a.readSYN() == synWithout
	if err == nil && !without {
		a.readDefer(fd)
	}
	closeIt() // before the answer: see copies
	switch {
	case err != nil:
		s.fail(n, errnoOf(err))
	case without:
		l.overTCP(a)
		l.deliver(n, a)
	default:
		n.here = false
		s.begin(n, func() { l.offer(n, a) })
	}
	return true
}

// copied duplicates the socket that call n names, and returns its inode number.
// Only the receiver may call it, because it is watched.
func (x *looks) copied(n *notif) (fd int, inode uint64, err error) {
	if fd, err = x.threads.getFD(n.tid(), n.fdArg()); err != nil {
		return -1, 0, err
	}
	if inode, err = inodeOf(fd); err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	return fd, inode, nil
}

// inodeOf returns the inode number of a socket.
func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0, errNotSocket
	}
	return st.Ino, nil
}
