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
//	-             | deletion wanted soon after an | -           | timer DeleteLinkPause, if the peer  | -
//	              | exchange of links             |             | may be Linux                        |
//	drain         | all completed, timer, failed  | deleteReply | DELETE LINK                         | 3.5.5.1.3
//	deleteReply   | reply                         | -           | free                                | 3.5.5.1.3
//	deleteReply   | timer, carrier fails          | -           | carrier fails, both again or dead   | C.7.1
//	              | timer, the last link, and the | drain       | TEST LINK, asked again              | -
//	              | peer may be Linux             |             |                                     |
//	any           | client: DELETE LINK, orderly  | same        | deletion wanted                     | 3.5.5.1.4
//	any           | the same, disorderly or lost  | same        | link fails, deletion wanted         | 3.5.5.1.4
//	any           | client: unknown link          | same        | ignored if it existed, else reply 1 | C.7.1
//	any           | client: DELETE LINK all       | dying       | DELETE LINK all                     | 3.5.4
//
//	Client: state | Event                         | Next state  | Actions                             | RFC section
//	--------------+-------------------------------+-------------+-------------------------------------+------------
//	active        | link fails, other link        | asked       | connections move, DELETE LINK       | 3.5.5.1.4
//	asked         | timer, carrier fails          | asked, dead | carrier fails, asked over another   | C.7.1
//	asked         | timer, the peer may be Linux  | asked       | TEST LINK, asked again              | -
//	any           | DELETE LINK, orderly          | drain       | connections move                    | 3.5.5.1.3
//	any           | DELETE LINK, disorderly       | replied     | connections move, reply             | 3.5.5.1.3
//	any           | the same, lost path           | the same    | the same, timer AddLinkRetry        | C.8
//	drain         | all completed, half the timer | replied     | reply                               | 3.5.5.1.3
//	replied       | reply delivered, timer        | -           | free                                | 3.5.5.1.3
//	drain,replied | timer, no link is active, one | same        | waits for CONFIRM LINK              | -
//	              | waits for CONFIRM LINK        |             |                                     |
//	any           | DELETE LINK, unknown link     | same        | reply with reason 1                 | C.7.1
//	any           | DELETE LINK all               | dead        | conns conn.ErrReset                      | 3.5.4

// start is the server's first step.
func (d *linkDeletion) start(l *Link) {
	via := d.g.links.best(l)
	if via == nil {
		d.g.end.terminate(l.del.reason, fmt.Errorf("%w: last link deleted: %s", ErrTerminated, l.del.reason))
		return
	}
	l.state = smc.LinkInactive
	d.g.llc.ex = exchange{kind: exDelete, step: waitDrain, via: via, link: l}
	d.g.timers.set(timerExchange, d.g.now.Add(d.g.cfg.Timers.LLC/2))
	d.g.change.moveConns(l)
	d.drained()
}

// drained continues the deletions that waited for completions.
func (d *linkDeletion) drained() {
	if d.g.llc.ex.step == waitDrain && d.g.llc.ex.link.drained() {
		d.send()
	}
	for _, l := range d.g.Links() {
		if l.del.phase == deleteReply && l.drained() {
			d.reply(l)
		}
	}
}

func (d *linkDeletion) send() {
	ex := &d.g.llc.ex
	ex.step = waitDeleteReply
	d.g.timers.set(timerExchange, d.g.now.Add(d.g.llc.answerTime(ex.via)))
	if d.g.profile.abruptDelete {
		ex.link.closeQP()
	}
	ex.via.sendLLC(wire.DeleteLink{LinkNum: ex.link.id, Orderly: ex.link.del.orderly, Reason: ex.link.del.reason}, nothing, nil)
}

// timeout acts on a deletion that the peer did not continue in time.
func (d *linkDeletion) timeout(l *Link) {
	if l.del.phase == deleteReply {
		d.reply(l)
		return
	}
	if l.del.phase == deleteReplied {
		if d.g.change.confirming() {
			l.del.at = d.g.now.Add(d.g.cfg.Timers.LLC)
			return
		}
		d.g.change.remove(l)
		return
	}
	if l.del.phase == deleteAsked {
		via := l.del.via
		if via == nil || via.state != smc.LinkActive {
			d.ask(l)
			return
		}
		if d.g.profile.lateDelete || d.g.profile.slowLLC && d.g.links.best(via) == nil {
			d.g.tests.ask(via)
			d.ask(l)
			return
		}
		d.g.change.fail(via, wire.DeleteLinkLostPath, fmt.Errorf("%w: DELETE LINK", ErrTimeout))
	}
}

func (d *linkDeletion) recv(via *Link, m wire.DeleteLink) {
	if m.All {
		if m.Reply {
			return
		}
		err := fmt.Errorf("%w by the peer: %s", ErrTerminated, m.Reason)
		if d.g.cfg.Role == smc.Server && d.g.phase == phaseDying {
			return // this side is ending the group already
		}
		if d.g.cfg.Role == smc.Server && d.g.phase >= phaseSecond {
			// The client asked; the server does it.
			d.g.end.err = err
			d.g.end.endConns(fmt.Errorf("%w: %w", conn.ErrReset, err))
			d.g.end.terminate(m.Reason, err)
			return
		}
		d.g.end.die(err)
		return
	}
	l := d.g.links.byID(m.LinkNum)
	if d.g.cfg.Role == smc.Server {
		if m.Reply {
			d.recvReply(via, m)
		} else {
			d.recvRequest(via, l, m)
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
	if d.g.llc.ex.link == l {
		d.g.llc.end()
	}
	if m.Reason == wire.DeleteLinkLostPath && d.g.timers[timerAdd].IsZero() {
		d.g.adding.offerLater()
	}
	l.state = smc.LinkInactive
	l.del.phase, l.del.via = deleteReply, via
	l.del.reason, l.del.orderly = m.Reason, m.Orderly
	l.del.at = d.g.now.Add(d.g.cfg.Timers.LLC / 2)
	if l != via && (!m.Orderly || m.Reason == wire.DeleteLinkLostPath) {
		l.closeQP() // the peer has no queue pair any more that could confirm
	}
	d.g.change.moveConns(l)
	d.drained()
}

// reply is the client's last step.
func (d *linkDeletion) reply(l *Link) {
	via := l.del.via
	if via == nil || !via.qpOpen {
		// The server will ask again, or find that the other link has failed too.
		if via = d.g.links.best(l); via == nil {
			l.del.at = d.g.now.Add(d.g.cfg.Timers.LLC / 2) // see linkChanges.confirming
			return
		}
	}
	l.del.phase = deleteReplied
	l.del.at = d.g.now.Add(d.g.cfg.Timers.LLC)
	if l != via && !l.drained() {
		l.closeQP() // requests that have not completed are repeated over another link
	}
	if l != via {
		d.g.llc.abandon(l)
	}
	via.sendLLC(wire.DeleteLink{Reply: true, LinkNum: l.id, Orderly: l.del.orderly, Reason: l.del.reason}, removeIt, l)
	if d.g.phase == phaseSecond {
		d.g.first.open()
	}
}

// recvReply is the server's last step.
func (d *linkDeletion) recvReply(via *Link, m wire.DeleteLink) {
	if d.g.llc.ex.step != waitDeleteReply || d.g.llc.ex.link.id != m.LinkNum || d.g.llc.ex.via != via {
		return
	}
	l := d.g.llc.ex.link
	d.g.llc.end()
	d.g.change.remove(l)
	if d.g.adding.possible() && d.g.phase == phaseOpen && d.g.timers[timerAdd].IsZero() {
		d.g.adding.retryLater()
	}
}

// recvRequest handles the client's request to delete a link.
func (d *linkDeletion) recvRequest(via, l *Link, m wire.DeleteLink) {
	if l == nil {
		if !d.g.links.used[m.LinkNum] {
			m.Reply, m.Reason = true, wire.DeleteLinkUnknownLink
			via.sendLLC(m, nothing, nil)
		}
		return
	}
	if l.del.phase != deleteNone {
		return
	}
	// Linux requests an orderly deletion also of a link that has failed, on which
	// nothing can complete.
	if !m.Orderly || m.Reason == wire.DeleteLinkLostPath {
		if d.g.links.best(l) == nil {
			// The client must have another link, which this side does not have.
			l.del.phase, l.del.reason = deleteWanted, m.Reason
			return
		}
		d.g.change.fail(l, m.Reason, fmt.Errorf("linkgroup: the client reports that link %d failed: %s", l.id, m.Reason))
		return
	}
	l.del.want(true, m.Reason)
}
