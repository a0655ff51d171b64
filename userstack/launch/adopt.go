// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// A program can accept connections on a listening socket that it got from another program:
// over a unix socket (SCM_RIGHTS), or by exec. If a launcher has announced SMC on it, peers
// send CLC messages. So this launcher must ask the stack about each connection, as it does for
// the sockets on which its program called listen(): it adopts the socket at the first
// accept(). A socket on which nothing is announced stays as it is, because processes without
// launcher may accept on it too.

// adopter is a Broker that can adopt. *broker.Client is one.
type adopter interface {
	Adopt(ctx context.Context, sock int) error
}

// maxForeign limits the sockets that are remembered not to be adopted.
const maxForeign = 1024

// foreign has the sockets, by inode, on which accept() is the kernel's. It forgets all of them
// when there are too many.
type foreign struct {
	mu     sync.Mutex
	inodes map[uint64]struct{}
}

func (f *foreign) has(inode uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.inodes[inode]
	return ok
}

func (f *foreign) add(inode uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inodes == nil || len(f.inodes) >= maxForeign {
		f.inodes = map[uint64]struct{}{}
	}
	f.inodes[inode] = struct{}{}
}

// notAnnounced is the reason of a socket that cannot be adopted.
const notAnnounced = "SMC is not announced on the socket"

// mayBeAnnounced returns notAnnounced for a socket on which no stack announces SMC. A stack
// has the kernel save the SYNs of the socket, but programs may have asked for that, too.
func mayBeAnnounced(fd int) string {
	for _, want := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_ACCEPTCONN, 1},
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
		{unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1},
	} {
		if v, err := unix.GetsockoptInt(fd, want.level, want.name); err != nil || v < want.value {
			return notAnnounced
		}
	}
	return ""
}

// adopt answers the first accept() on a socket on which the program has not called listen()
// under this launcher.
func adopt(s *supervisor, n *notif, inode uint64) {
	c := &socketCopy{-1, s.copies.begin()}
	defer c.close() // it is closed before each answer: see copies
	fd, reason, err := s.looks.checkedSocket(n, n.tid(), n.fdArg(), inode, lookPatience, mayBeAnnounced)
	switch {
	case reason != "":
		s.sockets.foreign.add(inode)
		c.close()
		s.cont(n)
		return
	case err != nil:
		c.close()
		s.refuseAccept(n, err)
		return
	}
	c.fd = fd
	if err := s.adopts(n, fd, inode); err != nil {
		c.close()
		s.cont(n)
		return
	}
	c.close()
	l := s.sockets.listener(inode)
	if l == nil {
		s.cont(n)
		return
	}
	s.log.Debug("a listening socket of another program is adopted")
	l.accept(n)
}

// adopts adopts a listening socket, of which fd is a copy.
func (s *supervisor) adopts(n *notif, fd int, inode uint64) error {
	l := newListener(s, inode)
	l.adopted = true
	b, err := s.sessions.open(func(b Broker) error { return l.mark(b, fd) })
	if err != nil {
		l.early.disarm()
		if errors.Is(err, unix.ENOENT) || errors.Is(err, errors.ErrUnsupported) {
			s.sockets.foreign.add(inode)
		}
		return err
	}
	l.known.Store(&b)
	l.early.arm(n, fd)
	if !s.sockets.addListener(l) {
		l.early.disarm()
	}
	return nil
}

// newListener makes a listener.
func newListener(s *supervisor, inode uint64) *listener {
	l := &listener{s: s, inode: inode, fd: -1, queue: -1, early: early{watch: -1}}
	l.early.l = l
	return l
}

// mark has the service of session b mark the listening socket fd.
func (l *listener) mark(b Broker, fd int) error {
	if !l.adopted {
		return l.s.mark(b, fd)
	}
	a, ok := b.(adopter)
	if !ok {
		return errors.ErrUnsupported
	}
	ctx, cancel := context.WithTimeout(l.s.ctx, listenTimeout)
	defer cancel()
	return a.Adopt(ctx, fd)
}
