// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// holdTime is how long a non-blocking connect() waits for the end of the
	// TCP handshake. If the handshake ends in this time and the peer has no
	// SMC, no swap is necessary.
	holdTime = 20 * time.Millisecond
	// decideTime is how long the launcher waits, after a connection over TCP
	// became writable, for a call of the program such as getsockopt(SO_ERROR).
	// With such a call the program gets its TCP socket back. Without one the
	// connection is relayed.
	decideTime = 50 * time.Millisecond
)

// attempt makes one connection: steps decides, and the methods of hands
// (attempt_hands.go) do the I/O. Only its goroutine uses it.
type attempt struct {
	*conn
	steps steps
	tid   int    // the thread that called connect() first
	call  uint64 // the number of that call
	lone  bool   // only that thread can duplicate the socket
	other bool   // the socket has another descriptor
	req   broker.ConnectRequest
	begun time.Time // of the first connect()

	hup          chan struct{} // the program closed its end, or wrote into it
	sub          *subscription
	self         chan broker.Event // results of connect and awaitServiceEnd
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
			a.steps.programEnded()
			if a.phase == phaseConnecting {
				a.cancel() // the service may outlive the program
			}
			if !a.steps.over() {
				return
			}
		}
	}
	a.cleanup()
	switch {
	case a.phase != phaseCarried:
	case a.here:
		a.s.tasks.begin(connTask, a.relayed)
	case a.noServiceEnd:
		a.endUnattached()
	default:
		a.s.tasks.begin(connTask, a.carried) // on a stack that has not grown
	}
}

// cleanup releases what only the attempt needs. It may run twice.
func (a *attempt) cleanup() {
	a.sub.stop()
	a.sub = nil
	a.steps.dropOffer()
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
		if a.phase != phaseCarried { // otherwise its end is the launcher's copy
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

// abandon ends an attempt whose state is not known. The service gives the connection up, all
// calls that wait for the attempt go on, and the next connect() of the socket begins anew.
func (a *attempt) abandon() {
	if a.cc != nil {
		a.cancel()
	}
	a.cleanup()
	if n := a.steps.n; n != nil {
		a.s.fail(n, unix.ECONNABORTED) // too late if the call has its answer
	}
}

// exists reports whether there is a thread tid.
func exists(tid int) bool { return unix.Kill(tid, 0) != unix.ESRCH }

func (a *attempt) cancel() {
	if err := a.cc.Cancel(); err != nil {
		a.s.log.Debug("cannot cancel", "err", err)
	}
}
