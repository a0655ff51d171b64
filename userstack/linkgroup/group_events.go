// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Received takes a message that the peer sent on l. msg is not kept.
//
// Each message that the adapter has acknowledged must be handed in, even if the queue
// pair is closed in the meantime: a connection that moves to another link is reset if
// the peer has proof of delivery for a message that was not handed in. So a driver must
// look for received messages once more after [Env.CloseQP].
func (g *Group) Received(now time.Time, l *Link, msg []byte) {
	if g.phase == phaseDead {
		return
	}
	g.now = now
	l.lastRx = now
	g.tests.sign(l)
	if wire.IsCDC(msg) {
		m, err := wire.ParseCDC(msg)
		if err != nil {
			g.llc.violation(l, err)
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
			g.end.die(g.end.err) // the server's answer, or both want it
		}
		return
	}
	if !l.qpOpen {
		return // its exchanges are over
	}
	g.llc.recv(l, msg)
	g.advance(now)
}

// Sent reports that the signaled request with this token, and all requests that
// were posted on l before it, completed successfully.
func (g *Group) Sent(now time.Time, l *Link, token uint64) {
	if g.phase == phaseDead || !l.qpOpen || int64(token-l.lastToken) > 0 {
		return
	}
	g.now = now
	l.lastAck = now
	g.tests.sign(l)
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
			g.change.remove(r.on)
		case endOfGroup:
			g.end.die(g.end.err)
		case commit:
			g.first.committed = true
		}
	}
	l.pump()
	if slow || l.state != smc.LinkActive {
		g.advance(now)
	}
}

// LinkFailed reports that a work request on l failed, or that its queue pair is in the
// error state. The connections move to another link if there is one.
func (g *Group) LinkFailed(now time.Time, l *Link, err error) {
	if g.phase == phaseDead || !l.qpOpen {
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
	g.change.fail(l, wire.DeleteLinkLostPath, fmt.Errorf("linkgroup: link %d failed: %w", l.id, err))
	g.advance(now)
}

// DeviceUp adds a device, or updates one. A new path is tried if the group
// lacks redundancy.
func (g *Group) DeviceUp(now time.Time, d Device) {
	if g.phase == phaseDead {
		return
	}
	g.now = now
	d.Up = true
	delete(g.links.refused, d.ID)
	known := false
	for i := range g.links.devices {
		if g.links.devices[i].ID == d.ID {
			if g.links.devices[i].Up {
				g.links.devices[i] = d
				return
			}
			g.links.devices[i], known = d, true
		}
	}
	if !known {
		g.links.devices = append(g.links.devices, d)
	}
	if g.phase == phaseOpen {
		g.adding.newDevice()
	}
	g.advance(now)
}

// DeviceDown makes all links on a device fail. The device is not used again until
// [Group.DeviceUp].
func (g *Group) DeviceDown(now time.Time, devID int) {
	if g.phase == phaseDead {
		return
	}
	g.now = now
	for i := range g.links.devices {
		if g.links.devices[i].ID == devID {
			g.links.devices[i].Up = false
		}
	}
	for _, l := range g.Links() {
		if l.dev.ID == devID && l.qpOpen && g.phase != phaseDead {
			g.change.fail(l, wire.DeleteLinkLostPath, fmt.Errorf("linkgroup: device %s is down", l.dev.Name))
		}
	}
	g.advance(now)
}

// DeleteLink deletes one link in order: its connections move to another link first,
// without loss of data. (See abruptDelete of the profile.) A client asks the server to
// delete the link, and the server does so when no other exchange is under way. The local
// device of the link gets no other link until [Group.DeviceUp]. If it is the last link,
// the group ends as with [Group.Terminate] (RFC 7609, sections 3.5.5.1.3 and 3.5.5.1.4).
func (g *Group) DeleteLink(now time.Time, l *Link, reason wire.DeleteLinkReason) {
	if g.phase >= phaseDying || l.state != smc.LinkActive || l.del.phase == deleteWanted {
		return
	}
	g.now = now
	for i := range g.links.devices {
		if g.links.devices[i].ID == l.dev.ID {
			g.links.devices[i].Up = false
		}
	}
	via := g.links.best(l)
	switch {
	case via == nil:
		g.end.terminate(reason, fmt.Errorf("%w: %s", ErrTerminated, reason))
	case g.cfg.Role == smc.Server:
		l.del.want(true, reason)
	case g.profile.abruptDelete:
		g.change.fail(l, reason, fmt.Errorf("linkgroup: the link is deleted: %s", reason))
	default:
		// The link stays in use until the server deletes it.
		via.sendLLC(wire.DeleteLink{LinkNum: l.id, Orderly: true, Reason: reason}, nothing, nil)
	}
	g.advance(now)
}

// Terminate ends the group: the peer is told to delete all links, and all
// connections are reset at once. ActGroupDead follows when the message is
// delivered or after Timers.Terminate.
func (g *Group) Terminate(now time.Time, reason wire.DeleteLinkReason) {
	if g.phase >= phaseDying {
		return
	}
	g.now = now
	g.end.terminate(reason, fmt.Errorf("%w: %s", ErrTerminated, reason))
	g.advance(now)
}

// Doubt is called after a message that the peer does not have this group any more. The
// message may come from another host. The links are tested, and fail if there is no
// answer. Until there is an answer, the group takes no connections, because the peer
// would decline them.
func (g *Group) Doubt(now time.Time) {
	if g.phase != phaseOpen {
		return
	}
	g.now = now
	for _, l := range g.links.list {
		if l.state != smc.LinkActive {
			continue
		}
		g.tests.doubted = true
		if !l.testing {
			g.tests.send(l)
		}
	}
	g.advance(now)
}
