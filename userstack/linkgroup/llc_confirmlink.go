// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// FirstLink creates the first link of the group and returns our end of it.
func (g *Group) FirstLink(now time.Time) (Endpoint, error) {
	if g.phase != phaseNew {
		return Endpoint{}, ErrSequence
	}
	g.now = now
	i := slices.IndexFunc(g.devices, func(d Device) bool { return d.Up })
	if i < 0 {
		return Endpoint{}, ErrNoDevice
	}
	l, err := g.newLink(g.devices[i])
	if err != nil {
		return Endpoint{}, err
	}
	if g.cfg.Role == smc.Server {
		l.setID(g.nextID())
	}
	g.phase = phaseLinked
	return l.local, nil
}

// ConnectFirst connects the first link to the peer's end and starts its
// confirmation. [ActFirstLink] follows, for a group that is usable or for
// one that is not. After an error the caller ends the group with
// [Group.Terminate].
//
// peer is what ACCEPT or CONFIRM says. Its RMB, if it names an element, is known
// from here on: LLC messages and the CLC messages of further connections may
// refer to it before the connection of the first contact is attached.
func (g *Group) ConnectFirst(now time.Time, peer ConnParams) error {
	if g.phase != phaseLinked {
		return ErrSequence
	}
	g.now = now
	if err := peer.Link.check(); err != nil {
		return err
	}
	l := g.links[0]
	if err := g.connect(l, peer.Link); err != nil {
		return err
	}
	if peer.Index != 0 {
		g.addRToken(l, smc.RToken{RKey: peer.RKey, Addr: peer.VAddr}, false)
	}
	if g.cfg.Role == smc.Server {
		if err := g.env.ReadyQP(l); err != nil {
			return fmt.Errorf("linkgroup: first link: %w", err)
		}
	}
	g.phase = phaseConfirm
	g.set(timerFirst, now.Add(g.cfg.Timers.ConfirmFirst))
	if g.cfg.Role == smc.Server {
		g.sendConfirmLink(l, false)
	}
	return nil
}

// connect takes the queue pair of l to RTR.
func (g *Group) connect(l *Link, peer Endpoint) error {
	l.peer = peer
	if err := g.env.ConnectQP(l, peer, min(l.local.MTU, peer.MTU)); err != nil {
		return fmt.Errorf("linkgroup: connect queue pair %s: %w", l.local.QPN, err)
	}
	return nil
}

func (g *Group) sendConfirmLink(l *Link, reply bool) {
	l.sendLLC(wire.ConfirmLink{
		Reply: reply, NoEyecatcher: !g.eye, MAC: l.local.MAC, GID: l.local.GID, QPN: l.local.QPN,
		LinkNum: l.id, LinkUserID: l.uid, MaxLinks: uint8(g.maxLinks), MaxConns: uint8(min(g.cfg.MaxConns, 255)),
	}, nothing, nil)
}

// firstTimeout: the peer did not go on with the first contact.
func (g *Group) firstTimeout() {
	if g.phase == phaseSecond && g.cfg.Role == smc.Client && !g.peerEye {
		// Linux goes on with one link, and so with it do we.
		g.log.Warn("single link: the server did not request a second one")
		g.open()
		return
	}
	g.die(fmt.Errorf("%w: CONFIRM LINK", ErrTimeout))
}

// open ends the first contact: data may flow.
func (g *Group) open() {
	g.phase, g.opened = phaseOpen, true
	g.clear(timerFirst)
	g.log.Info("link group is open", "type", g.Type().String())
	g.act(Action{Kind: ActFirstLink})
	for _, c := range g.connsSorted() {
		c.Protocol().Transmit()
	}
}

// recvConfirmLink takes the request on the client and the reply on the
// server, for the first and for added links.
func (g *Group) recvConfirmLink(l *Link, m wire.ConfirmLink) {
	if m.Reply != (g.cfg.Role == smc.Server) {
		return
	}
	first := g.phase == phaseConfirm && l == g.links[0]
	added := g.ex.kind == exAdd && g.ex.step == waitConfirm && g.ex.link == l
	if !first && !added {
		return
	}
	g.committed = g.committed || added
	if err := g.checkConfirmLink(l, m); err != nil {
		if first {
			g.die(err)
		} else {
			g.addFailed(err)
		}
		return
	}
	if g.cfg.Role == smc.Client {
		if err := g.env.ReadyQP(l); err != nil {
			if first {
				g.die(err)
			} else {
				g.addFailed(err)
			}
			return
		}
		l.setID(m.LinkNum)
	}
	if first {
		g.negotiate(m)
	}
	g.activate(l, m.LinkUserID)
	if g.cfg.Role == smc.Client {
		g.sendConfirmLink(l, true)
	}
	if added {
		g.addDone()
		return
	}
	g.phase = phaseSecond
	if g.maxLinks < 2 {
		g.open()
		return
	}
	if g.cfg.Role == smc.Server {
		g.clear(timerFirst)
		g.addWanted = true
	} else {
		// Not less, although Linux waits for 2 s: a server whose ADD LINK fails
		// may still decline.
		g.set(timerFirst, g.now.Add(g.cfg.Timers.ConfirmFirst))
	}
}

func (g *Group) checkConfirmLink(l *Link, m wire.ConfirmLink) error {
	if !g.samePeerPort(l.peer, Endpoint{GID: m.GID, MAC: m.MAC}) || m.QPN != l.peer.QPN {
		return fmt.Errorf("%w: CONFIRM LINK names another end: %s %s %s", ErrProtocol, m.GID, m.MAC, m.QPN)
	}
	if o := g.linkByID(m.LinkNum); m.LinkNum == 0 || l.id != 0 && l.id != m.LinkNum || l.id == 0 && o != nil {
		return fmt.Errorf("%w: CONFIRM LINK with link number %d", ErrProtocol, m.LinkNum)
	}
	return nil
}

// negotiate takes from the first CONFIRM LINK what holds for the group: the
// number of links, and where RMBEs begin. RFC 7609 has eye catchers and no
// way to say so; Linux has none and says so in reserved bits, without which
// it declines. A client does as the server does, so a client that does not
// set the bits after a server that has knows nothing but the RFC.
func (g *Group) negotiate(m wire.ConfirmLink) {
	if m.MaxLinks != 0 {
		least := 2
		if g.v2() {
			least = 1
		}
		g.maxLinks = max(least, min(g.maxLinks, int(m.MaxLinks)))
	}
	g.peerEye = !m.NoEyecatcher
	if g.cfg.Role == smc.Client || g.peerEye {
		g.eye = g.peerEye
	}
	for _, c := range g.connsSorted() {
		c.Protocol().LayOut(g.eye, g.peerEye)
	}
}
