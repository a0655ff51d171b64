// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// create creates a link with a queue pair in INIT.
func (c *linkChanges) create(dev Device) (*Link, error) {
	slot := 0
	for slot < maxSlots && slices.ContainsFunc(c.g.links.list, func(l *Link) bool { return l.slot == slot }) {
		slot++
	}
	if slot == maxSlots {
		return nil, fmt.Errorf("%w: %d links", ErrFull, maxSlots)
	}
	l := &Link{g: c.g, slot: slot, dev: dev, state: smc.LinkActivating, sendQueue: sendQueue{sq: make([]request, c.g.cfg.SendQueue)}, lastRx: c.g.now}
	ep, err := c.g.env.NewQP(l, dev)
	if err != nil {
		return nil, fmt.Errorf("linkgroup: create a queue pair on %s: %w", dev.Name, err)
	}
	l.local, l.qpOpen = ep, true
	c.g.links.list = append(c.g.links.list, l)
	return l, nil
}

// fail handles the failure of a link: its connections move to another link, and
// the link is deleted. If no link is left, the group ends.
func (c *linkChanges) fail(l *Link, reason wire.DeleteLinkReason, err error) {
	if c.g.phase == phaseDead || l.state == smc.LinkInactive && !l.qpOpen {
		return
	}
	if c.g.phase == phaseDying {
		l.state = smc.LinkInactive
		l.closeQP()
		switch {
		case c.g.links.best(nil) == nil:
			c.g.end.die(c.g.end.err)
		case l == c.g.end.via:
			c.g.end.send()
		}
		return
	}
	if l.state == smc.LinkActivating {
		switch {
		case c.g.llc.ex.link == l:
			c.g.adding.failed(err)
		case c.g.phase <= phaseConfirm: // it is the first one
			c.g.end.die(err)
		default:
			c.remove(l)
		}
		return
	}
	l.state = smc.LinkInactive
	l.closeQP()
	if c.g.links.best(l) == nil {
		c.lastFailed(l, reason, err)
		return
	}
	c.g.log.Warn("link is down", "link", l.id, "dev", l.dev.Name, "err", err)
	c.g.llc.abandon(l)
	for _, m := range c.g.links.list {
		if m.del.via == l && m.del.phase == deleteAsked {
			c.g.deletion.ask(m) // over another link
		}
	}
	c.moveConns(l)
	c.loseCursors(l)
	if l.del.phase == deleteReply || l.del.phase == deleteReplied {
		return // the server is deleting it
	}
	c.deleteFailed(l, reason)
}

// deleteFailed has the server delete a link that failed.
func (c *linkChanges) deleteFailed(l *Link, reason wire.DeleteLinkReason) {
	l.del.reason, l.del.orderly = reason, false
	if c.g.cfg.Role == smc.Server {
		if l.del.phase == deleteNone {
			l.del.phase = deleteWanted
		}
	} else {
		c.g.deletion.ask(l)
	}
}

// lastFailed acts on the failure of the only active link. The group ends, unless another
// link lacks only CONFIRM LINK. The peer may have confirmed that link already, and use it.
// Then the connections wait for its confirmation.
func (c *linkChanges) lastFailed(l *Link, reason wire.DeleteLinkReason, err error) {
	ex := &c.g.llc.ex
	if !ex.confirming() {
		c.g.end.die(fmt.Errorf("%w: %w", conn.ErrReset, err))
		return
	}
	c.g.log.Warn("link is down, and the next one is not confirmed yet", "link", l.id, "dev", l.dev.Name, "next", ex.link.id, "err", err)
	ex.via = nil
	c.g.llc.abandon(l)
	for _, m := range c.g.links.list {
		if m.del.via == l {
			m.del.via = nil
		}
	}
	l.del.reason, l.del.orderly = reason, false
}

// confirming reports whether no link is active, but one lacks only CONFIRM LINK (see
// lastFailed). No link must be removed then: the end of the last one is the end of the group.
func (c *linkChanges) confirming() bool {
	return c.g.links.best(nil) == nil && c.g.llc.ex.confirming()
}

// confirming reports whether a link is being added that lacks only CONFIRM LINK.
func (ex *exchange) confirming() bool {
	return ex.step == waitConfirm && ex.link.qpOpen
}

// resume moves the connections that waited for a link to be confirmed, and has the links
// deleted that failed meanwhile.
func (c *linkChanges) resume() {
	for _, l := range c.g.Links() {
		if l.state != smc.LinkInactive {
			continue
		}
		c.moveConns(l)
		switch {
		case l.del.phase == deleteNone && !l.qpOpen:
			c.deleteFailed(l, l.del.reason)
		case l.del.phase == deleteAsked && l.del.via == nil:
			c.g.deletion.ask(l)
		}
	}
}

// remove forgets a link and what depends on it.
func (c *linkChanges) remove(l *Link) {
	if l == nil || !slices.Contains(c.g.links.list, l) {
		return
	}
	l.state = smc.LinkInactive
	l.closeQP()
	c.g.llc.abandon(l)
	c.g.rmbs.deregister(l)
	if c.g.phase != phaseDead {
		c.g.peerRMBs.rememberLink(c.g.now, l)
	}
	for _, t := range slices.Clone(c.g.peerRMBs.list) {
		t.at[l.slot] = slotToken{}
		if len(t.conns) == 0 && t.at == ([maxSlots]slotToken{}) {
			c.g.peerRMBs.drop(t)
		}
	}
	c.g.links.list = slices.DeleteFunc(c.g.links.list, func(m *Link) bool { return m == l })
	for _, m := range c.g.links.list {
		if m.del.via == l {
			m.del.via = nil
		}
	}
	c.moveConns(l)
	if !c.g.deletion.asked() {
		for _, m := range c.g.connsSorted() {
			m.Protocol().Nudge(false)
		}
	}
	if c.g.phase != phaseDead && c.g.links.best(nil) == nil {
		c.g.end.die(ErrNoLink)
	}
}

// moveConns takes the connections of l to the others.
func (c *linkChanges) moveConns(l *Link) {
	if l.conns == 0 || c.g.links.best(l) == nil {
		return
	}
	for _, m := range c.g.connsSorted() {
		if m.link != l || m.Protocol().Outstanding() {
			continue // wait for the completions on a link that works
		}
		m.move(c.g.links.best(l))
		if !l.qpOpen {
			c.failovers++
		}
	}
}

// loseCursors tells the connections which write over other links that the peer may have
// lost a message on l.
func (c *linkChanges) loseCursors(l *Link) {
	for _, c := range c.g.connsSorted() {
		if c.link != l && c.peerLink() == l {
			c.Protocol().CursorLost()
		}
	}
}

// abandon ends the exchanges that were carried by a link whose queue pair is closed.
// They begin again over another link.
func (e *llcEngine) abandon(l *Link) {
	if e.ex.kind == exAdd && e.ex.via == l {
		e.g.adding.drop()
	}
	if e.ex.kind == exDelete && e.ex.via == l {
		e.end()
	}
	if e.g.rkeys.own.kind != rkNone && e.g.rkeys.own.via == l {
		e.g.rkeys.end()
	}
	if e.g.rkeys.peer.via == l {
		e.g.rkeys.peer = peerRKey{}
		e.g.timers.stop(timerPeerRK)
	}
	for _, c := range e.g.connsSorted() {
		if c.planned == l {
			c.cancelMove()
		}
	}
}

// end ends the exchange of links, so that another one may begin.
func (e *llcEngine) end() {
	e.ex, e.endedAt = exchange{}, e.g.now
	e.g.timers.stop(timerExchange)
	e.g.timers.stop(timerRetry) // a refused CONFIRM RKEY may be tried now
}

// carrierFailed treats the link that carries the exchange as failed.
func (e *llcEngine) carrierFailed(err error) {
	via := e.ex.via
	if e.g.phase == phaseSecond {
		e.g.end.die(err)
		return
	}
	e.g.change.fail(via, wire.DeleteLinkLostPath, err)
}

// violation gives up a link because the peer violated the protocol. If there is no
// other link, it gives up the group (RFC 7609, appendix C.7.1).
func (e *llcEngine) violation(l *Link, err error) {
	if e.g.phase >= phaseDying || l.state == smc.LinkInactive && !l.qpOpen {
		return
	}
	err = fmt.Errorf("%w: %w", ErrProtocol, err)
	e.g.log.Error("protocol violation", "link", l.id, "err", err)
	if l.state == smc.LinkActivating || e.g.links.best(l) != nil {
		e.g.change.fail(l, wire.DeleteLinkProtocolViolation, err)
		return
	}
	e.g.end.terminate(wire.DeleteLinkProtocolViolation, err)
}

// failed gives up a link that the peer knows: both sides delete it.
func (a *linkAddition) failed(err error) {
	l := a.g.llc.ex.link
	a.g.log.Warn("cannot add the link", "link", l.id, "err", err)
	a.g.llc.end()
	l.state = smc.LinkInactive
	l.closeQP()
	if a.g.links.best(nil) == nil {
		a.g.end.die(fmt.Errorf("%w: %w", conn.ErrReset, err))
		return
	}
	l.del.reason, l.del.orderly = wire.DeleteLinkLostPath, false
	if errors.Is(err, ErrProtocol) {
		l.del.reason = wire.DeleteLinkProtocolViolation
	}
	a.retryLater() // the client reports its device to the server again
	if a.g.cfg.Role == smc.Server {
		l.del.phase = deleteWanted
	} else {
		a.g.deletion.ask(l)
	}
}

// drop gives up a link without a message: the link that carried the exchange has
// failed, and the peer notices that too.
func (a *linkAddition) drop() {
	l := a.g.llc.ex.link
	a.g.llc.end()
	l.state = smc.LinkInactive
	l.closeQP()
	if a.g.cfg.Role == smc.Server {
		l.del.want(false, wire.DeleteLinkLostPath)
		a.wanted = true // over another link
	} else {
		a.g.change.remove(l)
	}
}

// retryLater sets the timer for another try (RFC 7609, appendix C.8).
func (a *linkAddition) retryLater() {
	if last := a.g.cfg.Timers.AddLinkRetry; last > 0 {
		a.g.timers.set(timerAdd, a.g.now.Add(min(last, firstAddRetry<<a.tries)))
		a.tries = min(a.tries+1, 16)
	}
}

// offerLater makes the client tell the server again that a device has no link, if that is so
// then. A server that gave up a link since its packets were lost tries again itself, but Linux
// does not. So the client waits for four times as long as such a server.
func (a *linkAddition) offerLater() {
	a.tries = max(a.tries, 2)
	a.retryLater()
}

// firstAddRetry is the first pause before another try to add a link. It
// doubles up to Timers.AddLinkRetry.
const firstAddRetry = 5 * time.Second

// ask is the client's request to delete a link that failed.
func (d *linkDeletion) ask(l *Link) {
	via := d.g.links.best(l)
	if via == nil {
		return // the group is about to die
	}
	l.del.phase, l.del.via = deleteAsked, via
	l.del.at = d.g.now.Add(d.g.cfg.Timers.DeleteLink)
	via.sendLLC(wire.DeleteLink{LinkNum: l.id, Orderly: l.del.orderly, Reason: l.del.reason}, nothing, nil)
	if !d.g.profile.holdsBack {
		return
	}
	for _, c := range d.g.connsSorted() {
		if c.peerLink() == l {
			c.Protocol().Nudge(true)
		}
	}
}

// asked reports whether the server still has to delete a link that failed.
func (d *linkDeletion) asked() bool {
	return slices.ContainsFunc(d.g.links.list, func(l *Link) bool { return l.del.phase == deleteAsked })
}
