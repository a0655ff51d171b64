// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// FirstLink creates the first link of the group and returns its local end.
func (g *Group) FirstLink(now time.Time) (Endpoint, error) {
	if g.phase != phaseNew {
		return Endpoint{}, ErrSequence
	}
	g.now = now
	i := slices.IndexFunc(g.links.devices, func(d Device) bool { return d.Up })
	if i < 0 {
		return Endpoint{}, ErrNoDevice
	}
	l, err := g.change.create(g.links.devices[i])
	if err != nil {
		return Endpoint{}, err
	}
	if g.cfg.Role == smc.Server {
		l.setID(g.links.nextID())
	}
	g.phase = phaseLinked
	return l.local, nil
}

// ConnectFirst connects the first link to the peer's end and starts its
// confirmation. [ActFirstLink] follows, with an error if the group is not
// usable. After an error of ConnectFirst the caller ends the group with
// [Group.Terminate].
//
// peer has the values of ACCEPT or CONFIRM. Its RMB, if it names an element, is known
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
	l := g.links.list[0]
	if err := g.first.connect(l, peer.Link); err != nil {
		return err
	}
	if peer.Index != 0 {
		g.peerRMBs.add(l, smc.RToken{RKey: peer.RKey, Addr: peer.VAddr}, false)
	}
	if g.cfg.Role == smc.Server {
		if err := g.env.ReadyQP(l); err != nil {
			return fmt.Errorf("linkgroup: first link: %w", err)
		}
	}
	g.phase, g.first.named = phaseConfirm, peer
	g.timers.set(timerFirst, now.Add(g.cfg.Timers.FirstAnswer))
	if g.cfg.Role == smc.Server {
		g.first.provePath(l)
		g.first.sendConfirmLink(l, false)
	}
	return nil
}

// timeout acts if the peer did not continue the first contact in time.
//
// Without CONFIRM LINK or its reply, the peer does not use SMC-R yet: a client waits for ADD
// LINK behind its reply, and a server for the reply. So DECLINE is possible, although RFC 7609
// (appendix C.7) has the TCP connection reset; Linux declines, too. The exception is a group
// of a single link, whose client needs nothing more after its reply.
func (f *firstContact) timeout() {
	if f.g.phase == phaseSecond && !f.g.peerEye {
		// Linux continues with one link, and so does this side with a Linux peer.
		f.g.log.Warn("single link: the server did not request a second one")
		f.open()
		return
	}
	err := ErrTimeout
	if f.g.phase == phaseConfirm && (f.g.cfg.Role == smc.Client || f.g.links.max > 1) {
		err = ErrSilent
	}
	f.g.end.die(fmt.Errorf("%w: CONFIRM LINK", err))
}

// recvConfirmLink handles the request on the client and the reply on the
// server, for the first link and for added links.
func (f *firstContact) recvConfirmLink(l *Link, m wire.ConfirmLink) {
	if m.Reply != (f.g.cfg.Role == smc.Server) {
		return
	}
	first := f.g.phase == phaseConfirm && l == f.g.links.list[0]
	added := f.g.llc.ex.step == waitConfirm && f.g.llc.ex.link == l
	if !first && !added {
		return
	}
	f.committed = f.committed || added
	if err := f.check(l, m); err != nil {
		if first {
			f.g.end.die(err)
		} else {
			f.g.adding.failed(err)
		}
		return
	}
	if f.g.cfg.Role == smc.Client {
		if err := f.g.env.ReadyQP(l); err != nil {
			if first {
				f.g.end.die(err)
			} else {
				f.g.adding.failed(err)
			}
			return
		}
		l.setID(m.LinkNum)
	}
	if first {
		f.negotiate(m)
	}
	f.g.change.activate(l, m.LinkUserID)
	if f.g.cfg.Role == smc.Client {
		if first {
			f.provePath(l)
		}
		f.sendConfirmLink(l, true)
	}
	if added {
		f.g.adding.done()
		return
	}
	f.g.phase = phaseSecond
	if f.g.links.max < 2 {
		f.open()
		return
	}
	if f.g.cfg.Role == smc.Server {
		f.g.timers.stop(timerFirst)
		f.g.adding.wanted = true
	} else {
		// Linux waits only 2 s. This side waits longer, because a server whose ADD LINK
		// fails may still decline.
		f.g.timers.set(timerFirst, f.g.now.Add(f.g.cfg.Timers.ConfirmFirst))
	}
}

func (f *firstContact) check(l *Link, m wire.ConfirmLink) error {
	if !f.g.links.samePort(l.peer, Endpoint{GID: m.GID, MAC: m.MAC}) || m.QPN != l.peer.QPN {
		return fmt.Errorf("%w: CONFIRM LINK names another end: %s %s %s", ErrProtocol, m.GID, m.MAC, m.QPN)
	}
	if o := f.g.links.byID(m.LinkNum); m.LinkNum == 0 || l.id != 0 && l.id != m.LinkNum || l.id == 0 && o != nil {
		return fmt.Errorf("%w: CONFIRM LINK with link number %d", ErrProtocol, m.LinkNum)
	}
	return nil
}

// negotiate takes the values for the whole group from the first CONFIRM LINK: the
// number of links, and whether RMBEs have eye catchers. RFC 7609 requires eye catchers
// and has no flag for them. Linux has no eye catchers. It sets reserved bits to announce
// this, and declines a peer that does not set them. A client sets the same bits as the
// server. So a client that does not set the bits after a server that has set them
// supports only the RFC.
func (f *firstContact) negotiate(m wire.ConfirmLink) {
	if m.MaxLinks != 0 {
		least := 2
		if f.g.profile.extended {
			least = 1
		}
		f.g.links.max = max(least, min(f.g.links.max, int(m.MaxLinks)))
	}
	f.g.peerEye = !m.NoEyecatcher
	if f.g.cfg.Role == smc.Client || f.g.peerEye {
		f.g.eye = f.g.peerEye
	}
	for _, c := range f.g.connsSorted() {
		c.Protocol().LayOut(f.g.eye, f.g.peerEye)
	}
}

// eyeCatcher says whether the RMBE of a new connection begins with an eye catcher. CLC
// names the first RMBE before negotiate settles that.
func (f *firstContact) eyeCatcher() conn.EyeCatcher {
	switch {
	case f.g.eye:
		return conn.EyeUsed
	case f.g.phase != phaseOpen:
		return conn.EyeUnsettled
	}
	return conn.EyeNone
}

// activate makes a confirmed link available to connections.
func (c *linkChanges) activate(l *Link, peerUID uint32) {
	l.state, l.peerUID = smc.LinkActive, peerUID
	c.g.tests.start(l)
	if c.g.links.redundant(l) {
		for _, m := range c.g.conns {
			m.Protocol().SetRedundant()
		}
	}
	c.g.log.Info("link is active", "link", l.id, "dev", l.dev.Name, "peergid", l.peer.GID, "qpn", l.local.QPN, "peerqpn", l.peer.QPN, "group", c.g.Type())
}
