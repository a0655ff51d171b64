// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// A connection between two programs of one host is a socketpair of which each has
// an end. The service made it and gives the program's end (broker.EventLocal);
// nobody else has one, so there is no keeper, and nothing to relay or to reset.

// ReasonNotPlaced tells of a connection to a program of the same host that is TCP.
const ReasonNotPlaced = "the stack answered too late for a local connection"

// localPairOf makes a pair of which only the program's end is here.
func localPairOf(d *broker.Descriptor, tcp int) (*pair, error) {
	p := &pair{app: d.Take(), end: -1, sndbuf: pairSndbuf}
	var st unix.Stat_t
	if err := unix.Fstat(p.app, &st); err != nil {
		p.close()
		return nil, os.NewSyscallError("fstat", err)
	}
	p.inode = st.Ino
	p.carryOptions(tcp)
	if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_SNDBUF, p.sndbuf); err != nil {
		p.close()
		return nil, os.NewSyscallError("setsockopt SO_SNDBUF", err)
	}
	return p, nil
}

// setEnd has the program's descriptor be the end of p, by call n.
func (a *attempt) setEnd(n *notif, nonblock bool, p *pair) error {
	if a.swapped { // by a pair that nobody will need
		app, err := a.s.looks.socket(n, n.tid(), n.fdArg(), a.pair.inode, lookPatience)
		if err != nil {
			return err
		}
		defer unix.Close(app)
		old, err := a.replace(n, app, p)
		if err == nil {
			a.sub.stop()
			a.sub = nil
			old.close()
		}
		return err
	}
	if err := unix.SetNonblock(p.app, nonblock); err != nil {
		return err
	}
	a.mu.Lock()
	a.pair = p
	a.mu.Unlock()
	err := a.swapIn(n, nonblock)
	if err != nil {
		a.mu.Lock()
		a.pair = nil
		a.mu.Unlock()
	}
	return err
}

// replace puts the end of p in the place of app, the end that the program has, by call
// n on it. What was written into the old pair is lost.
func (c *conn) replace(n *notif, app int, p *pair) (old *pair, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shared(n.tid(), n.fdArg(), c.pair.inode) {
		return nil, errShared
	}
	f, err := unix.FcntlInt(uintptr(app), unix.F_GETFL, 0)
	if err == nil {
		err = unix.SetNonblock(p.app, f&unix.O_NONBLOCK != 0)
	}
	if err != nil {
		return nil, err
	}
	p.carryAsync(app, n)
	c.s.sockets.addConn(p.inode, c)
	if err := c.s.exchange(n, c.pair.inode, app, p.app); err != nil {
		c.s.sockets.removeConn(p.inode, c)
		return nil, err
	}
	old = c.pair
	c.s.sockets.removeConn(old.inode, c)
	c.pair = p
	p.closeApp()
	return old, nil
}

// # Detours
//
// What two programs cannot do to each other over their pair takes a detour: the
// program's end is replaced by one of a new pair, whose other end the service gets,
// with the former end, and carries the bytes between them, as over SMC-R.
//
//	the program                  | because
//	sets SO_LINGER to 0 seconds  | the kernel makes no reset of its close
//	sends urgent data            | a second urgent byte would make the first a
//	                             | byte like others

// detour is the request for one, by call n of the program.
type detour struct {
	n    *notif
	done chan struct{}
}

// detourQueue passes requests for a detour to the goroutine that follows the
// connection.
type detourQueue struct {
	ch   chan *detour
	over chan struct{} // closed when nobody carries detours out any more
}

// requests returns the channel of requests. It is nil, and blocks for ever, for a
// connection that can have none.
func (q *detourQueue) requests() chan *detour {
	if q == nil {
		return nil
	}
	return q.ch
}

// takesDetour sends a local connection on a detour before call n, which stops here
// for that, goes on. Where that is not possible, such as for a descriptor that the
// process has twice, the call has less of an effect than on TCP.
func (c *conn) takesDetour(n *notif) {
	d := &detour{n, make(chan struct{})}
	select {
	case c.detours.ch <- d:
		<-d.done
	case <-c.detours.over:
	case <-c.s.ctx.Done():
	}
}

// detour carries out d. The goroutine that follows the connection calls it.
func (c *conn) detour(d *detour) {
	defer close(d.done)
	if c.pair.end >= 0 {
		return // it is on one
	}
	if err := c.divert(d.n); err != nil {
		c.s.log.Debug("the connection takes no detour", "conn", c.cc.ID(), "err", err)
	}
}

func (c *conn) divert(n *notif) error {
	// The call waits for it, as long as it takes.
	former, err := c.s.looks.socket(n, n.tid(), n.fdArg(), c.pair.inode, 0)
	if err != nil {
		return err
	}
	defer unix.Close(former)
	p, err := newPair(former, false, false)
	if err != nil {
		return err
	}
	if _, err := c.replace(n, former, p); err != nil {
		p.close()
		return err
	}
	if err := c.cc.Detour(former, p.end); err != nil {
		// The session is over: so is the connection, as it would be over SMC-R.
		c.s.log.Debug("cannot pass a connection's ends", "conn", c.cc.ID(), "err", err)
	}
	c.keepEnd()
	return nil
}

// offeredLocal makes an accepted connection of the end that the service gave. It
// returns false if a is unusable.
func (l *listener) offeredLocal(a *accepted, b Broker, cc *broker.ClientConn, end *broker.Descriptor) bool {
	var err error
	if end != nil {
		a.pair, err = localPairOf(end, a.sock)
	}
	if a.pair == nil {
		// This process has no descriptor left, and the peer takes the connection
		// for made.
		l.s.log.Warn("connection dropped", "remote", a.remote, "err", err)
		_ = cc.Cancel()
		return false
	}
	a.cc, a.broker, a.local = cc, b, true
	l.s.stats.mode(broker.ModeLocal)
	return true
}

// direct makes c a connection whose other end a program has.
func (c *conn) direct() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detours = &detourQueue{ch: make(chan *detour), over: make(chan struct{})}
}

// isDirect reports whether it is one, or was.
func (c *conn) isDirect() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.detours != nil
}

// passLocal lets go of the TCP socket: the service has it, and needs no end.
func (a *accepted) passLocal() {
	if !a.passed {
		_ = unix.Close(a.sock)
		a.passed, a.served, a.c.unready = true, true, false
		a.c.direct()
	}
}

// sendsUrgent lets a call that sends urgent data go on.
func (s *supervisor) sendsUrgent(n *notif, c *conn) {
	if c.isDirect() {
		c.takesDetour(n)
	}
	s.cont(n)
}

// setsAbort reports whether a setsockopt() of SO_LINGER makes the program's close a
// reset.
func (n *notif) setsAbort() bool {
	v, err := n.read(n.Args[3], 8, 0)
	return err == nil && binary.NativeEndian.Uint32(v) != 0 && binary.NativeEndian.Uint32(v[4:]) == 0
}
