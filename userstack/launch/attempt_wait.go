// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

func (a *attempt) await(what need, d time.Duration) {
	a.waitFor = what
	a.timer = time.After(d)
}

// borrow uses a call of the program for what the attempt needs.
func (a *attempt) borrow(l *loan) bool {
	keep := a.keeps(l)
	switch a.waitFor {
	case needSwapIn:
		if a.place(l.n) {
			// Of several calls that were interrupted, one may be known by now
			// that another had replaced when it was lent.
			if keep && (a.n == nil || !a.n.valid()) {
				a.keep(l)
			}
			// connect() was interrupted, and the TCP socket looked ready since.
			a.early = a.early || !keep
			l.early = !keep
			return a.proceed()
		}
	case needDecide:
		if keep {
			a.keep(l)
		}
		return a.decide(l.n)
	case needFailed:
		if a.swapped {
			if err := a.swapBack(l.n); err != nil {
				a.s.log.Debug("cannot place the TCP socket", "conn", a.cc.ID(), "err", err)
			}
		}
		a.s.retire(a.conn)
		return true
	}
	if a.phase != phaseConnecting || a.n != nil && a.n.valid() {
		return false
	}
	a.n = nil
	switch {
	case keep:
		a.keep(l)
		if a.nonblock && (a.swapped || a.long) {
			a.held()
		}
	case (!a.nonblock || !a.begun) && !a.swapped && a.place(l.n):
		// connect() was interrupted, and the program has looked at the TCP
		// socket since, which says little of the connection.
		a.early = true
	}
	l.early = a.early && !keep
	return false
}

// keeps tells whether a call is a connect() that is to be answered when the
// attempt has an answer: a blocking one, or a non-blocking one that a signal
// interrupted and the kernel made again. To a non-blocking one that comes after
// another had its answer there is one at once.
func (a *attempt) keeps(l *loan) bool {
	return l.wait && (!l.nonblock || !a.blocking && !a.begun)
}

func (a *attempt) keep(l *loan) {
	a.n, a.nonblock, l.kept = l.n, l.nonblock, true
}

// decide gives the program its TCP socket by call n unless it wrote into the
// pair already. A connect() that waits gets its answer.
func (a *attempt) decide(n *notif) bool {
	if a.pair.pending() > 0 {
		return a.carry()
	}
	if err := a.swapBack(n); err != nil {
		a.s.log.Debug("cannot place the TCP socket", "conn", a.cc.ID(), "err", err)
		return a.carry()
	}
	a.release()
	if a.n != nil {
		return a.nativeDone()
	}
	a.mu.Lock()
	a.phase, a.reported = phaseNative, true
	a.mu.Unlock()
	a.s.unregister(a.tcpInode, a.conn)
	return true
}

// stirred is called when the program closed the pair, or wrote while the
// attempt waits for a decision.
func (a *attempt) stirred() bool {
	if a.waitFor == needDecide && !pollHup(a.pair.end) {
		return a.carry()
	}
	if a.waitFor == needDecide && a.pair.pending() > 0 {
		return a.carry() // written and closed: the bytes have to arrive
	}
	if err := a.cc.Cancel(); err != nil {
		a.s.log.Debug("cannot cancel", "err", err)
	}
	a.setPhase(phaseNative)
	a.s.unregister(a.tcpInode, a.conn)
	a.s.unregister(a.pair.inode, a.conn)
	return true
}

func (a *attempt) timedOut() bool {
	a.timer = nil
	switch a.waitFor {
	case needDecide:
		return a.carry()
	case needSwapIn:
		// The peer expects a CLC proposal on a socket that the program holds.
		a.s.stats.failed(ReasonInterrupted)
		if err := a.cc.Cancel(); err != nil {
			a.s.log.Debug("cannot cancel", "err", err)
		}
		return a.failed(unix.ECONNABORTED)
	case needFailed:
		a.s.retire(a.conn)
		return true
	}
	return false
}

// lostService goes on, or ends, without the service.
func (a *attempt) lostService() bool {
	switch {
	case a.waitFor == needFailed:
		return false
	case a.waitFor == needDecide:
		a.carry = a.relay
		return false
	case a.verdict: // connectHere goes on
		return false
	}
	a.afresh()
	return false
}

// afresh has the connection made once more, over TCP: the service ended, or gave
// up, before the program was told of a connection and could use it. What the
// peer got of the first one is reset.
func (a *attempt) afresh() {
	a.verdict = true
	a.waitFor, a.timer = needNothing, nil
	a.s.stats.tcp(ReasonNoService)
	b := a.broker
	a.s.wg.Go(func() {
		// The socket may bear the mark of the service, and be in its hands.
		select {
		case <-b.Done():
			a.s.dead(b, letGoTime)
		default:
		}
		a.self <- broker.Event{Kind: eventAfresh}
	})
}

// eventAfresh is the launcher's own: the socket can be connected over TCP.
const eventAfresh broker.EventKind = 255

// connectAfresh connects the program's socket over TCP, or lets the program's
// call do it.
func (a *attempt) connectAfresh() bool {
	disconnect(a.tcp)
	// The reset of the first connection is no error of the second.
	_, _ = unix.GetsockoptInt(a.tcp, unix.SOL_SOCKET, unix.SO_ERROR)
	if a.swapped || a.n == nil {
		a.connectHere()
		return false
	}
	a.setPhase(phaseNative)
	a.s.unregister(a.tcpInode, a.conn)
	a.s.cont(a.n)
	a.n = nil
	return true
}

// exists tells whether there is a thread tid.
func exists(tid int) bool { return unix.Kill(tid, 0) != unix.ESRCH }
