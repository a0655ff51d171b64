// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"
	"time"

	"smcr/userstack/wire"
)

// Receive processes a CDC message of the peer. Messages come in any order if the peer
// uses two links; old ones have no effect.
func (p *Protocol) Receive(m wire.CDC) {
	now := p.group.Now()
	if m.Flags&wire.ProdFailoverVerify != 0 {
		p.receiveValidation(now, m.Seq)
		return
	}
	v := &p.peerMove
	newer := v.missing && after(m.Seq, v.seq)
	if !p.Established() && !newer && after(m.Seq, v.early) {
		v.early = m.Seq
		v.missing = v.missing && m.Seq != v.seq
	}
	if !p.Established() || newer {
		p.deferred.put(m)
		return
	}
	if !after(m.Seq, p.in.seq) {
		return // old
	}
	if aborting(p.state) {
		p.in.seq = m.Seq
		p.closing.received |= m.State
		p.finish()
		return
	}
	p.process(now, m)
}

// process takes in a message that is neither old nor too early.
func (p *Protocol) process(now time.Time, m wire.CDC) {
	s, in := &p.out, &p.in
	dp, dc, ok := p.checkMessage(m)
	if !ok {
		return
	}
	in.seq, in.flags = m.Seq, m.Flags
	p.keep.used = now
	news := m.State &^ p.closing.received
	p.closing.received |= m.State
	in.written += dp
	s.peerRead(dc)
	other := dp > 0 || m.Flags != 0 || news != 0 || p.peerMove.done || !p.asksForCursor()
	s.placement.receive(dc > 0, other, s.beforeUrgent())
	p.receiveUrgent(m.Flags, dp)
	if dc > 0 {
		p.progress()
		s.confirmUrgent()
		p.startUrgent()
	}
	if m.State&wire.ConnAbnormalClose != 0 {
		p.peerAborted()
		return
	}
	closed := p.closing.prog == progClosed
	if closed {
		in.read = in.written // nobody reads it
	} else if dp > 0 || news != 0 {
		if news != 0 {
			in.woken = false
		}
		p.wakeRead()
	}
	if !closed && in.wantUpdate() {
		s.update = true // the peer waits for what was read before its message came
	}
	if news != 0 && !p.peerEnded(news) {
		return
	}
	if dp > 0 {
		p.nudgeSoon()
	}
	p.Transmit()
	if v := &p.peerMove; v.missing && !after(v.seq, in.seq) {
		v.missing = false
		v.timer.stop()
		p.processDeferred(now)
	}
}

// checkMessage returns how far the two cursors of m go ahead. It aborts the
// connection and returns false if m cannot come from a sound peer, or if the element
// has been overwritten.
func (p *Protocol) checkMessage(m wire.CDC) (dp, dc uint64, ok bool) {
	dp, err := p.in.ahead(m.Prod, p.peerMove.done)
	if err == nil {
		dc, err = p.out.ahead(m.Cons)
	}
	switch {
	case err != nil:
		p.cfg.Log.Warn("connection aborted", "token", p.token, "err", err)
		p.abort(err)
	case !p.in.intact():
		p.abortOverlaid()
	default:
		ok = true
	}
	return dp, dc, ok
}

// abortOverlaid resets the connection because its RMB element was overwritten (RFC 7609,
// section 4.4.1).
func (p *Protocol) abortOverlaid() {
	p.cfg.Log.Error("connection aborted: the RMB element was overwritten", "token", p.token)
	p.abort(fmt.Errorf("%w: eye catcher of RMB element overwritten", ErrProtocol))
}

// processDeferred processes the message that had to wait, if there is one.
func (p *Protocol) processDeferred(now time.Time) {
	if p.deferred.there {
		p.deferred.there = false
		p.Receive(p.deferred.msg)
	}
}

// receiveValidation processes a failover data validation: everything up to message
// seq, whose delivery the peer's adapter has confirmed, must have arrived (RFC 7609,
// section 4.6.1). A missing message may still be in the completion queue of the old
// link.
func (p *Protocol) receiveValidation(now time.Time, seq uint16) {
	v := &p.peerMove
	v.done = true
	p.CursorLost()
	last := p.in.seq
	if !p.Established() {
		last = v.early
	}
	if !after(seq, last) {
		return
	}
	v.missing, v.seq = true, seq
	if p.Established() {
		p.start(&v.timer, now.Add(validateWait))
	}
}

// receiveUrgent takes the urgent flags of a message that has moved the producer
// cursor by n bytes.
func (p *Protocol) receiveUrgent(f wire.ProducerFlags, n uint64) {
	var last byte
	if n > 0 {
		last = p.in.mem[p.in.elem.off(p.in.written-1)]
	}
	if !p.in.urgent.receive(f, p.in.written, n, last) {
		return
	}
	p.in.skipUrgent()
	if p.closing.prog != progClosed {
		p.group.Wake(WakeUrgent)
	}
}

// peerEnded changes the state for flags D and C that the peer has newly set. It
// returns false if the connection is over or being reset.
func (p *Protocol) peerEnded(news wire.StateFlags) bool {
	p.state = afterReceiving(p.state, p.closing.received, p.closing.sent)
	if news&wire.ConnClosed != 0 {
		if p.out.unfinished() {
			p.peerGone()
			return false
		}
		p.wakeWrite()
	}
	return !p.finish()
}
