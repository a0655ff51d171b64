// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// Received takes a message that the peer sent on l. msg is not kept.
//
// What the adapter has acknowledged must get here even if the queue pair is
// closed meanwhile: a connection that moves to another link is reset if the
// peer has proof of delivery for a message that never came. So a driver looks
// for received messages after [Env.CloseQP] once more.
func (g *Group) Received(now time.Time, l *Link, msg []byte) {
	if g.dead {
		return
	}
	g.now = now
	l.lastRx = now
	if wire.IsCDC(msg) {
		m, err := wire.ParseCDC(msg)
		if err != nil {
			g.violation(l, err)
			return
		}
		if g.phase == phaseDying {
			return
		}
		// Messages for connections that are gone are normal.
		if c := g.conns[m.Token]; c != nil {
			c.onto = l
			c.Protocol().Receive(m)
		}
		return
	}
	if g.phase == phaseDying {
		if m, err := wire.ParseDeleteLink(msg); err == nil && m.All && g.cfg.Role == smc.Client {
			g.die(g.deadErr) // the server's answer, or both want it
		}
		return
	}
	if !l.qpOpen {
		return // its exchanges are over
	}
	g.recvLLC(l, msg)
	g.settle(now)
}

// Sent takes note that the signaled request with this token, and all that
// were posted on l before it, completed well.
func (g *Group) Sent(now time.Time, l *Link, token uint64) {
	if g.dead || !l.qpOpen || int64(token-l.lastToken) > 0 {
		return
	}
	g.now = now
	l.lastAck = now
	slow := false
	for l.sqLen > 0 && int64(l.sq[l.sqHead].token-token) <= 0 {
		r := l.pop()
		if r.conn != nil {
			r.conn.Protocol().Delivered(r.receipt)
			continue
		}
		slow = true
		switch r.then {
		case removeIt:
			g.removeLink(r.on)
		case endOfGroup:
			g.die(g.deadErr)
		case commit:
			g.committed = true
		}
		if g.dead || !l.qpOpen {
			return
		}
	}
	l.pump()
	if slow || l.state != smc.LinkActive {
		g.settle(now)
	}
}

// LinkFailed takes note that a work request on l failed or that its queue
// pair is in error. The connections move to another link if there is one.
func (g *Group) LinkFailed(now time.Time, l *Link, err error) {
	if g.dead || !l.qpOpen {
		return
	}
	g.now = now
	log := g.log.Warn
	if g.phase == phaseDying {
		// In order: the peer has taken the DELETE LINK of all links, and closed
		// its queue pairs before its answer or acknowledgement got through.
		log = g.log.Debug
	}
	log("link failed", "link", l.id, "dev", l.dev.Name, "err", err)
	g.failLink(l, wire.DeleteLinkLostPath, fmt.Errorf("linkgroup: link %d failed: %w", l.id, err))
	g.settle(now)
}

// DeviceUp adds a device, or updates one. A new path is tried if the group
// lacks redundancy.
func (g *Group) DeviceUp(now time.Time, d Device) {
	if g.dead {
		return
	}
	g.now = now
	d.Up = true
	known := false
	for i := range g.devices {
		if g.devices[i].ID == d.ID {
			if g.devices[i].Up {
				g.devices[i] = d
				return
			}
			g.devices[i], known = d, true
		}
	}
	if !known {
		g.devices = append(g.devices, d)
	}
	if g.phase == phaseOpen {
		g.newDevice()
	}
	g.settle(now)
}

// DeviceDown fails all links on a device and uses it no more until
// [Group.DeviceUp].
func (g *Group) DeviceDown(now time.Time, devID int) {
	if g.dead {
		return
	}
	g.now = now
	for i := range g.devices {
		if g.devices[i].ID == devID {
			g.devices[i].Up = false
		}
	}
	for _, l := range g.Links() {
		if l.dev.ID == devID && l.qpOpen && !g.dead {
			g.failLink(l, wire.DeleteLinkLostPath, fmt.Errorf("linkgroup: device %s is down", l.dev.Name))
		}
	}
	g.settle(now)
}

// DeleteLink has one link deleted in order: its connections move to another
// one first, without loss. The client asks the server for it, which does so
// when it has time. Our device of the link takes no other one until
// [Group.DeviceUp]. The last link goes with the group, as [Group.Terminate] has
// it (RFC 7609, sections 3.5.5.1.3 and 3.5.5.1.4).
func (g *Group) DeleteLink(now time.Time, l *Link, reason wire.DeleteLinkReason) {
	if g.dead || g.phase >= phaseDying || l.state != smc.LinkActive || l.delWanted {
		return
	}
	g.now = now
	for i := range g.devices {
		if g.devices[i].ID == l.dev.ID {
			g.devices[i].Up = false
		}
	}
	via := g.bestLink(l)
	switch {
	case via == nil:
		g.terminate(reason, fmt.Errorf("%w: %s", ErrTerminated, reason))
	case g.cfg.Role == smc.Server:
		l.delWanted, l.delOrderly, l.delReason = true, true, reason
	default:
		// The link stays in use until the server deletes it.
		via.sendLLC(wire.DeleteLink{LinkNum: l.id, Orderly: true, Reason: reason}, nothing, nil)
	}
	g.settle(now)
}

// Terminate ends the group: the peer is told to delete all links, and all
// connections are reset at once. ActGroupDead follows when the message is
// delivered or after Timers.Terminate.
func (g *Group) Terminate(now time.Time, reason wire.DeleteLinkReason) {
	if g.phase >= phaseDying {
		return
	}
	g.now = now
	g.terminate(reason, fmt.Errorf("%w: %s", ErrTerminated, reason))
	g.settle(now)
}

// terminate sends DELETE LINK for all links and ends the group when that is
// delivered. The client only asks, but has no use for the server's answer
// when it has nothing left to protect (RFC 7609, section 3.5.4).
func (g *Group) terminate(reason wire.DeleteLinkReason, err error) {
	if g.phase >= phaseDying {
		return
	}
	first := g.phase == phaseConfirm || g.phase == phaseSecond
	alone := g.bestLink(nil) == nil
	g.phase = phaseDying
	g.deadErr = err
	g.timers = [numTimers]time.Time{}
	g.ex, g.rk, g.peerRK = exchange{}, rkeyExchange{}, peerRKey{}
	if first {
		g.act(Action{Kind: ActFirstLink, Err: g.firstErr(err)})
	}
	g.endConns(errors.Join(conn.ErrAborted, err))
	if alone {
		g.die(err)
		return
	}
	g.log.Info("link group ends", "reason", reason.String())
	orderly := reason != wire.DeleteLinkLostPath && reason != wire.DeleteLinkProtocolViolation
	g.bye = bye{msg: wire.DeleteLink{All: true, Orderly: orderly, Reason: reason}}
	g.sendBye()
}

// bye is the termination of the group under way.
type bye struct {
	msg   wire.DeleteLink
	via   *Link
	tried [maxSlots]bool
}

// sendBye sends DELETE LINK for all links, over one after the other while they
// fail or, on the client, the server does not comply (RFC 7609, appendix
// C.7.1).
func (g *Group) sendBye() {
	b := &g.bye
	b.via = g.leastUsed(func(l *Link) bool { return !b.tried[l.slot] })
	if b.via == nil {
		g.die(g.deadErr)
		return
	}
	b.tried[b.via.slot] = true
	then := endOfGroup
	if g.cfg.Role == smc.Client {
		then = nothing // the server's DELETE LINK is the end
	}
	g.set(timerDie, g.now.Add(g.cfg.Timers.Terminate))
	b.via.sendLLC(b.msg, then, nil)
}

// violation gives up a link whose peer does not keep to the protocol, and the
// group if there is no other (RFC 7609, appendix C.7.1).
func (g *Group) violation(l *Link, err error) {
	if g.phase >= phaseDying || l.state == smc.LinkInactive && !l.qpOpen {
		return
	}
	err = fmt.Errorf("%w: %w", ErrProtocol, err)
	g.log.Error("protocol violation", "link", l.id, "err", err)
	if l.state == smc.LinkActivating || g.bestLink(l) != nil {
		g.failLink(l, wire.DeleteLinkProtocolViolation, err)
		return
	}
	g.terminate(wire.DeleteLinkProtocolViolation, err)
}

// firstErr tells whether DECLINE may still be sent for a first contact that
// failed with err. It may not when the peer can already count on SMC-R (RFC
// 7609, appendix C.3), nor after a timeout: a peer that has seen a failure would
// have declined (appendix C.7).
func (g *Group) firstErr(err error) error {
	if g.committed || errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w: %w", ErrNoFallback, err)
	}
	return err
}

// endConns resets all connections without a message.
func (g *Group) endConns(err error) {
	for _, c := range g.connsSorted() {
		c.setReady(err)
		c.Protocol().End(err)
	}
}

// connsSorted returns the connections in a fixed order.
func (g *Group) connsSorted() []*Conn {
	list := make([]*Conn, 0, len(g.conns))
	for _, c := range g.conns {
		list = append(list, c)
	}
	sortConns(list)
	return list
}

// die releases everything and says so.
func (g *Group) die(err error) {
	if g.dead {
		return
	}
	first := g.phase == phaseConfirm || g.phase == phaseSecond
	g.phase, g.dead = phaseDead, true
	g.timers = [numTimers]time.Time{}
	g.ex, g.rk, g.peerRK = exchange{}, rkeyExchange{}, peerRKey{}
	if err == nil {
		err = ErrTerminated
	}
	if first {
		g.act(Action{Kind: ActFirstLink, Err: g.firstErr(err)})
	}
	for _, l := range g.links {
		l.state = smc.LinkInactive
		l.closeQP()
	}
	cause := err
	if !errors.Is(err, conn.ErrReset) {
		cause = errors.Join(conn.ErrReset, err)
	}
	g.endConns(cause)
	for _, l := range g.links {
		g.deregister(l)
	}
	g.links = nil
	for _, r := range append([]*rmb(nil), g.rmbs...) {
		if r.inUse == 0 {
			g.freeRMB(r)
		}
	}
	g.rtokens, g.past = nil, nil
	g.act(Action{Kind: ActGroupDead, Err: err})
}
