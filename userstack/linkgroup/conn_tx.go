// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
	"smcr/userstack/wire"
)

// maxChunk bounds in bytes what one CDC message announces, so that the
// receiver can start on a long write and connections of a link take turns.
const maxChunk = 128 << 10

// transmit sends what there is to be said: data within the peer's window,
// our consumer cursor, the end of the connection. It does nothing when there
// is nothing or too much is outstanding; completions call it again.
func (c *Conn) transmit() {
	c.passLost()
	for c.mayPost() {
		l := c.link
		if c.waitOn != nil {
			return
		}
		if l.waitHead != nil || !c.post() {
			l.enqueue(c)
			return
		}
	}
}

// usable says that messages of the connection can flow at all.
func (c *Conn) usable() bool {
	return c.attached && c.g.phase == phaseOpen && c.state != smc.StateClosed && c.next == nil && c.link.state == smc.LinkActive && c.link.qpOpen
}

// mayPost says that there is something to be sent and that not too much is
// outstanding.
func (c *Conn) mayPost() bool {
	if !c.usable() || c.inflight >= maxInflight {
		return false
	}
	if c.verify || (c.update || c.lost.ask) && c.tstate&(wire.ConnClosed|wire.ConnAbnormalClose) == 0 {
		return true
	}
	if c.aborting {
		return c.tstate&wire.ConnAbnormalClose == 0 && !c.answered() || c.update
	}
	if c.tstate&wire.ConnClosed != 0 {
		return c.update // again, after failover
	}
	return c.sendable() > 0 && !c.held() || c.newlyBlocked() || c.newlyUrgent() || c.endDue() != 0
}

// sendable returns how many bytes may be written now.
func (c *Conn) sendable() int {
	end := c.writable()
	if c.aborting || end <= c.sent {
		return 0
	}
	if c.blocked() {
		return 0
	}
	n := min(int(end-c.sent), c.window())
	if n > maxChunk {
		n = maxChunk
		// What was written over a failed link is repeated in one piece: the
		// producer cursor must not go back.
		if c.replay > c.sent {
			n = max(n, int(c.replay-c.sent))
		}
	}
	return n
}

// window returns how many bytes the peer's element has room for.
func (c *Conn) window() int { return c.tx.size - int(c.sent-c.pcons) }

// blocked says that data waits for the peer to read. A sliver of a window is
// not used, since a blocked writer learns of each byte read: a slow reader
// would have the rest sent byte by byte. Data to be repeated after failover
// always has its room.
func (c *Conn) blocked() bool {
	end := c.writable()
	if end <= c.sent {
		return false // or for something else
	}
	w := c.window()
	return uint64(w) < end-c.sent && w < c.tx.size/10 && c.replay <= c.sent && !c.aborting
}

// newlyBlocked says that the peer is to be told so (RFC 7609, section
// 4.5.1).
func (c *Conn) newlyBlocked() bool {
	return c.blocked() && c.tflags&wire.ProdWriterBlocked == 0
}

// endDue returns the state flag that is due now that all data has been
// written and confirmed (RFC 7609, section 4.8.1, 3A).
func (c *Conn) endDue() wire.StateFlags {
	if c.inflight > 0 || c.fin != c.prep || c.aborting {
		return 0
	}
	switch {
	case c.appClosed && c.tstate&wire.ConnClosed == 0:
		return wire.ConnClosed
	case c.wrShut && !c.appClosed && c.tstate&(wire.ConnSendingDone|wire.ConnClosed) == 0:
		return wire.ConnSendingDone
	}
	return 0
}

// piece is one RDMA WRITE.
type piece struct {
	k            *Chunk
	off, roff, n int
}

// pieceAt returns where the byte at pos is, and where it goes. It is as long as the
// rest of its chunk.
func (c *Conn) pieceAt(pos uint64) piece {
	k := c.chunkAt(pos)
	return piece{k: k, off: int(pos - k.from), roff: c.tx.off(c.slot(pos)), n: int(k.end() - pos)}
}

// post sends one CDC message with the writes that belong to it. It is false
// if the link has no room for that.
func (c *Conn) post() bool {
	l := c.link
	if c.verify {
		return c.postVerify()
	}
	n := c.sendable()
	var pieces [maxPieces]piece
	np := 0
	for done := 0; done < n; np++ {
		pos := c.sent + uint64(done)
		p := c.pieceAt(pos)
		p.n = min(n-done, p.n, c.tx.start+c.tx.size-p.roff)
		pieces[np] = p
		done += p.n
	}
	if c.lost.lag > 0 && n > 0 && c.sent+uint64(n) == c.utx {
		p := c.pieceAt(c.utx - 1)
		p.roff, p.n = c.tx.off(c.utx-1), 1
		pieces[np] = p
		np++
	}
	if l.room() < np+1 {
		return false
	}
	at := &c.rtoken.at[l.slot]
	base := at.Addr + uint64(c.peer.SizeCode.Bytes())*uint64(c.peer.Index-1)
	for _, p := range pieces[:np] {
		c.g.act(Action{Kind: ActWrite, Link: l, Conn: c, Chunk: p.k, Off: p.off, Len: p.n, RemoteAddr: base + uint64(p.roff), RKey: at.RKey})
	}
	c.sent += uint64(n)
	if c.sent >= c.replay {
		c.replay = 0
	}
	c.uncork()
	told := c.tflags&wire.ProdWriterBlocked != 0
	c.tflags = 0
	if c.blocked() {
		c.tflags = wire.ProdWriterBlocked
	}
	full := c.tflags != 0 && (n > 0 || !told)
	c.tflags |= c.urgentFlags(n) | c.cursorRequest(n)
	if c.aborting {
		if !c.answered() {
			c.tstate |= wire.ConnAbnormalClose
		}
	} else if due := c.endDue(); n == 0 && due != 0 {
		c.tstate |= due
		c.endSent(due)
	}
	c.rconf, c.update = c.rcons, false
	c.active = c.g.now
	c.seq++
	r := l.push(np + 1)
	r.conn, r.sent, r.seq, r.state = c, c.sent, c.seq, c.tstate
	c.inflight++
	a := c.sendCDC(l, r.token, wire.CDC{
		Seq: c.seq, Token: c.peer.Token, Prod: c.tx.cursor(c.sent), Cons: c.rx.cursor(c.rcons),
		Flags: c.tflags, State: c.tstate,
	})
	a.PeerFull = full
	return true
}

// postVerify sends the failover data validation (RFC 7609, section 4.6.1).
func (c *Conn) postVerify() bool {
	l := c.link
	if l.room() < 1 {
		return false
	}
	c.verify = false
	r := l.push(1)
	r.conn, r.check = c, true
	c.inflight++
	c.sendCDC(l, r.token, wire.CDC{Seq: c.finSeq, Token: c.peer.Token, Flags: wire.ProdFailoverVerify})
	return true
}

func (c *Conn) sendCDC(l *Link, token uint64, m wire.CDC) *Action {
	a := c.g.newAction()
	*a = Action{Kind: ActSend, Link: l, Conn: c, Token: token, plain: m.Flags&wire.ProdFailoverVerify == 0}
	if _, err := m.AppendBinary(a.Msg[:0]); err != nil {
		panic("linkgroup: cannot encode a CDC message: " + err.Error())
	}
	return a
}

// completed takes note that a CDC message and the writes before it have been
// delivered.
func (c *Conn) completed(r *request) {
	c.inflight--
	if c.state == smc.StateClosed {
		c.maybeFree()
		return
	}
	if !r.check {
		c.finSeq = r.seq
		c.heard(r.seq)
		c.tdone |= r.state
		if r.sent > c.fin {
			c.fin = r.sent
			c.freeConfirmed()
			c.progress()
		}
		free := c.ssize - int(c.prep-c.fin)
		if c.full && (free >= (c.ssize+3)/4 || c.prep == c.fin) && c.WriteErr() == nil {
			c.wakeWrite()
		}
	}
	if c.finish() {
		return
	}
	if c.next != nil && c.inflight == 0 && c.link.state == smc.LinkActive {
		c.pause()
		return
	}
	if c.link.state != smc.LinkActive && c.inflight == 0 {
		// The link is being deleted in order: this was the last message.
		if to := c.g.bestLink(c.link); to != nil {
			c.move(to)
			return
		}
	}
	c.transmit()
}

// failed takes note that a CDC message was lost with its link.
func (c *Conn) failed(r *request) {
	c.inflight--
	if c.state == smc.StateClosed {
		c.maybeFree()
		return
	}
	c.update = true // say it again on another link
}

// setLink puts the connection on another link.
func (c *Conn) setLink(to *Link) {
	if c.waitOn != nil {
		c.waitOn.unqueue(c)
	}
	c.unbound()
	c.link.conns--
	c.link = to
	to.conns++
}

// move takes the connection to another link: the peer is asked to check that
// it has what was confirmed to us, and what was not confirmed is written
// again, with what is new (RFC 7609, section 4.6).
func (c *Conn) move(to *Link) {
	c.setLink(to)
	if !c.attached {
		return
	}
	if c.g.phase == phaseOpen {
		c.verify = true
	}
	// What the peer has read needs no repetition; its place in the element
	// may already be taken by what follows.
	from := max(c.fin, c.pcons)
	if from < c.sent {
		c.replay = max(c.replay, c.sent)
		c.sent = from
	}
	c.askAgain()
	c.transmit()
}
