// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// nextID assigns a link number. Numbers come round only after all others
// (RFC 7609, section 2.2.4).
func (g *Group) nextID() uint8 {
	for {
		g.lastID++
		if g.lastID != 0 && g.linkByID(g.lastID) == nil {
			g.usedIDs[g.lastID] = true
			return g.lastID
		}
	}
}

func (g *Group) linkByID(id uint8) *Link {
	for _, l := range g.links {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (l *Link) setID(id uint8) {
	l.id = id
	l.g.usedIDs[id] = true
	l.uid = binary.BigEndian.Uint32(l.g.cfg.ID[:]) + uint32(id)
}

// newLink creates a link with a queue pair in INIT.
func (g *Group) newLink(dev Device) (*Link, error) {
	slot := 0
	for slot < maxSlots && slices.ContainsFunc(g.links, func(l *Link) bool { return l.slot == slot }) {
		slot++
	}
	if slot == maxSlots {
		return nil, fmt.Errorf("%w: %d links", ErrFull, maxSlots)
	}
	l := &Link{g: g, slot: slot, dev: dev, state: smc.LinkActivating, sq: make([]request, g.cfg.SendQueue), lastRx: g.now}
	ep, err := g.env.NewQP(l, dev)
	if err != nil {
		return nil, fmt.Errorf("linkgroup: create a queue pair on %s: %w", dev.Name, err)
	}
	l.local, l.qpOpen = ep, true
	g.links = append(g.links, l)
	return l, nil
}

// removeLink forgets a link and what depends on it.
func (g *Group) removeLink(l *Link) {
	if l == nil || !slices.Contains(g.links, l) {
		return
	}
	l.state = smc.LinkInactive
	l.closeQP()
	g.unhook(l)
	g.deregister(l)
	g.remember(l)
	for _, t := range slices.Clone(g.rtokens) {
		t.at[l.slot] = slotToken{}
		if t.conns == 0 && t.at == ([maxSlots]slotToken{}) {
			g.dropRToken(t)
		}
	}
	g.links = slices.DeleteFunc(g.links, func(m *Link) bool { return m == l })
	for _, m := range g.links {
		if m.delVia == l {
			m.delVia = nil
		}
	}
	g.moveConns(l)
	if !g.dead && g.bestLink(nil) == nil && g.phase >= phaseConfirm {
		g.die(ErrNoLink)
	}
}

// moveConns takes the connections of l to the others.
func (g *Group) moveConns(l *Link) {
	if l.conns == 0 || g.bestLink(l) == nil {
		return
	}
	for _, c := range g.connsSorted() {
		if c.link != l || c.Protocol().Outstanding() {
			continue // completions on a link that is alive come first
		}
		c.move(g.bestLink(l))
	}
}

// activate makes a confirmed link carry connections.
func (g *Group) activate(l *Link, peerUID uint32) {
	l.state, l.peerUID = smc.LinkActive, peerUID
	g.armTest(l)
	g.log.Info("link is active", "link", l.id, "dev", l.dev.Name, "peer", l.peer.GID, "qpn", l.local.QPN, "peerqpn", l.peer.QPN, "group", g.Type())
}

// failLink takes note that a link is lost.
func (g *Group) failLink(l *Link, reason wire.DeleteLinkReason, err error) {
	if g.dead || l.state == smc.LinkInactive && !l.qpOpen {
		return
	}
	if g.phase == phaseDying {
		l.state = smc.LinkInactive
		l.closeQP()
		switch {
		case g.bestLink(nil) == nil:
			g.die(g.deadErr)
		case l == g.bye.via:
			g.sendBye()
		}
		return
	}
	if l.state == smc.LinkActivating {
		switch {
		case g.ex.kind == exAdd && g.ex.link == l:
			g.addFailed(err)
		case g.phase <= phaseConfirm:
			g.die(err)
		default:
			g.removeLink(l)
		}
		return
	}
	l.state = smc.LinkInactive
	l.closeQP()
	via := g.bestLink(l)
	if via == nil {
		g.die(errors.Join(conn.ErrReset, err))
		return
	}
	g.log.Warn("link is down", "link", l.id, "dev", l.dev.Name, "err", err)
	g.unhook(l)
	for _, m := range g.links {
		if m.delVia == l && m.delAsked {
			g.askDelete(m) // over another link
		}
	}
	g.moveConns(l)
	if l.delReply || l.delReplied {
		return // the server is deleting it
	}
	l.delReason, l.delOrderly = reason, false
	if g.cfg.Role == smc.Server {
		l.delWanted = g.ex.kind != exDelete || g.ex.link != l
	} else {
		g.askDelete(l)
	}
}
