// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/smc"
)

// Delivered takes note that a CDC message and the writes before it have been
// delivered.
func (p *Protocol) Delivered(r Receipt) {
	s := &p.out
	s.outstanding--
	if p.state == smc.StateClosed {
		p.maybeFree()
		return
	}
	if !r.validate {
		p.delivered(r)
	}
	if p.finish() {
		return
	}
	if s.outstanding == 0 {
		switch active := p.group.Active(); {
		case active && p.move.planned:
			p.pauseMove()
			return
		case !active && p.group.TakeOther():
			// The link is being deleted in order, and this was the last message.
			p.Moved()
			return
		}
	}
	p.Transmit()
}

// delivered takes note of what a delivered message said.
func (p *Protocol) delivered(r Receipt) {
	s := &p.out
	s.delivered = r.seq
	if s.placement.delivered(r.seq) {
		p.start(&s.placement.timer, p.group.Now().Add(answerWait))
	}
	p.closing.acked |= r.state
	if r.written > s.buf.delivered {
		s.buf.delivered = r.written
		s.buf.freeDelivered(p.group)
		p.progress()
	}
	if s.full && s.buf.free() >= (s.buf.size+3)/4 && p.writeErr() == nil {
		p.wakeWrite()
	}
}

// Undelivered takes note that a CDC message was lost with its link. Another one is
// sent over the next link.
func (p *Protocol) Undelivered(Receipt) {
	p.out.outstanding--
	if p.state == smc.StateClosed {
		p.maybeFree()
		return
	}
	p.out.update = true
}

// Moved is to be called when the connection has been put on another link: the peer
// is asked to check that it has what was delivered, and what was not delivered is
// written again, with what is new (RFC 7609, section 4.6).
func (p *Protocol) Moved() {
	p.move.cancel()
	if !p.Established() {
		return
	}
	if p.group.Open() {
		p.out.validate = true
	}
	p.out.rewind()
	p.Transmit()
}

// PlanMove prepares a move to another link although the link of the connection
// works: nothing new is sent until what was sent is delivered. The connection asks
// for the link then ([Link.TakePlanned]).
func (p *Protocol) PlanMove() {
	p.move.planned = true
	if p.out.outstanding == 0 {
		p.pauseMove()
	}
}

// CancelMove lets the connection stay where it is.
func (p *Protocol) CancelMove() {
	p.move.cancel()
	p.Transmit()
}

// pauseMove sets when the connection moves, nothing being outstanding.
func (p *Protocol) pauseMove() {
	p.start(&p.move.timer, p.group.Now().Add(movePause))
}

// finishMove acts on the end of the pause.
func (p *Protocol) finishMove() {
	p.move.cancel()
	if p.group.TakePlanned() {
		p.Moved()
		return
	}
	p.Transmit()
}
