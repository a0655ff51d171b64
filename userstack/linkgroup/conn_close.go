// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// The end of a connection (RFC 7609, section 4.8). "send D", "send C" and
// "send A" stand for a CDC message with PeerDoneWriting,
// PeerConnectionClosed and PeerConnAbort; D and C go out once all data is
// confirmed.
//
//	From            | Event                     | To              | Actions                     | Section
//	----------------+---------------------------+-----------------+-----------------------------+--------
//	INIT            | Attach                    | ACTIVE          | stashed message             | 4.8.1 2
//	any             | CloseWrite, data pending  | same            | D later                     | 4.8.1 3A
//	any             | Close, data pending       | same            | C later, timer CloseWait    | 4.8.1 3A
//	any             | Close, unread data        | PEERABORTWAIT   | send A                      | 4.8.1 3A
//	ACTIVE          | D sent                    | PEERCLOSEWAIT1  |                             | 4.8.1 3A
//	ACTIVE          | C sent                    | PEERCLOSEWAIT1  | timer CloseWait             | 4.8.1 3A
//	ACTIVE          | D received                | APPCLOSEWAIT1   | wake reader                 | 4.8.1 4A
//	ACTIVE          | C received                | APPCLOSEWAIT1   | wake reader, writer         | 4.8.1 4A
//	any             | C received, data pending  | PEERABORTWAIT   | send A                      | 4.8.1 4A
//	PEERCLOSEWAIT1  | D received                | PEERCLOSEWAIT2  | wake reader                 | 4.8.1 3B
//	PEERCLOSEWAIT1,2| C sent (after D)          | same            | timer CloseWait             | 4.8.1 3
//	PEERCLOSEWAIT1,2| C received, C not sent    | APPFINCLOSEWAIT | wake reader, writer         | 4.8.1 3D
//	PEERCLOSEWAIT1,2| C received, C sent        | CLOSED          | ActConnClosed nil           | 4.8.1 3C
//	APPFINCLOSEWAIT | C sent                    | CLOSED          | ActConnClosed nil           | 4.8.1 3D
//	APPCLOSEWAIT1   | D sent                    | APPCLOSEWAIT2   |                             | 4.8.1 4B
//	APPCLOSEWAIT1,2 | C received                | same            | wake writer                 | 4.8.1 4A
//	APPCLOSEWAIT1,2 | C sent, C received before | CLOSED          | ActConnClosed nil           | 4.8.1 4C
//	APPCLOSEWAIT1,2 | C sent, not received      | PEERFINCLOSEWAIT| timer CloseWait             | 4.8.1 4C
//	PEERFINCLOSEWAIT| C received                | CLOSED          | ActConnClosed nil           | 4.8.1 4D
//	any             | CloseWait without progress| PEERABORTWAIT   | send A                      | 4.8.1
//	any             | Abort, bad message        | PEERABORTWAIT   | send A, purge, wake both    | 4.8.2 1A
//	any             | TCP ended, grace over     | PEERABORTWAIT   | send A, purge, wake both    | 4.8.2
//	any             | A received                | PROCESSABORT    | send A, purge, wake both    | 4.8.2 2A
//	any, C sent     | A received                | PROCESSABORT    | purge, wake both            | A.4
//	PROCESSABORT    | A or C delivered          | CLOSED          | ActConnClosed ErrReset      | 4.8.2 2B
//	PEERABORTWAIT   | A or C received, A deliv. | CLOSED          | ActConnClosed err           | 4.8.2 1B
//	PEERABORTWAIT,  | AbortWait over            | CLOSED          | ActConnClosed err, RMBE is  | 4.8.2 1B
//	PROCESSABORT    |                           |                 | not used again              |
//	any             | last link lost            | CLOSED          | ActConnClosed ErrReset      | 4.8.3
//	any             | peer gave up its RMBE     | CLOSED          | ActConnClosed ErrReset, nil | 4.4.2
//	                |                           |                 | if C was sent               |
//
// CLOSED is entered when the last message of this side has been delivered.
// That an abort timer leaves the RMBE unused for good is stricter than the
// RFC, which hands it to another connection.

// CloseWrite says that no more will be sent than what was produced, as
// shutdown(SHUT_WR) does.
func (c *Conn) CloseWrite(now time.Time) {
	if c.wrShut || c.state == smc.StateClosed || c.err != nil {
		return
	}
	c.g.now = now
	c.wrShut = true
	c.transmit()
	c.g.settle(now)
}

// Close ends the connection after what was produced is delivered; or resets
// it if there is unread data. ActConnClosed follows when the peer has closed
// too.
func (c *Conn) Close(now time.Time) {
	if c.appClosed || c.state == smc.StateClosed {
		return
	}
	c.g.now = now
	if c.err != nil {
		c.appClosed = true
		return // ends by itself
	}
	if !c.attached {
		return
	}
	if c.rprod != c.rcons {
		c.abort(ErrAborted)
		c.appClosed = true
		c.g.settle(now)
		return
	}
	c.appClosed, c.wrShut = true, true
	c.arm(now.Add(c.g.cfg.Timers.CloseWait))
	c.transmit()
	c.finish()
	c.g.settle(now)
}

// Abort resets the connection.
func (c *Conn) Abort(now time.Time) {
	if c.state == smc.StateClosed || c.err != nil || !c.attached {
		return
	}
	c.g.now = now
	c.abort(ErrAborted)
	c.g.settle(now)
}

// TCPClosed says that the TCP connection below ended, by FIN or RST. If the
// peer has not said so on the link too within Timers.TCPGrace, the connection
// is reset. After a FIN a peer whose stack still speaks, if need be asked by
// TEST LINK, may take Timers.TCPGraceAlive: a busy host may be that far behind,
// and so may what it says on a link that is full. So may one that is silent, as
// long as other connections show that its stack lives.
func (c *Conn) TCPClosed(now time.Time, reset bool) {
	if c.state == smc.StateClosed || !c.attached || c.aborting {
		return
	}
	c.g.now = now
	c.tcpReset = c.tcpReset || reset
	if c.graceAt.IsZero() && !c.tcpExplained() {
		c.tcpEndAt = now
		c.graceAt = now.Add(c.g.cfg.Timers.TCPGrace / 4)
		c.g.connTimer(c.graceAt)
	}
}

// graceOver looks at a connection without TCP below, whose end the peer has
// not explained for a while.
func (c *Conn) graceOver(now time.Time) {
	c.graceAt = time.Time{}
	if c.tcpExplained() {
		return
	}
	timers, l := &c.g.cfg.Timers, c.link
	judge, last := c.tcpEndAt.Add(timers.TCPGrace), c.tcpEndAt.Add(timers.TCPGraceAlive)
	switch heard := l.lastRx.After(c.tcpEndAt); {
	case now.Before(judge):
		c.graceAt = judge
		if !heard && !c.tcpReset && l.state == smc.LinkActive && l.qpOpen && !l.testing {
			c.g.probe(l)
		}
	case heard && !c.tcpReset && now.Before(last):
		c.graceAt = last
	case !c.tcpReset && now.Before(last) && l.alive().Add(timers.TCPGrace).After(now):
		// Its answer is behind what still gets through.
		c.graceAt = l.alive().Add(timers.TCPGrace)
		if c.graceAt.After(last) {
			c.graceAt = last
		}
	case !c.tcpReset && now.Before(last) && c.g.peerLives():
		c.graceAt = now.Add(timers.TCPGrace)
		if c.graceAt.After(last) {
			c.graceAt = last
		}
	default:
		c.g.log.Info("connection reset: the TCP connection ended without a close message from the peer", "token", c.token,
			"after", now.Sub(c.tcpEndAt), "silence", now.Sub(l.alive()))
		c.abort(ErrReset)
	}
}

// peerLives says that the peer's stack has not died, though it may be too busy to
// speak: another link has just heard of it, or another connection has its TCP
// connection, which would have ended with the stack.
func (g *Group) peerLives() bool {
	if g.mournedAt.Equal(g.now) {
		return false
	}
	for _, l := range g.links {
		if l.state == smc.LinkActive && l.alive().Add(g.cfg.Timers.TCPGrace).After(g.now) {
			return true
		}
	}
	for _, c := range g.conns {
		// What has begun to end may have no TCP connection any more.
		if c.attached && c.state == smc.StateActive && !c.wrShut && !c.aborting && c.rstate == 0 && c.tcpEndAt.IsZero() {
			return true
		}
	}
	g.mournedAt = g.now // all connections that it had ask at once
	return false
}

// tcpExplained says that the end of the TCP connection follows from what the
// peer said on the link.
func (c *Conn) tcpExplained() bool {
	if c.rstate&(wire.ConnClosed|wire.ConnAbnormalClose) != 0 {
		return true
	}
	return !c.tcpReset && c.rstate&wire.ConnSendingDone != 0
}

func (c *Conn) arm(at time.Time) {
	c.closeAt = at
	c.g.connTimer(at)
}

// progress puts the stranding timer off while the peer still takes data.
func (c *Conn) progress() {
	if c.appClosed && !c.aborting && c.tstate&wire.ConnClosed == 0 {
		c.arm(c.g.now.Add(c.g.cfg.Timers.CloseWait))
	}
}

// expire looks at the timers of the connection.
func (c *Conn) expire(now time.Time) {
	if due(c.checkAt, now) {
		c.checkAt = time.Time{}
		c.g.log.Warn("connection reset: data was lost with a link", "token", c.token)
		c.checking, c.stashed = false, false
		c.abort(ErrReset)
	}
	if due(c.moveAt, now) {
		c.rebind()
	}
	if due(c.strayAt, now) {
		c.stray()
	}
	if due(c.keepAt, now) {
		c.keepAlive(now)
	}
	if due(c.corkAt, now) {
		c.corkAt = time.Time{}
		c.Push(now)
	}
	if due(c.urgentAt, now) {
		c.urgentAt = time.Time{}
		c.urgentTimeout()
	}
	if due(c.takenAt, now) {
		c.takenAt = time.Time{}
		c.silent()
	}
	if due(c.graceAt, now) {
		c.graceOver(now)
	}
	if due(c.closeAt, now) {
		c.closeAt = time.Time{}
		if c.aborting {
			// The peer never said that it stopped writing.
			c.closed(c.err, c.rstate&(wire.ConnClosed|wire.ConnAbnormalClose) == 0)
		} else {
			c.abort(ErrCloseTimeout)
		}
	}
}

// abort resets the connection from this side.
func (c *Conn) abort(err error) {
	if c.state == smc.StateClosed || c.aborting {
		return
	}
	if errors.Is(err, ErrProtocol) {
		err = errors.Join(ErrReset, err)
	}
	c.purge(err)
	c.state = smc.StatePeerAbortWait
	c.arm(c.g.now.Add(c.g.cfg.Timers.AbortWait))
	c.transmit()
	c.finish()
}

// peerAborted answers the peer's reset.
func (c *Conn) peerAborted() {
	if c.state == smc.StateClosed || c.aborting {
		c.finish()
		return
	}
	c.purge(ErrReset)
	c.state = smc.StateProcessAbort
	c.arm(c.g.now.Add(c.g.cfg.Timers.AbortWait))
	c.transmit()
	c.finish()
}

// answered says that the peer's reset needs no answer: our C says already that we
// are done, and no message follows it (RFC 7609, appendix A.4).
func (c *Conn) answered() bool {
	return c.state == smc.StateProcessAbort && c.tstate&wire.ConnClosed != 0
}

// evict ends a connection whose RMBE the peer has given up: no message may be
// sent and nothing be written. After our own close that is the orderly end;
// the peer's last message is just not processed yet.
func (c *Conn) evict() {
	if c.err == nil && c.tstate&wire.ConnClosed != 0 {
		c.closed(nil, false)
		return
	}
	if c.err == nil {
		c.err = ErrReset
	}
	c.closed(c.err, false)
}

// purge throws away what is waiting to be sent or read.
func (c *Conn) purge(err error) {
	c.err = err
	c.aborting = true
	c.graceAt, c.checkAt = time.Time{}, time.Time{}
	c.urgentAt, c.corkAt = time.Time{}, time.Time{}
	c.forget()
	c.checking, c.stashed = false, false
	c.update = false
	c.wakeAll()
}

// endSent changes the state when D or C goes out.
func (c *Conn) endSent(flag wire.StateFlags) {
	switch c.state {
	case smc.StateActive:
		c.state = smc.StatePeerCloseWait1
	case smc.StateAppCloseWait1, smc.StateAppCloseWait2:
		if flag == wire.ConnSendingDone {
			c.state = smc.StateAppCloseWait2
		} else if c.rstate&wire.ConnClosed == 0 {
			c.state = smc.StatePeerFinCloseWait
		}
	}
	if flag == wire.ConnClosed {
		c.arm(c.g.now.Add(c.g.cfg.Timers.CloseWait))
	}
}

// peerEnded changes the state for flags D and C that the peer has newly set.
// It is false if the connection is over or being reset.
func (c *Conn) peerEnded(news wire.StateFlags) bool {
	switch c.state {
	case smc.StateActive:
		c.state = smc.StateAppCloseWait1
	case smc.StatePeerCloseWait1, smc.StatePeerCloseWait2:
		if c.rstate&wire.ConnClosed == 0 {
			c.state = smc.StatePeerCloseWait2
		} else if c.tstate&wire.ConnClosed == 0 {
			c.state = smc.StateAppFinCloseWait
		}
	}
	if news&wire.ConnClosed != 0 {
		if c.prep > c.sent || c.replay > 0 {
			c.abort(ErrReset)
			return false
		}
		c.wakeWrite()
	}
	return !c.finish()
}

// finish closes the connection if both sides are done with it.
func (c *Conn) finish() bool {
	const last = wire.ConnClosed | wire.ConnAbnormalClose
	if c.state == smc.StateClosed {
		return true
	}
	if c.rstate&last == 0 {
		return false
	}
	if c.aborting {
		if c.tdone&wire.ConnAbnormalClose == 0 && !(c.answered() && c.tdone&wire.ConnClosed != 0) {
			return false
		}
		c.closed(c.err, false)
		return true
	}
	if c.tdone&wire.ConnClosed == 0 {
		return false
	}
	c.closed(nil, false)
	return true
}
