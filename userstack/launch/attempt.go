// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// holdTime is how long a non-blocking connect() is held in the hope that
	// the TCP handshake ends: then a peer without SMC costs no swap.
	holdTime = 20 * time.Millisecond
	// validTick is how often a waiting call is asked whether it still waits.
	validTick = 100 * time.Millisecond
	// decideTime is how long a program that waits for a connection to become
	// writable has, after it did, to ask for SO_ERROR, which lets it have its
	// TCP socket back. Programs that do not ask are relayed.
	decideTime = 50 * time.Millisecond
	// borrowTime bounds the wait for a call with which to place the pair's end,
	// when connect() was interrupted before. The peer waits for the CLC
	// proposal meanwhile.
	swapTime = time.Second
	// failedTime is how long a failed attempt keeps the TCP socket for the
	// program to have it back.
	failedTime = 2 * time.Second
)

// attempt makes one connection: steps decides, and the methods of hands
// (attempt_hands.go) act. Its goroutine owns it.
type attempt struct {
	*conn
	steps steps
	tid   int // who called connect() first
	req   broker.ConnectRequest
	begun time.Time // of the first connect()

	hup          chan struct{} // the program closed its end, or wrote
	sub          *subscription
	self         chan broker.Event // what connect and bury led to
	timer        <-chan time.Time  // await
	noServiceEnd bool              // the program has the pair, and the service did not get its end
}

func (a *attempt) run(timeout time.Duration) {
	defer a.cleanup()
	hold := time.NewTimer(holdTime)
	defer hold.Stop()
	tick := time.NewTicker(validTick)
	defer tick.Stop()
	var deadline <-chan time.Time
	if timeout > 0 && !a.steps.nonblock {
		t := time.NewTimer(timeout)
		defer t.Stop()
		deadline = t.C
	}
	events := a.cc.Events()
	for !a.steps.over() {
		select {
		case ev, ok := <-events:
			if !ok {
				ev.Kind = broker.EventClosed
			}
			if ev.Kind == broker.EventClosed {
				events = nil
			}
			a.steps.event(ev)
		case ev := <-a.self:
			a.steps.event(ev)
		case <-hold.C:
			a.steps.holdOver()
		case <-tick.C:
			a.steps.dropGone()
			if a.steps.stage == stageSwap && !exists(a.tid) {
				a.steps.timedOut()
			}
		case <-deadline:
			a.steps.late()
		case l := <-a.calls.ch:
			a.steps.offered(l)
			close(l.done)
		case <-a.hup:
			a.steps.pairChanged()
		case <-a.timer:
			a.timer = nil
			a.steps.timedOut()
		case <-a.s.ctx.Done():
			if a.phase == phaseConnecting {
				a.cancel() // the service may outlive the program
			}
			return
		}
	}
	a.cleanup()
	switch {
	case a.phase != phaseCarried:
	case a.here:
		a.s.wg.Go(a.relayed)
	case a.noServiceEnd:
		a.unserved()
	default:
		a.s.wg.Go(a.carried) // on a stack that has not grown
	}
}

// cleanup releases what only the attempt needs. It may run twice.
func (a *attempt) cleanup() {
	a.sub.stop()
	a.sub = nil
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.calls.over:
	default:
		close(a.calls.over)
	}
	if a.here {
		return
	}
	if a.tcp >= 0 {
		_ = unix.Close(a.tcp)
		a.tcp = -1
	}
	if a.pair != nil {
		if a.phase != phaseCarried { // else its end is a keeper
			a.pair.close()
		}
		if a.phase != phaseCarried && a.phase != phaseFailed {
			a.s.sockets.removeConn(a.pair.inode, a.conn)
		}
	}
	if a.phase != phaseNative && a.phase != phaseFailed {
		a.s.sockets.removeConn(a.tcpInode, a.conn)
	}
}

// exists tells whether there is a thread tid.
func exists(tid int) bool { return unix.Kill(tid, 0) != unix.ESRCH }
