// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/smc"
	"smcr/userstack/wire"
)

// Transmit sends what there is to be sent: data within the peer's window, the
// consumer cursor, the end of the connection. It does nothing if there is nothing to
// send or too much is outstanding; completions call it again.
func (p *Protocol) Transmit() {
	p.out.skipStuck()
	for p.MayPost() {
		if !p.group.TakeTurn() {
			return
		}
		if !p.Post() {
			p.group.AwaitRoom()
			return
		}
	}
}

// MayPost reports whether there is a message to be sent and not too much is
// outstanding.
func (p *Protocol) MayPost() bool {
	s, sent := &p.out, p.closing.sent
	if !p.Established() || p.state == smc.StateClosed || p.move.phase != moveNone || s.outstanding >= maxOutstanding || !p.group.Ready() {
		return false
	}
	if s.validate || (s.update || s.placement.repeat) && sent&lastFlags == 0 {
		return true
	}
	if aborting(p.state) {
		return sent&wire.ConnAbnormalClose == 0 && !p.closing.answered(p.state) || s.update
	}
	if sent&wire.ConnClosed != 0 {
		return s.update // again, after failover
	}
	return s.sendable() > 0 && !p.held() || s.newlyBlocked() || s.newlyUrgent() || p.endDue() != 0
}

// held reports whether data that could be sent waits for more.
func (p *Protocol) held() bool {
	return p.closing.prog == progOpen && p.out.held(p.cfg.Autocork)
}

// endDue returns the state flag that is due, or 0.
func (p *Protocol) endDue() wire.StateFlags {
	if !p.out.idle() || aborting(p.state) {
		return 0
	}
	return p.closing.due()
}

// Post sends one CDC message with the writes that belong to it. It returns false if
// the link has no room for that.
func (p *Protocol) Post() bool {
	s := &p.out
	if s.validate {
		return p.postValidation()
	}
	reset := aborting(p.state)
	n := 0
	if !reset {
		n = s.sendable()
	}
	var pieces [maxPieces]piece
	np := s.cut(n, &pieces)
	if p.group.Room() < np+1 {
		return false
	}
	for i := range pieces[:np] {
		w := &pieces[i]
		p.group.Write(w.chunk, w.off, w.n, w.at)
	}
	s.advance(n)
	told := s.flags&wire.ProdWriterBlocked != 0
	s.flags = 0
	if !reset && s.blocked() {
		s.flags = wire.ProdWriterBlocked
	}
	full := s.flags != 0 && (n > 0 || !told)
	s.flags |= s.urgent.flags(s.written, n) | p.cursorRequest(n)
	p.setEnd(n)
	p.in.told, s.update = p.in.read, false
	p.keep.used = p.group.Now()
	s.seq++
	s.outstanding++
	p.group.Send(wire.CDC{
		Seq: s.seq, Token: p.peer, Prod: s.elem.cursor(s.written), Cons: p.in.elem.cursor(p.in.read),
		Flags: s.flags, State: p.closing.sent,
	}, np+1, Receipt{written: s.written, seq: s.seq, state: p.closing.sent, peerFull: full})
	return true
}

// setEnd sets the state flag that goes out with a message of n bytes of data.
func (p *Protocol) setEnd(n int) {
	c := &p.closing
	if aborting(p.state) {
		if !c.answered(p.state) {
			c.sent |= wire.ConnAbnormalClose
		}
		return
	}
	due := p.endDue()
	if n > 0 || due == 0 {
		return
	}
	c.sent |= due
	p.state = afterSending(p.state, due, c.received)
	if due == wire.ConnClosed {
		p.start(&c.timer, p.group.Now().Add(p.cfg.Timers.CloseWait))
	}
}

// cursorRequest returns the R flag for a message of n bytes of data, or 0.
func (p *Protocol) cursorRequest(n int) wire.ProducerFlags {
	s := &p.out
	if !p.asksForCursor() || aborting(p.state) {
		s.placement.repeat = false
		return 0
	}
	return s.placement.request(p.group.Now(), n, s.urgent.waits(s.written), s.seq+1)
}

// asksForCursor reports whether the peer has to be asked about urgent bytes (see
// placement).
func (p *Protocol) asksForCursor() bool {
	return p.cfg.Peer.StopsAtUrgent && !p.out.placement.prompt
}

// postValidation sends the failover data validation (RFC 7609, section 4.6.1).
func (p *Protocol) postValidation() bool {
	if p.group.Room() < 1 {
		return false
	}
	p.out.validate = false
	p.out.outstanding++
	p.group.Send(wire.CDC{Seq: p.out.delivered, Token: p.peer, Flags: wire.ProdFailoverVerify}, 1, Receipt{validate: true})
	return true
}

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
		case active && p.move.phase != moveNone:
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
	free := s.buf.free()
	if s.full && (free >= (s.buf.size+3)/4 || s.buf.produced == s.buf.delivered) && p.writeErr() == nil {
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
	p.move.phase = moveDraining
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
	p.move.phase = movePausing
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

// Outstanding reports whether a message is neither delivered nor lost.
func (p *Protocol) Outstanding() bool { return p.out.outstanding > 0 }
