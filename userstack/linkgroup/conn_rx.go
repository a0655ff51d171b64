// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// verifyWait is how long a failover validation waits for messages which the
// old link has delivered but whose processing is behind.
const verifyWait = 200 * time.Millisecond

// wantUpdate decides whether the consumer cursor is worth a message of its
// own (RFC 7609, section 4.5.1):
//
//	peer's last message | unread progress          | update
//	--------------------+--------------------------+-------
//	R flag              | any                      | yes
//	B flag              | any                      | yes
//	urgent data         | just read past it        | yes
//	otherwise           | >= 10% of the buffer and |
//	                    | window seen by the peer  |
//	                    | less than half           | yes
//	otherwise           |                          | no
func (c *Conn) wantUpdate() bool {
	gain := c.rcons - c.rconf
	if gain == 0 {
		return false
	}
	if c.rflags&(wire.ProdCursorRequest|wire.ProdWriterBlocked) != 0 {
		return true
	}
	if c.urgent > c.rconf && c.rcons >= c.urgent {
		return true
	}
	size := uint64(c.rx.size)
	seen := size - (c.rprod - c.rconf)
	return seen*2 < size && gain*10 >= size
}

// recvCDC processes a message of the peer.
func (c *Conn) recvCDC(now time.Time, m wire.CDC) {
	if m.Flags&wire.ProdFailoverVerify != 0 {
		c.recvVerify(now, m.Seq)
		return
	}
	newer := c.checking && int16(m.Seq-c.checkSeq) > 0 // than what is waited for
	if !c.attached && !newer && int16(m.Seq-c.early) > 0 {
		c.early = m.Seq
		c.checking = c.checking && m.Seq != c.checkSeq
	}
	if !c.attached || newer {
		if !c.stashed || int16(m.Seq-c.stash.Seq) > 0 {
			c.stash, c.stashed = m, true
		}
		return
	}
	if int16(m.Seq-c.rseq) <= 0 {
		return // old
	}
	if c.state == smc.StatePeerAbortWait || c.state == smc.StateProcessAbort {
		c.rseq = m.Seq
		c.rstate |= m.State
		c.finish()
		return
	}
	dp, dc, err := c.checkCursors(m)
	if err != nil {
		c.g.log.Warn("connection aborted", "token", c.token, "err", err)
		c.abort(err)
		return
	}
	if !c.intact() {
		c.g.log.Error("connection aborted: the RMB element was overwritten", "token", c.token, "rmbe", c.elem+1)
		c.abort(fmt.Errorf("%w: eye catcher of RMB element overwritten", ErrProtocol))
		return
	}
	c.rseq = m.Seq
	c.active = now
	c.rflags = m.Flags
	news := m.State &^ c.rstate
	c.rstate |= m.State
	c.rprod += dp
	c.pcons += dc
	c.cursorTold(m.Flags, news, dp, dc)
	c.urgentNews(m.Flags, dp)
	if dc > 0 {
		c.progress()
		c.urgentConfirmed()
	}
	if c.sent < c.pcons && c.replay > 0 {
		c.sent = c.pcons // read by the peer before it was written again
		if c.sent >= c.replay {
			c.replay = 0
		}
	}
	if m.State&wire.ConnAbnormalClose != 0 {
		c.peerAborted()
		return
	}
	if c.appClosed {
		c.rcons = c.rprod // nobody reads it
	} else if dp > 0 || news != 0 {
		if news != 0 {
			c.woken = false
		}
		c.wakeRead()
	}
	if !c.appClosed && c.wantUpdate() {
		c.update = true // the peer waits, and what it waits for was read before
	}
	if news != 0 && !c.peerEnded(news) {
		return
	}
	c.transmit()
	if c.checking && int16(c.rseq-c.checkSeq) >= 0 {
		c.verified(now)
	}
}

// checkCursors returns how far the two cursors of m go ahead. A producer
// cursor beyond the free part of our element, and a consumer cursor beyond
// what was written, cannot come from a sound peer, nor one that goes back;
// except that a peer which moved the connection may announce again what it
// does not know to have arrived.
func (c *Conn) checkCursors(m wire.CDC) (dp, dc uint64, err error) {
	dp, ok := c.rx.ahead(m.Prod, c.rprod)
	if !ok {
		return 0, 0, fmt.Errorf("%w: producer cursor %d outside of the RMB element", ErrProtocol, m.Prod.Count)
	}
	if dp > uint64(c.rx.size)-(c.rprod-c.rcons) {
		back := uint64(c.rx.size)<<16 - dp
		if !c.moved || back > uint64(c.rx.size) {
			return 0, 0, fmt.Errorf("%w: producer cursor %d:%d overruns the RMB element", ErrProtocol, m.Prod.Wrap, m.Prod.Count)
		}
		dp = 0
	}
	dc, ok = c.tx.ahead(m.Cons, c.pcons)
	if !ok {
		return 0, 0, fmt.Errorf("%w: consumer cursor %d outside of the RMB element", ErrProtocol, m.Cons.Count)
	}
	if dc > max(c.sent, c.replay)-c.lost.lag-c.pcons {
		return 0, 0, fmt.Errorf("%w: consumer cursor %d:%d beyond what was written", ErrProtocol, m.Cons.Wrap, m.Cons.Count)
	}
	return dp, dc, nil
}

// recvVerify processes a failover data validation: everything up to message
// seq, whose delivery the peer's adapter has confirmed, must have arrived
// (RFC 7609, section 4.6.1).
func (c *Conn) recvVerify(now time.Time, seq uint16) {
	c.moved = true
	last := c.rseq
	if !c.attached {
		last = c.early
	}
	if int16(last-seq) >= 0 {
		return
	}
	c.checking, c.checkSeq = true, seq
	if c.attached {
		c.awaitOld(now)
	}
}

// awaitOld waits for the message that a failover validation spoke of, which may
// still stand in the completion queue of the old link.
func (c *Conn) awaitOld(now time.Time) {
	c.checkAt = now.Add(verifyWait)
	c.g.connTimer(c.checkAt)
}

func (c *Conn) verified(now time.Time) {
	c.checking, c.checkAt = false, time.Time{}
	if c.stashed {
		c.stashed = false
		c.recvCDC(now, c.stash)
	}
}
