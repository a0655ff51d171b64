// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// The DELETE LINK exchange (RFC 7609, sections 3.5.5.1.3 and 3.5.5.1.4).
//
//	Server: step  | Event                         | Next step   | Actions                             | RFC section
//	--------------+-------------------------------+-------------+-------------------------------------+------------
//	-             | deletion wanted, other link   | drain       | connections move                    | 3.5.5.1.3
//	-             | deletion wanted, last link    | dying       | DELETE LINK all                     | 3.5.4
//	drain         | all completed, timer, failed  | deleteReply | DELETE LINK                         | 3.5.5.1.3
//	deleteReply   | reply                         | -           | free                                | 3.5.5.1.3
//	deleteReply   | timer, carrier fails          | -           | carrier fails, both again or dead   | C.7.1
//	any           | client: DELETE LINK, orderly  | same        | deletion wanted                     | 3.5.5.1.4
//	any           | the same, disorderly or lost  | same        | link fails, deletion wanted         | 3.5.5.1.4
//	any           | client: unknown link          | same        | ignored if it existed, else reply 1 | C.7.1
//	any           | client: DELETE LINK all       | dying       | DELETE LINK all                     | 3.5.4
//
//	Client: state | Event                         | Next state  | Actions                             | RFC section
//	--------------+-------------------------------+-------------+-------------------------------------+------------
//	active        | link fails, other link        | asked       | connections move, DELETE LINK       | 3.5.5.1.4
//	asked         | timer, carrier fails          | asked, dead | carrier fails, asked over another   | C.7.1
//	asked         | timer, the peer is Linux      | asked       | TEST LINK, asked again              | -
//	any           | DELETE LINK, orderly          | drain       | connections move                    | 3.5.5.1.3
//	any           | DELETE LINK, disorderly       | replied     | connections move, reply             | 3.5.5.1.3
//	drain         | all completed, half the timer | replied     | reply                               | 3.5.5.1.3
//	replied       | reply delivered               | -           | free                                | 3.5.5.1.3
//	any           | DELETE LINK, unknown link     | same        | reply with reason 1                 | C.7.1
//	any           | DELETE LINK all               | dead        | conns conn.ErrReset                      | 3.5.4

// startDelete is the server's first step.
func (g *Group) startDelete(l *Link) {
	via := g.bestLink(l)
	if via == nil {
		g.terminate(l.delReason, fmt.Errorf("%w: last link deleted: %s", ErrTerminated, l.delReason))
		return
	}
	l.delWanted = false
	l.state = smc.LinkInactive
	g.ex = exchange{kind: exDelete, step: waitDrain, via: via, link: l}
	g.set(timerExchange, g.now.Add(g.cfg.Timers.LLC/2))
	g.moveConns(l)
	g.deleteDrained()
}

// deleteDrained goes on with deletions that waited for completions.
func (g *Group) deleteDrained() {
	if g.ex.kind == exDelete && g.ex.step == waitDrain && g.ex.link.drained() {
		g.sendDelete()
	}
	for _, l := range g.Links() {
		if l.delReply && (l.drained() || !l.qpOpen) {
			g.replyDelete(l)
		}
	}
}

func (g *Group) sendDelete() {
	ex := &g.ex
	ex.step = waitDeleteReply
	g.set(timerExchange, g.now.Add(g.llcTime(ex.via)))
	ex.via.sendLLC(wire.DeleteLink{LinkNum: ex.link.id, Orderly: ex.link.delOrderly, Reason: ex.link.delReason}, nothing, nil)
}

// askDelete is the client's request to delete a link that failed.
func (g *Group) askDelete(l *Link) {
	via := g.bestLink(l)
	if via == nil {
		return // the group is about to die
	}
	l.delAsked, l.delVia = true, via
	l.delAt = g.now.Add(g.cfg.Timers.DeleteLink)
	via.sendLLC(wire.DeleteLink{LinkNum: l.id, Orderly: l.delOrderly, Reason: l.delReason}, nothing, nil)
}

// deleteTimeout: a deletion did not go on.
func (g *Group) deleteTimeout(l *Link) {
	if l.delReply {
		g.replyDelete(l)
		return
	}
	if l.delReplied {
		g.removeLink(l)
		return
	}
	if l.delAsked {
		via := l.delVia
		if via == nil || via.state != smc.LinkActive {
			g.askDelete(l)
			return
		}
		if g.cfg.PeerOS == smc.OSLinux {
			// It was seen to take longer than any timer, with its connections
			// moved and the carrier in use. TEST LINK tells whether it works.
			if !via.testing {
				g.probe(via)
			}
			g.askDelete(l)
			return
		}
		g.failLink(via, wire.DeleteLinkLostPath, fmt.Errorf("%w: DELETE LINK", ErrTimeout))
	}
}

func (g *Group) recvDeleteLink(via *Link, m wire.DeleteLink) {
	if m.All {
		if m.Reply {
			return
		}
		err := fmt.Errorf("%w by the peer: %s", ErrTerminated, m.Reason)
		if g.cfg.Role == smc.Server && g.phase == phaseDying {
			return // our own is under way
		}
		if g.cfg.Role == smc.Server && g.phase >= phaseSecond {
			// The client asked; the server does it.
			g.deadErr = err
			g.endConns(fmt.Errorf("%w: %w", conn.ErrReset, err))
			g.terminate(m.Reason, err)
			return
		}
		g.die(err)
		return
	}
	l := g.linkByID(m.LinkNum)
	if g.cfg.Role == smc.Server {
		if m.Reply {
			g.recvDeleteReply(via, m)
		} else {
			g.recvDeleteWish(via, l, m)
		}
		return
	}
	if m.Reply {
		return
	}
	if l == nil {
		m.Reply, m.Reason = true, wire.DeleteLinkUnknownLink
		via.sendLLC(m, nothing, nil)
		return
	}
	if g.ex.kind == exAdd && g.ex.link == l {
		g.endExchange()
	}
	l.state = smc.LinkInactive
	l.delAsked, l.delReply, l.delReplied, l.delVia = false, true, false, via
	l.delReason, l.delOrderly = m.Reason, m.Orderly
	l.delAt = g.now.Add(g.cfg.Timers.LLC / 2)
	if l != via && (!m.Orderly || m.Reason == wire.DeleteLinkLostPath) {
		l.closeQP() // nobody is left there to confirm what we wait for
	}
	g.moveConns(l)
	g.deleteDrained()
}

// replyDelete is the client's last step.
func (g *Group) replyDelete(l *Link) {
	l.delReply, l.delReplied = false, true
	l.delAt = g.now.Add(g.cfg.Timers.LLC)
	via := l.delVia
	if via == nil || !via.qpOpen {
		// The server will ask again or find the other link gone too.
		if via = g.bestLink(l); via == nil {
			g.removeLink(l)
			return
		}
	}
	if l != via && !l.drained() {
		l.closeQP() // what has not completed is repeated over another link
	}
	if l != via {
		g.unhook(l)
	}
	via.sendLLC(wire.DeleteLink{Reply: true, LinkNum: l.id, Orderly: l.delOrderly, Reason: l.delReason}, removeIt, l)
	if g.phase == phaseSecond {
		g.open()
	}
}

// recvDeleteReply is the server's last step.
func (g *Group) recvDeleteReply(via *Link, m wire.DeleteLink) {
	if g.ex.kind != exDelete || g.ex.step != waitDeleteReply || g.ex.link.id != m.LinkNum || g.ex.via != via {
		return
	}
	l := g.ex.link
	g.endExchange()
	g.removeLink(l)
	if _, ok := g.pickDevice(); ok && !g.dead && g.phase == phaseOpen && g.timers[timerAdd].IsZero() {
		g.retryAdd()
	}
}

// recvDeleteWish is the client's request to delete a link.
func (g *Group) recvDeleteWish(via, l *Link, m wire.DeleteLink) {
	if l == nil {
		if !g.usedIDs[m.LinkNum] {
			m.Reply, m.Reason = true, wire.DeleteLinkUnknownLink
			via.sendLLC(m, nothing, nil)
		}
		return
	}
	if g.ex.kind == exDelete && g.ex.link == l || l.delWanted {
		return
	}
	// Linux asks for an orderly deletion also of a link that is lost, on which
	// nothing can complete.
	if !m.Orderly || m.Reason == wire.DeleteLinkLostPath {
		if g.bestLink(l) == nil {
			// The client has another link, so this is not the whole truth.
			l.delWanted, l.delReason = true, m.Reason
			return
		}
		g.failLink(l, m.Reason, fmt.Errorf("linkgroup: the client reports that link %d failed: %s", l.id, m.Reason))
		return
	}
	l.delWanted, l.delOrderly, l.delReason = true, true, m.Reason
}
