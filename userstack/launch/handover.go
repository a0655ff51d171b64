// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// A program may close a descriptor as soon as it has it, and its peer must see this at once. So
// when a call is answered, the launcher has no descriptor of the file any more. Otherwise the peer
// would wait until a busy machine lets the launcher go on. It might even wait for ever: since
// Linux 6.10, epoll_wait() holds the files at which it looks. If the launcher closes its own
// descriptor then, the kernel closes the file when epoll_wait() returns, which needs another
// event.
//
// A descriptor that is placed together with the answer is held by the request itself until after
// the answer. So there are two requests. Between them, a signal may interrupt the call, which then
// does not return the number; the next call does.
//
// If the signal comes together with the answer, the kernel takes the answer and the call does not
// return it, which nobody can see: the program would have a descriptor that it does not know, and
// the peer no answer. So if signals interrupt calls of the program (notify.signals), there is one
// request, which is certain. What it holds until the launcher goes on is the lesser evil: it matters
// once in some 100,000 short connections.

// A placing is a descriptor in a process, placed for a call that was interrupted before its answer.
type placing struct {
	tgid, fd int // tgid 0: none
	cloexec  bool
}

// handOver places the program's end of a in the process of call n, closes that of the launcher, and
// answers the call with the number of the descriptor. If the call was interrupted, the error is
// one of isGone, and a is as before, to be kept for the next call.
func (l *listener) handOver(n *notif, a *accepted, cloexec bool) (fd int, err error) {
	fd, placed := a.placedFor(n, cloexec)
	if n.l.signals() {
		if !placed {
			fd = -1
		}
		if fd, err = n.addAndReply(a.program(), fd, cloexec); err != nil {
			return -1, err
		}
		a.placed = placing{}
		a.letGo()
		return fd, nil
	}
	a.placed = placing{}
	if !placed {
		if fd, err = n.place(a.program(), cloexec); err != nil {
			return -1, err
		}
	}
	a.letGo()
	if n.reply(fd) == nil {
		return fd, nil
	}
	if !l.takeBack(n, a, fd) {
		return fd, nil // the program has closed it or has ended, which the peer sees
	}
	if tgid, err := l.s.looks.threads.tgid(n.tid()); err == nil {
		a.placed = placing{tgid, fd, cloexec}
	}
	return -1, unix.ENOENT
}

// placedFor returns the descriptor that an interrupted call has left for n.
func (a *accepted) placedFor(n *notif, cloexec bool) (fd int, ok bool) {
	p := a.placed
	if p.tgid == 0 || p.cloexec != cloexec {
		return -1, false
	}
	tgid, err := n.l.looks.threads.tgid(n.tid())
	if err != nil || tgid != p.tgid {
		return -1, false
	}
	inode, err := inodeOf(a.program())
	return p.fd, err == nil && isLinked(n.tid(), p.fd, inode)
}

// letGo closes the launcher's descriptor of the program's end.
func (a *accepted) letGo() {
	if a.pair != nil {
		a.leave()
		return
	}
	_ = unix.Close(a.sock)
	a.sock = -1
}

// takeBack duplicates the program's end of a, which is descriptor fd of the process of n.
func (l *listener) takeBack(n *notif, a *accepted, fd int) bool {
	inode, err := socketInode(n.tid(), fd)
	if err != nil || a.pair != nil && a.pair.inode != inode {
		return false
	}
	back, _, err := l.s.looks.checkedSocket(n, n.tid(), fd, inode, lookPatience, func(fd int) string {
		if a.pair != nil {
			return ""
		}
		if sa, err := bounded.Peername(fd); err != nil || toAddrPort(sa) != a.remote {
			return notTCP
		}
		return ""
	})
	if err != nil {
		return false
	}
	if a.pair == nil {
		a.sock = back
		return true
	}
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.pair.app, a.c.waits = back, true
	return true
}
