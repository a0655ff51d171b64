// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Protocol is a connection as its link group sees it: what the group reports to the
// connection. The program's side is [Conn].
type Protocol struct {
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

// New returns a connection in smc.StateInit. mem is its RMB element, which begins with
// an eye catcher if eye is set; sendBuf is the size of the send buffer and chunk the
// least size of its chunks, in bytes; token is the local alert token, not 0.
func New(cfg *Config, g Group, token uint32, mem []byte, eye bool, sendBuf, chunk int) Conn {
	c := Conn{Protocol{cfg: cfg, group: g, token: token, state: smc.StateInit}}
	p := &c.p
	p.in.mem = mem
	p.in.layOut(eye)
	p.out.buf.size, p.out.buf.chunk = sendBuf, chunkFor(sendBuf, chunk)
	return c
}

// Remote describes the peer's side of a connection.
type Remote struct {
	Token uint32 // the alert token of the peer, not 0
	Size  int    // of its RMB element in bytes
	Eye   bool   // the element begins with an eye catcher
	// LinkGone: CONFIRM named a link that was removed while it was under way. The
	// peer has to move the connection to another one.
	LinkGone bool
}

// Establish opens the connection. What the peer has sent before is processed now.
func (p *Protocol) Establish(r Remote) {
	now := p.group.Now()
	p.peer, p.state = r.Token, smc.StateActive
	p.out.elem = newRing(r.Size, r.Eye)
	if p.peerMove.missing {
		p.start(&p.peerMove.timer, now.Add(validateWait))
	}
	if r.LinkGone && !p.peerMove.done {
		// Linux does not move a connection that it has not opened yet when the
		// link goes, and could never use it.
		p.start(&p.peerMove.arrival, now.Add(peerMoveWait))
	}
	p.processDeferred(now)
	p.Transmit()
}

// Established reports whether the connection has been opened.
func (p *Protocol) Established() bool { return p.peer != 0 }

// LayOut says where the data begins in the RMB elements of both sides, when the
// first contact has settled it. No data has been sent or received yet.
func (p *Protocol) LayOut(eye, peerEye bool) {
	p.in.layOut(eye)
	if p.Established() {
		p.out.elem = newRing(p.out.elem.start+p.out.elem.size, peerEye)
	}
}

// Undisturbed reports whether nothing has happened that could be the end of the
// connection: no side has ended or reset it, and its TCP connection has not ended.
func (p *Protocol) Undisturbed() bool {
	return p.state == smc.StateActive && p.closing.prog == progOpen && p.closing.received == 0 && p.closing.tcp.at.IsZero()
}

// CloseSent reports whether this side has sent its last word, C.
func (p *Protocol) CloseSent() bool { return p.closing.sent&wire.ConnClosed != 0 }

// start starts a timer of the connection.
func (p *Protocol) start(t *timer, at time.Time) {
	t.at = at
	p.group.SetTimer(at)
}

// timers returns the timers of a connection, in the order in which Tick looks at
// them.
func (p *Protocol) timers() [9]*timer {
	return [...]*timer{
		&p.peerMove.timer, &p.move.timer, &p.peerMove.arrival, &p.keep.timer, &p.out.hold.timer,
		&p.out.urgent.timer, &p.out.placement.timer, &p.closing.tcp.timer, &p.closing.timer,
	}
}

// Deadline returns when [Protocol.Tick] has to be called next, if at all.
func (p *Protocol) Deadline() (at time.Time, ok bool) {
	for _, t := range p.timers() {
		if t.running() && (!ok || t.at.Before(at)) {
			at, ok = t.at, true
		}
	}
	return at, ok
}

// Tick acts on the timers that are due. A call that is too early does no harm.
func (p *Protocol) Tick(now time.Time) {
	for _, t := range p.timers() {
		if !t.due(now) {
			continue
		}
		t.stop()
		switch t {
		case &p.peerMove.timer:
			p.cfg.Log.Warn("connection reset: data was lost with a link", "token", p.token)
			p.peerMove.missing, p.deferred.there = false, false
			p.abort(ErrReset)
		case &p.move.timer:
			p.finishMove()
		case &p.peerMove.arrival:
			if !p.peerMove.done {
				p.cfg.Log.Warn("connection reset: the peer did not move it from a failed link", "token", p.token)
				p.abort(ErrReset)
			}
		case &p.keep.timer:
			at, test := p.keep.look(now, p.group.LastMessage())
			t.at = at
			if test {
				p.group.Test()
			}
		case &p.out.hold.timer:
			p.pushOut()
		case &p.out.urgent.timer:
			p.cfg.Log.Warn("connection reset: the peer does not confirm urgent data", "token", p.token)
			p.abort(ErrUrgentTimeout)
		case &p.out.placement.timer:
			if p.out.placement.timeout() {
				p.Transmit()
			}
		case &p.closing.tcp.timer:
			p.judgeTCP(now)
		case &p.closing.timer:
			if aborting(p.state) {
				// The peer never said that it stopped writing.
				p.close(p.err, p.closing.received&lastFlags == 0)
			} else {
				p.abort(ErrCloseTimeout)
			}
		}
	}
}

// judgeTCP looks at a connection whose TCP connection ended a while ago.
func (p *Protocol) judgeTCP(now time.Time) {
	if p.closing.tcpExplained() {
		return
	}
	e := &p.closing.tcp
	v := e.judge(now, &p.cfg.Timers, p.group)
	if !v.wait {
		p.cfg.Log.Info("connection reset: the TCP connection ended without a close message from the peer", "token", p.token,
			"after", now.Sub(e.at), "silence", now.Sub(p.group.LastSign()))
		p.abort(ErrReset)
		return
	}
	e.timer.at = v.again
	if v.test {
		p.group.Test()
	}
}

// pushOut sends what is held back.
func (p *Protocol) pushOut() {
	if p.state == smc.StateClosed || p.out.buf.produced == p.out.written {
		return
	}
	p.out.hold.push = true
	p.Transmit()
}
