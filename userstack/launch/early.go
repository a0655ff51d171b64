// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file has the connections that were accepted early: see late.go.

const (
	// resetTime limits the wait for the service when a connection that nobody
	// accepts must be reset.
	resetTime = time.Second
	// earlyShare is the part of the copies of ends that connections accepted
	// early may use: 1/earlyShare.
	earlyShare = 4
)

// takeEarly accepts connections from the queue q of the listening socket fd, at
// most as many as the backlog, and puts a placeholder into the queue. l.mu is
// held.
func (l *listener) takeEarly(fd int, q queue) {
	e := &l.early
	o, err := l.owner()
	if err != nil {
		return
	}
	room := min(int64(q.max+1-l.spare.len()), l.s.earlyHeld.left())
	if e.shared {
		room = 0 // only the placeholder is missing
	}
	if room <= 0 && e.place != nil {
		return
	}
	takeOne := func() bool {
		a, err := takeAs(fd, o)
		if err != nil {
			return false
		}
		if !l.popped(a) {
			room--
			l.hold(a)
		}
		return true
	}
	n := q.waiting
	// There must be room for the placeholder in the queue, and others fill it. One connection
	// stays, so that the socket is readable. If no placeholder was possible until now, it may
	// never be: then all stay that fit.
	for (n > q.max || e.placed && n > 1) && room > 0 && takeOne() {
		n--
	}
	if n > q.max {
		return // the program sees these
	}
	p := e.makePlace(fd)
	if p == nil {
		return
	}
	e.place = p // the placeholder before it is first in the queue

	if p.sub, err = l.s.poll.watch(p.fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLONESHOT, func(uint32) { l.early.wake() }); err != nil {
		l.s.log.Debug("cannot watch a placeholder", "err", err)
	}
	// Connections that arrived in between are also before the placeholder. They
	// wait for the next look.
	for ; n > 0 && room > 0 && e.place != nil; n-- {
		if !takeOne() {
			break
		}
	}
	if l.spare.len() == 0 {
		l.vacate(fd, o)
	}
}

// makePlace puts a placeholder into the queue of the listening socket fd. It returns nil, and
// says when to try again, if that was not possible. l.mu is held.
func (e *early) makePlace(fd int) *placeholder {
	patience := min(placeTime<<e.slow, placeTimeMax)
	p, err := e.l.s.places.place(fd, patience)
	switch {
	case err == nil:
		e.placed, e.slow = true, 0
		return p
	case e.placed:
		e.before = time.Now().Add(lateDelay) // the machine is busy, or the queue was filled again
	case errors.Is(err, errPlaceSlow) && patience < placeTimeMax:
		e.slow++
		e.before = time.Now() // the next look gives it more time
	default:
		if !e.told {
			e.told = true
			e.l.s.log.Info("cannot accept early: clients with SMC wait for the program", "address", localAddr(fd), "err", err)
		}
		e.before = time.Now().Add(lateRetry)
	}
	return nil
}

// owner returns the user who must own the connections: the one who accepted
// last, or listens. l.mu is held.
func (l *listener) owner() (owner, error) {
	if o := (launcherIDs()); o.uid != 0 {
		return o, nil
	}
	return ownerOf(l.early.tid)
}

// hold keeps an accepted connection for a later accept(). l.mu is held.
func (l *listener) hold(a *accepted) {
	l.early.taken++
	a.done = make(chan struct{})
	l.spare.add(a)
	l.s.earlyHeld.add()
	l.todo.add(a)
	l.askMore()
}

// shift removes and returns the first connection that waits for an accept(). The service is
// asked about it. l.mu is held.
func (l *listener) shift() *accepted {
	a := l.spare.take()
	l.s.earlyHeld.give()
	if l.todo.remove(a) {
		l.ask(a)
	}
	return a
}

// discard removes and returns the first connection that waits for an accept(), which no call
// gets. l.mu is held. The caller must not wait for it before it releases l.mu.
func (l *listener) discard() *accepted {
	a := l.spare.take()
	l.s.earlyHeld.give()
	if l.todo.remove(a) {
		close(a.done) // nobody has to be asked
	}
	return a
}

// popped reports whether a is a placeholder, which is over then, or what is left of one.
// l.mu is held.
func (l *listener) popped(a *accepted) bool {
	p, ok := l.s.places.take(a)
	if !ok {
		return false
	}
	_ = unix.Close(a.sock)
	if p != nil && l.early.place == p {
		l.early.place = nil
	}
	return true
}

// take accepts a connection for call n as the function take does, and skips
// placeholders. l.mu is held.
func (l *listener) take(fd int, n *notif) (*accepted, error) {
	for {
		a, err := take(fd, n)
		if err != nil {
			return nil, err
		}
		if !l.popped(a) {
			l.early.taken++
			return a, nil
		}
	}
}

// takeAs accepts a connection that belongs to o, or fails with EAGAIN.
func takeAs(fd int, o owner) (*accepted, error) {
	if !readable(fd) {
		return nil, unix.EAGAIN
	}
	a, err := takeReady(fd, false, o.make)
	if a != nil {
		a.readDefer(fd)
	}
	return a, err
}

// takeReady accepts a connection that is in the queue. make runs the system
// call as the owner of the connection.
func takeReady(fd int, nonblock bool, make func(accept func() error) error) (*accepted, error) {
	a := &accepted{domain: unix.AF_INET, nonblock: nonblock}
	flags := uintptr(unix.SOCK_CLOEXEC)
	if nonblock {
		flags |= unix.SOCK_NONBLOCK
	}
	var sa [unix.SizeofSockaddrInet6]byte
	size := uint32(len(sa))
	if err := make(func() error {
		sock, _, e := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), flags, 0, 0)
		if e != 0 {
			return e
		}
		a.sock = int(sock)
		return nil
	}); err != nil {
		return nil, err
	}
	a.remote, _ = parseSockaddr(sa[:min(int(size), len(sa))])
	if binary.NativeEndian.Uint16(sa[:]) == unix.AF_INET6 {
		a.domain = unix.AF_INET6
	}
	return a, nil
}

// readDefer reads TCP_DEFER_ACCEPT of fd, the listening socket.
func (a *accepted) readDefer(fd int) {
	a.deferAccept, _ = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT)
}

// next returns the first connection that was accepted early, or nil. fd is the
// listening socket of the call. l.mu is held.
func (l *listener) next(fd int) *accepted {
	if l.spare.len() == 0 {
		return nil
	}
	a := l.shift()
	if l.spare.len() == 0 && l.early.place != nil {
		if o, err := l.owner(); err == nil {
			l.vacate(fd, o)
		}
	}
	return a
}

// vacate removes the placeholder from the queue of the listening socket fd, and
// keeps the connections before it. l.mu is held.
func (l *listener) vacate(fd int, o owner) {
	for l.early.place != nil {
		a, err := takeAs(fd, o)
		if errors.Is(err, unix.EAGAIN) {
			l.early.dropPlace() // another process has it
			return
		}
		if err != nil {
			return
		}
		if l.popped(a) {
			continue
		}
		l.hold(a)
	}
	if l.spare.len() > 0 {
		l.refill(fd)
	}
}

// refill puts a placeholder into the queue of the listening socket fd again.
// l.mu is held.
func (l *listener) refill(fd int) {
	if l.early.place != nil || l.early.watch < 0 {
		return
	}
	if q, err := acceptQueue(fd); err == nil && q.listens && q.waiting <= q.max {
		q.waiting = 0
		l.takeEarly(fd, q)
	}
}

// makeReset resets a connection that cannot be used. The program gets a
// connection that reads ECONNRESET, as with a TCP connection that was reset in
// the backlog. On Linux, accept() does not fail for this reason; an error would
// end many servers. It returns false if this is not possible.
func (l *listener) makeReset(a *accepted) bool {
	defer unix.Close(a.sock)
	_ = unix.SetsockoptLinger(a.sock, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if a.pair != nil {
		a.pair.close()
	}
	p, err := newPair(a.sock, false, false)
	if err != nil {
		return false
	}
	// Closing an end with unread data resets the pair.
	if err := unix.Sendto(p.app, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); err != nil {
		p.close()
		return false
	}
	p.closeEnd()
	a.pair, a.cc, a.passed, a.follows = p, nil, true, true
	c := a.conn(nil, l.s)
	c.mu.Lock()
	c.report.err, c.report.inPair = unix.ECONNRESET, true
	c.over, c.waits = true, true
	c.mu.Unlock()
	l.s.sockets.retire(c)
	return true
}

// await waits until the service has been asked about a.
func (a *accepted) await() {
	if a.done != nil {
		<-a.done
	}
}

// goOn lets the service carry a connection that no call has got yet.
func (l *listener) goOn(a *accepted) {
	if a.pair == nil || a.follows {
		return
	}
	c := a.conn(nil, l.s)
	c.mu.Lock()
	c.waits = true
	c.mu.Unlock()
	a.pass()
	a.follows = true
	l.carry(a)
}

// keep holds a connection for the next accept(), or gives it to a waiter.
func (l *listener) keep(a *accepted) {
	l.goOn(a)
	l.mu.Lock()
	for len(l.waiters) > 0 {
		w := l.waiters[0]
		l.dropWaiters(func(o *waiter) bool { return o == w })
		if w.n.valid() {
			l.s.answerLater(w.n, func() { l.deliver(w.n, a) })
			l.mu.Unlock()
			return
		}
	}
	// The connection belongs before all others: its call came first.
	l.spare.addFirst(a)
	l.s.earlyHeld.add()
	begin := !l.early.running && !l.early.closed && l.early.watch >= 0
	l.early.running = l.early.running || begin
	l.mu.Unlock()
	if begin {
		l.s.tasks.begin(earlyTask, func() { l.early.look(0) })
	} else {
		l.early.wake()
	}
}

// abandon resets the connections that no accept() has got, as the kernel does
// when a listening socket is closed. l.mu is held.
func (l *listener) abandon() {
	for l.spare.len() > 0 {
		a := l.discard()
		l.s.tasks.begin(earlyTask, func() { a.reset(l.s.ctx) })
	}
	for a := range l.deferred {
		l.unhold(a)
		l.s.tasks.begin(earlyTask, func() { a.reset(l.s.ctx) })
	}
}

// reset resets a connection that no call gets any more.
func (a *accepted) reset(ctx context.Context) {
	a.await()
	now := unix.Linger{Onoff: 1}
	switch {
	case a.unusable:
		return
	case a.pair == nil:
		_ = unix.SetsockoptLinger(a.sock, unix.SOL_SOCKET, unix.SO_LINGER, &now)
		_ = unix.Close(a.sock)
		return
	case !a.follows:
		a.close()
		return
	}
	if a.cc == nil {
		a.leave()
		return
	}
	a.c.mu.Lock()
	if a.c.tcp >= 0 {
		_ = unix.SetsockoptLinger(a.c.tcp, unix.SOL_SOCKET, unix.SO_LINGER, &now)
	}
	a.c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resetTime)
	defer cancel()
	v := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 1), 0)
	_ = a.c.cc.SetOption(ctx, 0, unix.SOL_SOCKET, unix.SO_LINGER, v)
	a.leave()
}

// leave closes the launcher's descriptor of the program's end.
func (a *accepted) leave() {
	a.c.mu.Lock()
	defer a.c.mu.Unlock()
	a.c.waits = false
	a.pair.closeApp()
}

// carryEarly carries a connection over the placeholder that a process has accepted in
// its place. fd is the launcher's end of the placeholder. The process sees an address of
// this host as the address of its peer.
func (s *supervisor) carryEarly(a *accepted, fd int) {
	outer, err := streamOf(fd)
	if err != nil {
		a.reset(s.ctx)
		return
	}
	defer outer.Close()
	a.await()
	if a.unusable {
		return
	}
	sock := a.sock
	if a.pair != nil {
		a.c.mu.Lock()
		sock, a.pair.app, a.c.waits = a.pair.app, -1, false
		a.c.mu.Unlock()
	}
	inner, err := streamOf(sock)
	if err != nil {
		return
	}
	defer inner.Close()
	stop := context.AfterFunc(s.ctx, func() { _ = inner.Close(); _ = outer.Close() })
	defer stop()
	var wg sync.WaitGroup
	for _, d := range [][2]halfConn{{inner, outer}, {outer, inner}} {
		wg.Go(s.tasks.guard.Func(connTask, func() {
			if _, err := io.Copy(d[1], d[0]); err != nil {
				_ = inner.Close()
				_ = outer.Close()
				return
			}
			_ = d[1].CloseWrite()
		}))
	}
	wg.Wait()
}

// halfConn is a connection one direction of which can be closed.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// streamOf makes a connection of fd, which it consumes.
func streamOf(fd int) (halfConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	if f == nil {
		return nil, os.ErrClosed
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	h, ok := c.(halfConn)
	if !ok {
		_ = c.Close()
		return nil, errNotSocket
	}
	return h, nil
}
