// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// A connection between two programs of one host is a socketpair, and each
// program has one end. The service made it, keeps descriptors of both ends, and
// passes the program's end (broker.EventLocal). The launcher keeps no copy of an
// end, and there is nothing to relay or to reset.

// localPairOf makes a pair of the program's end alone; the launcher does not
// have the other end.
func localPairOf(d *broker.Descriptor, tcp int) (*pair, error) {
	p := &pair{app: d.Take(), end: -1}
	var st unix.Stat_t
	if err := unix.Fstat(p.app, &st); err != nil {
		p.close()
		return nil, os.NewSyscallError("fstat", err)
	}
	p.inode = st.Ino
	p.carryOptions(tcp)
	if p.sndbuf == 0 {
		return p, nil // the service has set it
	}
	if err := p.setSndbuf(p.app); err != nil {
		p.close()
		return nil, os.NewSyscallError("setsockopt SO_SNDBUF", err)
	}
	return p, nil
}

// setEnd replaces the program's descriptor with the program's end of p, by answering
// call n.
func (a *attempt) setEnd(n *notif, nonblock bool, p *pair) error {
	if a.swapped { // the program has a pair that is not needed
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

// replace replaces app, the end that the program has, with the program's end of p. n is
// the call on app. Bytes in the old pair are lost.
func (c *conn) replace(n *notif, app int, p *pair) (old *pair, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.s.ends.unique(n, c.pair.inode, nil); err != nil {
		return nil, err
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
// Urgent data does not work over the pair between two programs: a second urgent
// byte makes the first one an ordinary byte. So the connection takes a detour
// first: the program's end is replaced by one end of a new pair. The service gets
// the other end and the former end, and carries the bytes between them, as over
// SMC-R.

// takesDetour makes a local connection take a detour before call n continues.
// If this is not possible, for example because the process has the descriptor
// twice, the call has a smaller effect than on TCP.
func (c *conn) takesDetour(n *notif) {
	d := &detour{n, make(chan struct{})}
	select {
	case c.detours.ch <- d:
		<-d.done
	case <-c.detours.over:
	case <-c.s.ctx.Done():
	}
}

// detour does what d requests. The goroutine that follows the connection calls
// it.
func (c *conn) detour(d *detour) {
	defer close(d.done)
	if c.pair.end >= 0 {
		return // it already takes a detour
	}
	if err := c.divert(d.n); err != nil {
		c.s.log.Debug("the connection takes no detour", "conn", c.cc.ID(), "err", err)
	}
}

// divert replaces the program's end, with call n, and passes the service both ends
// that it needs.
func (c *conn) divert(n *notif) error {
	// The call waits without a limit.
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
		// The session is over, so the connection ends, as it would over SMC-R.
		c.s.log.Debug("cannot pass a connection's ends", "conn", c.cc.ID(), "err", err)
	}
	c.keepEnd()
	return nil
}

// offeredLocal makes an accepted connection from the end that the service
// passed. It returns false if a cannot be used.
func (l *listener) offeredLocal(a *accepted, b Broker, cc *broker.ClientConn, ev broker.Event) bool {
	var err error
	if ev.End != nil {
		a.pair, err = localPairOf(ev.End, a.sock)
	}
	if a.pair == nil {
		// This process has no free descriptor, and for the peer the connection
		// is already established.
		l.s.log.Warn("connection dropped", "remote", a.remote, "err", err)
		_ = cc.Cancel()
		return false
	}
	a.cc, a.broker, a.local = cc, b, true
	l.s.stats.mode(broker.ModeLocal)
	return true
}

// passLocal closes the launcher's TCP socket. The service has it and needs no
// end of the pair.
func (a *accepted) passLocal() {
	if !a.passed {
		_ = unix.Close(a.sock)
		a.passed, a.served, a.c.unready = true, true, false
		a.c.direct()
	}
}
