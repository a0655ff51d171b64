// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/connector"
)

var _ hands = (*attempt)(nil)

func (a *attempt) placed() bool { return a.swapped }

func (a *attempt) valid(n *notif) bool { return n.valid() }

// place swaps the pair in with call n, and starts to watch whether the program
// closes it.
func (a *attempt) place(n *notif, nonblock bool) bool {
	if a.swapped {
		return true
	}
	if a.other {
		return false
	}
	if n != a.steps.n {
		// The program may have changed the flag since it called connect(). It
		// cannot have done so while connect() waits.
		var err error
		if nonblock, err = a.nonblocking(func() (int, error) { return unix.FcntlInt(uintptr(a.tcp), unix.F_GETFL, 0) }); err != nil {
			return false
		}
	}
	if err := a.swapIn(n, nonblock); err != nil {
		a.s.log.Debug("cannot place a socketpair", "conn", a.cc.ID(), "err", err)
		return false
	}
	if a.takenBack(n) {
		return false
	}
	a.watchFor(0)
	return true
}

// takenBack takes the pair out of the program again if the TCP socket has another
// descriptor, which shows the connection over TCP.
func (a *attempt) takenBack(n *notif) bool {
	if a.lone && n.ID == a.call {
		return false
	}
	_, err := a.s.ends.copied(n, a.tcpInode, a.broker)
	if err == nil {
		return false
	}
	a.s.log.Debug("the socket is TCP", "conn", a.cc.ID(), "err", err)
	a.other = a.swapBack(n)
	if !a.other {
		a.s.log.Warn("a socket was duplicated during connect, and its descriptors show different connections", "remote", a.remote)
	}
	return a.other
}

func (a *attempt) duplicated() bool { return a.other }

func (a *attempt) placeLocal(n *notif, nonblock bool, end *broker.Descriptor) bool {
	p, err := localPairOf(end, a.tcp)
	if err == nil {
		err = a.setEnd(n, nonblock, p)
	}
	if err == nil {
		a.direct()
		return true
	}
	a.s.log.Debug("cannot place a local connection", "conn", a.cc.ID(), "err", err)
	if p != nil {
		p.close()
	}
	return false
}

func (a *attempt) swapBack(n *notif) bool {
	if err := a.conn.swapBack(n); err != nil {
		a.s.log.Debug("cannot place the TCP socket", "conn", a.cc.ID(), "err", err)
		return false
	}
	return true
}

func (a *attempt) answer(n *notif, e syscall.Errno) bool {
	err := n.fail(e)
	if err != nil && !isGone(err) {
		a.s.log.Error("cannot answer connect", "err", err)
	}
	return err == nil
}

func (a *attempt) drain() bool {
	app := a.program()
	err := a.pair.drain(app)
	if app >= 0 {
		_ = unix.Close(app)
	}
	if err != nil {
		a.s.log.Warn("cannot drain a socketpair", "err", err)
	}
	return err == nil
}

func (a *attempt) wrote() bool { return a.pair.pending() > 0 }

func (a *attempt) hungUp() bool { return pollHup(a.pair.end) }

func (a *attempt) watch() { a.watchFor(unix.EPOLLIN) }

// watchFor waits once until the program's end is closed or has one of events.
func (a *attempt) watchFor(events uint32) {
	a.sub.stop()
	hup := a.hup
	sub, err := a.s.poll.watch(a.pair.end, events|unix.EPOLLONESHOT, func(uint32) {
		select {
		case hup <- struct{}{}:
		default:
		}
	})
	if err != nil {
		a.s.log.Warn("cannot watch a socketpair", "err", err)
	}
	a.sub = sub
}

func (a *attempt) await(d time.Duration) {
	a.timer = nil
	if d > 0 {
		a.timer = time.After(d)
	}
}

func (a *attempt) proceed() bool {
	a.mu.Lock()
	a.served = true
	a.mu.Unlock()
	return a.cc.Proceed() == nil // otherwise the end of the session follows
}

func (a *attempt) release() {
	if err := a.cc.Release(); err != nil {
		a.s.log.Debug("cannot release a socket", "err", err)
	}
}

// awaitServiceEnd waits for the end of a service whose session is over, because
// the service may have marked the socket and may still have a descriptor of it.
// A service that still runs and has closed the connection has nothing.
func (a *attempt) awaitServiceEnd() {
	b := a.broker
	a.s.tasks.begin("the wait for the end of the stack", func() {
		defer func() { a.self <- broker.Event{Kind: eventDead} }()
		select {
		case <-b.Done():
			a.s.sessions.awaitDeath(b, releaseTime)
		default:
		}
	})
}

func (a *attempt) connect() {
	fd, err := unix.FcntlInt(uintptr(a.tcp), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		a.self <- broker.Event{Kind: broker.EventFailed, Errno: unix.EMFILE}
		return
	}
	a.s.tasks.begin("a connect of the launcher", func() {
		ev := broker.Event{Kind: broker.EventFailed, Errno: unix.ECONNABORTED}
		defer func() { a.self <- ev }()
		d := broker.NewDescriptor(fd)
		defer d.Close()
		if err := a.s.connector.Connect(a.s.ctx, d, a.remote); err != nil {
			ev.Errno = errnoOr(err, unix.ECONNABORTED)
			return
		}
		ev = broker.Event{Kind: broker.EventEstablished}
	})
}

func (a *attempt) disconnect() { _ = connector.Disconnect(a.tcp) }

// letGo closes the launcher's copy of the TCP socket, before the program gets the answer: what
// it closes then must be closed, so that its port is free. a.mu is held.
func (a *attempt) letGo() {
	if a.tcp >= 0 {
		_ = unix.Close(a.tcp)
		a.tcp = -1
	}
}

func (a *attempt) leave(n *notif) {
	a.mu.Lock()
	a.letGo()
	a.phase = phaseNative
	a.mu.Unlock()
	a.s.sockets.removeConn(a.tcpInode, a.conn)
	if n != nil {
		a.s.cont(n)
	} else if a.pair != nil {
		a.s.sockets.removeConn(a.pair.inode, a.conn)
	}
}

// native holds a.mu while it answers, so that a call that was interrupted and
// restarted sees the result.
func (a *attempt) native(n *notif, e syscall.Errno, begun bool) {
	a.mu.Lock()
	a.letGo()
	a.phase = phaseNative
	a.report.connected = n != nil && a.answer(n, e) || begun
	reported := a.report.connected
	a.mu.Unlock()
	if reported {
		a.s.sockets.removeConn(a.tcpInode, a.conn)
	} else {
		// connect() was interrupted. If it is restarted, it must return 0.
		a.s.sockets.retire(a.conn)
	}
}

// carry passes the service its end of the pair first: what the program writes after the answer
// belongs to the service, even if the launcher ends then.
func (a *attempt) carry(n *notif, by carrier) {
	passed := by != byService && by != byServiceTCP || a.pass()
	a.noServiceEnd = by == byService && !passed
	alone := by == byServiceTCP && !passed
	if alone {
		a.release() // if the session still exists, the service releases its copy
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.here = by == byLauncher || alone
	a.trial.oneHost = by == byNobody
	if by == byService || by == byNobody {
		a.trial.ready(a.begun)
	}
	a.phase = phaseCarried
	a.local = localAddr(a.tcp)
	a.report.connected = false
	if n != nil {
		a.tellConnected(n)
	}
}

func (a *attempt) fail(n *notif, e syscall.Errno) bool {
	a.mu.Lock()
	a.phase = phaseFailed
	if n != nil && !a.swapped {
		a.letGo()
	}
	if n == nil || !a.answer(n, e) {
		a.report.err = e
	}
	told := a.report.err == 0
	a.mu.Unlock()
	if told && !a.swapped {
		a.s.sockets.removeConn(a.tcpInode, a.conn)
		return true
	}
	a.sub.stop()
	a.sub = nil
	if a.pair != nil {
		app := -1
		if a.swapped {
			app = a.program()
		}
		a.pair.hangUp(app)
		if app >= 0 {
			_ = unix.Close(app)
		}
	}
	return false
}

func (a *attempt) retire() { a.s.sockets.retire(a.conn) }

func (a *attempt) counts(mode broker.Mode, why string) {
	switch {
	case mode != broker.ModeTCP:
		a.s.stats.mode(mode)
	case why == ReasonLocal:
		a.s.stats.local()
		a.s.sessions.here.learn(time.Now(), a.remote.Addr())
	default:
		a.s.stats.tcp(why)
	}
}

func (a *attempt) countsFailed(why string) { a.s.stats.failed(why) }

func (a *attempt) learn(o outcome) { a.trial.learn(o) }
