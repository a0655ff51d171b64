// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"syscall"
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
	borrowTime = time.Second
	// failedTime is how long a failed attempt keeps the TCP socket for the
	// program to have it back.
	failedTime = 2 * time.Second
)

// attempt makes one connection. Its goroutine owns it.
//
//	Event             | native socket in place       | pair in place, connect() waits | pair in place, nobody waits
//	hold time over    | place the pair               | -                              | -
//	not a candidate   | continue natively            | connect here, then as no SMC   | connect here, then as no SMC
//	failed            | -errno                       | swap back, -errno              | end of the pair closed (HUP), SO_ERROR
//	no SMC            | 0 or EINPROGRESS             | swap back, 0                   | writable; swap back at SO_ERROR or relay here
//	SMC               | place the pair, proceed      | proceed                        | proceed
//	local             | place its pair, proceed      | as no SMC                      | as no SMC
//	ready, SMC        | -                            | drain, 0, attach               | drain (writable), attach
//	ready, TCP        | -                            | swap back, 0, release          | writable; swap back at SO_ERROR or attach
//	no service        | reset, continue natively     | reset, connect here, as no SMC | reset, connect here, as no SMC
//	attach fails      | -                            | SMC: reset; TCP: relay here    | SMC: reset; TCP: relay here
type attempt struct {
	*conn
	n        *notif // the call that waits, or nil
	tid      int    // who called connect() first
	req      broker.ConnectRequest
	nonblock bool

	hup     chan struct{} // the program closed its end, or wrote
	sub     *subscription
	self    chan broker.Event // what the launcher's own connect led to
	timer   <-chan time.Time  // ends what the attempt waits for now
	waitFor need
	carry   func() bool // needDecide: what to do if the TCP socket cannot be placed
	early   bool        // see loan.early
	long    bool        // the hold time is over
	begun   bool        // connect() has returned EINPROGRESS
	verdict bool        // the service has said what there is to say before Attach
	lone    bool        // the program has the pair, and the service did not get its end
}

// need is what an attempt wants a call of the program for.
type need uint8

const (
	needNothing need = iota
	needSwapIn       // to place the pair, then to proceed
	needDecide       // to place the TCP socket, else release or attach
	needFailed       // to place the TCP socket of a failed attempt
)

func (a *attempt) run(timeout time.Duration) {
	defer a.cleanup()
	hold := time.NewTimer(holdTime)
	defer hold.Stop()
	tick := time.NewTicker(validTick)
	defer tick.Stop()
	var deadline <-chan time.Time
	if timeout > 0 && !a.nonblock {
		t := time.NewTimer(timeout)
		defer t.Stop()
		deadline = t.C
	}
	events := a.cc.Events()
	for over := false; !over; {
		select {
		case ev, ok := <-events:
			if !ok {
				events = nil
				over = a.lostService()
				continue
			}
			if ev.Kind == broker.EventClosed {
				events = nil
			}
			over = a.event(ev)
		case ev := <-a.self:
			over = a.event(ev)
		case <-hold.C:
			a.long = true
			a.held()
		case <-tick.C:
			if a.n != nil && !a.n.valid() {
				a.n = nil
			}
			if a.waitFor == needSwapIn && !exists(a.tid) {
				over = a.timedOut()
			}
		case <-deadline:
			a.answer(unix.EINPROGRESS)
		case l := <-a.loans:
			over = a.borrow(l)
			close(l.done)
		case <-a.hup:
			over = a.stirred()
		case <-a.timer:
			over = a.timedOut()
		case <-a.s.ctx.Done():
			if a.phase == phaseConnecting {
				_ = a.cc.Cancel() // the service may outlive the program
			}
			return
		}
	}
	a.cleanup()
	switch {
	case a.phase != phaseCarried:
	case a.here:
		a.s.wg.Go(a.relayed)
	case a.lone:
		a.unserved()
	default:
		a.s.wg.Go(a.conn.carried) // on a stack that has not grown
	}
}

func (a *attempt) setPhase(p phase) {
	a.mu.Lock()
	a.phase = p
	a.mu.Unlock()
}

// cleanup releases what only the attempt needs. It may run twice.
func (a *attempt) cleanup() {
	a.sub.stop()
	a.sub = nil
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.settled:
	default:
		close(a.settled)
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
			a.s.unregister(a.pair.inode, a.conn)
		}
	}
	if a.phase != phaseNative && a.phase != phaseFailed {
		a.s.unregister(a.tcpInode, a.conn)
	}
}

// answer ends the waiting call, if there is one, and tells whether it got the
// answer. Where the answer is the last word, a.mu is held, so that a call that
// was interrupted and restarted sees the outcome.
func (a *attempt) answer(e syscall.Errno) bool {
	if a.n == nil {
		return false
	}
	err := a.n.fail(e)
	a.n = nil
	if err != nil && !isGone(err) {
		a.s.log.Error("cannot answer connect", "err", err)
	}
	a.begun = a.begun || err == nil && e == unix.EINPROGRESS
	return err == nil
}

// place swaps the pair in by call n and starts to watch for the program
// closing it.
func (a *attempt) place(n *notif) bool {
	if a.swapped {
		return true
	}
	nonblock := a.nonblock
	if n != a.n {
		// The program may have changed it since it called connect(). While
		// that call waits it has not, and the flag of the socket says nothing.
		var err error
		if nonblock, err = a.nonblocking(func() (int, error) { return unix.FcntlInt(uintptr(a.tcp), unix.F_GETFL, 0) }); err != nil {
			return false
		}
	}
	if err := a.swapIn(n, nonblock); err != nil {
		a.s.log.Debug("cannot place a socketpair", "conn", a.cc.ID(), "err", err)
		return false
	}
	a.watch(0)
	return true
}

// watch waits, once, for the program's end to be closed, or for events.
func (a *attempt) watch(events uint32) {
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

// held is called when the TCP handshake takes long.
func (a *attempt) held() {
	if a.n == nil || a.phase != phaseConnecting {
		return
	}
	if !a.place(a.n) { // it may be there already, and the answer was lost
		if !a.n.valid() {
			a.n = nil
		}
		return
	}
	if a.nonblock {
		a.answer(unix.EINPROGRESS)
	}
}

// event acts on what the service tells; it returns true when the attempt is
// over.
func (a *attempt) event(ev broker.Event) bool {
	switch ev.Kind {
	case broker.EventNotCandidate:
		a.verdict = true
		a.s.stats.tcp(ev.Text)
		if !a.swapped {
			a.setPhase(phaseNative)
			a.s.unregister(a.tcpInode, a.conn)
			if a.n != nil {
				a.s.cont(a.n)
				a.n = nil
			}
			return true
		}
		a.connectHere()
		return false
	case eventAfresh:
		return a.connectAfresh()
	case broker.EventFailed:
		a.verdict = true
		a.s.stats.failed(ev.Errno.Error())
		return a.failed(ev.Errno)
	case broker.EventEstablished:
		if !ev.PeerSMC {
			if !a.verdict { // else counted, and it was the launcher that connected
				a.verdict = true
				a.s.stats.tcp(ReasonNoPeer)
				a.learn(noPeer)
			}
			return a.native(a.relay)
		}
		if a.swapped || a.n != nil && a.place(a.n) {
			return a.proceed()
		}
		if a.n != nil && !a.n.valid() {
			a.n = nil
		}
		a.await(needSwapIn, borrowTime)
	case broker.EventReady:
		a.verdict = true
		a.s.countReady(ev)
		if ev.Mode == broker.ModeTCP {
			return a.native(a.attachTCP)
		}
		return a.smc()
	case broker.EventLocal:
		return a.goLocal(ev)
	case broker.EventClosed:
		// The service gave up without saying more, or said all.
		switch {
		case !a.verdict:
			a.afresh()
		case a.waitFor == needDecide:
			a.carry = a.relay
		}
	}
	return false
}

func (a *attempt) proceed() bool {
	a.waitFor, a.timer = needNothing, nil
	a.mu.Lock()
	a.served = true
	a.mu.Unlock()
	if err := a.cc.Proceed(); err != nil {
		return false // the end of the session follows
	}
	if a.nonblock {
		a.answer(unix.EINPROGRESS)
	}
	return false
}
