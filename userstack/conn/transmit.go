// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/smc"
	"smcr/userstack/wire"
)

// Transmit sends what there is to be sent: data within the peer's window, the
// consumer cursor, the end of the connection. It does nothing if there is nothing to
// send or too much is outstanding; completions call it again.
func (p *core) Transmit() {
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
func (p *core) MayPost() bool {
	s, sent := &p.out, p.closing.sent
	if !p.Established() || p.state == smc.StateClosed || p.move.planned || s.outstanding >= maxOutstanding || !p.group.Ready() {
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
func (p *core) held() bool {
	return p.closing.prog == progOpen && p.out.held(p.cfg.Autocork)
}

// endDue returns the state flag that is due, or 0.
func (p *core) endDue() wire.StateFlags {
	if !p.out.idle() || aborting(p.state) {
		return 0
	}
	return p.closing.due()
}

// Post sends one CDC message with the writes that belong to it. It returns false if
// the link has no room for that.
func (p *core) Post() bool {
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
	p.setEnd()
	if !s.nudge.due {
		p.nudgeSoon()
	}
	s.nudge.due = false
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

// setEnd sets the state flag that goes out with a message.
func (p *core) setEnd() {
	c := &p.closing
	if aborting(p.state) {
		if !c.answered(p.state) {
			c.sent |= wire.ConnAbnormalClose
		}
		return
	}
	due := p.endDue()
	if due == 0 {
		return
	}
	c.sent |= due
	p.state = afterSending(p.state, due, c.received)
	if due == wire.ConnClosed {
		p.start(&c.timer, p.group.Now().Add(p.cfg.Timers.CloseWait))
	}
}

// cursorRequest returns the R flag for a message of n bytes of data, or 0.
func (p *core) cursorRequest(n int) wire.ProducerFlags {
	s := &p.out
	if aborting(p.state) {
		return 0
	}
	f := s.lost.flag() | s.nudge.flag()
	if p.asksForCursor() {
		f |= s.placement.request(p.group.Now(), n, s.urgent.waits(s.written), s.seq+1)
	}
	return f
}

// asksForCursor reports whether the peer has to be asked about urgent bytes (see
// placement).
func (p *core) asksForCursor() bool {
	return p.cfg.Peer.StopsAtUrgent && !p.out.placement.prompt
}

// postValidation sends the failover data validation (RFC 7609, section 4.6.1).
func (p *core) postValidation() bool {
	if p.group.Room() < 1 {
		return false
	}
	p.out.validate = false
	p.out.outstanding++
	p.group.Send(wire.CDC{Seq: p.out.delivered, Token: p.peer, Flags: wire.ProdFailoverVerify}, 1, Receipt{validate: true})
	return true
}

// pushOut sends what is held back.
func (p *core) pushOut() {
	if p.out.buf.produced == p.out.written {
		return
	}
	p.out.hold.push = true
	p.Transmit()
}
