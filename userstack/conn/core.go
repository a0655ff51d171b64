// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// core is the state of a connection, and what can be done with it without ending it:
// send what is due and wake the program.
type core struct {
	cfg   *Config
	group Group
	token uint32 // local alert token
	peer  uint32 // alert token of the peer, 0 before Establish
	state smc.ConnState
	err   error // why the connection was reset or aborted
	mem   memPhase

	out      sender
	in       receiver
	closing  closing
	move     move
	peerMove peerMove
	deferred deferred
	keep     keepAlive
}

// memPhase is how far the memory of a connection is given back. It only goes up.
type memPhase uint8

const (
	memInUse    memPhase = iota
	memReleased          // the driver has no slice of it any more
	memFreed             // the chunks and the element are given back
)

// Established reports whether the connection has been opened.
func (p *core) Established() bool { return p.peer != 0 }

// CloseSent reports whether this side has sent its last word, C.
func (p *core) CloseSent() bool { return p.closing.sent&wire.ConnClosed != 0 }

// EndExchanged reports whether each side has sent its last word, C or A. Neither side
// writes data any more. The connection waits only for the delivery of its own last
// message, which the peer may have received already.
func (p *core) EndExchanged() bool {
	return p.closing.sent&lastFlags != 0 && p.closing.received&lastFlags != 0
}

// Undisturbed reports whether nothing has happened that could be the end of the
// connection: no side has ended or reset it, and its TCP connection has not ended.
func (p *core) Undisturbed() bool {
	return p.state == smc.StateActive && p.closing.prog == progOpen && p.closing.received == 0 && p.closing.tcp.at.IsZero()
}

// LayOut says where the data begins in the RMB elements of both sides, when the
// first contact has settled it. No data has been sent or received yet. It writes nothing
// to the local element, because the peer knows it already. Without eye catchers, the
// first data replaces the one that [New] has written.
func (p *core) LayOut(eye, peerEye bool) {
	p.in.layOut(eye)
	if p.Established() {
		p.out.elem = newRing(p.out.elem.start+p.out.elem.size, peerEye)
	}
}

// start starts a timer of the connection.
func (p *core) start(t *timer, at time.Time) {
	t.at = at
	p.group.SetTimer(at)
}

// timers returns the timers of a connection, in the order in which Tick looks at
// them.
func (p *core) timers() [10]*timer {
	return [...]*timer{
		&p.peerMove.timer, &p.move.timer, &p.peerMove.arrival, &p.keep.timer, &p.out.hold.timer,
		&p.out.urgent.timer, &p.out.placement.timer, &p.out.nudge.timer, &p.closing.tcp.timer, &p.closing.timer,
	}
}

// Deadline returns when [Protocol.Tick] has to be called next, if at all.
func (p *core) Deadline() (at time.Time, ok bool) {
	for _, t := range p.timers() {
		if t.running() && (!ok || t.at.Before(at)) {
			at, ok = t.at, true
		}
	}
	return at, ok
}

func (p *core) wakeRead() {
	if !p.in.woken {
		p.in.woken = true
		p.group.Wake(WakeRead)
	}
}

func (p *core) wakeWrite() {
	p.out.full = false
	p.group.Wake(WakeWrite)
}

func (p *core) wakeAll() {
	p.in.woken = false
	p.wakeRead()
	p.wakeWrite()
}

// mayProduce reports whether the program may put data into the send buffer.
func (p *core) mayProduce() bool { return p.writeErr() == nil && p.mem != memFreed }

func (p *core) writeErr() error {
	switch {
	case p.err != nil:
		return p.err
	case p.closing.prog == progClosed:
		return ErrClosed
	case p.closing.prog == progWriteDone:
		return ErrWriteClosed
	case p.closing.received&wire.ConnClosed != 0:
		return ErrPeerClosed
	}
	return nil
}

// startUrgent starts the timer of an urgent byte that is all the peer has left to
// confirm while more waits.
func (p *core) startUrgent() {
	t, wait := &p.out.urgent.timer, p.cfg.Timers.UrgentWait
	if !t.running() && p.out.onlyUrgentLeft() && wait > 0 {
		p.start(t, p.group.Now().Add(wait))
	}
}

// progress postpones the end of a closed connection while the peer still takes data.
func (p *core) progress() {
	if p.closing.prog == progClosed && !aborting(p.state) && !p.CloseSent() {
		p.start(&p.closing.timer, p.group.Now().Add(p.cfg.Timers.CloseWait))
	}
}

// Outstanding reports whether a message is neither delivered nor lost.
func (p *core) Outstanding() bool { return p.out.outstanding > 0 }
