// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"net/netip"
	"slices"
	"time"

	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// What a rendezvous does with link groups and connections. Errors are those of package
// linkgroup, for which the rendezvous declines.

// newConn makes the local part of a connection. The group's lock is held.
func (g *Group) newConn(now time.Time, conf ConnConfig) (*Conn, error) {
	s := g.s
	rmb := g.mem.rmbBytes
	rmbe := min(smc.SizeCodeFor(max(s.RecvBuf, conf.RecvBuf)), smc.MaxSizeCodeRFC)
	most := int64(rmbe.Bytes()) + int64(s.SendBuf)
	if err := s.accounts.take(conf.Owner.UID, most); err != nil {
		return nil, err
	}
	core, err := g.core.NewConnOf(now, conf.Owner.UID, rmbe, s.SendBuf)
	if err != nil {
		s.accounts.give(conf.Owner.UID, most)
		return nil, err
	}
	c := &Conn{
		g: g, core: core, tcp: conf.TCP, local: conf.Local, remote: conf.Remote, owner: conf.Owner, ino: s.socks.Add(1),
		most: most, ready: make(chan error, 1), urgent: make(chan struct{}, 1),
	}
	if s.Loop != nil {
		c.drive = s.Loop.NewWaiter()
	}
	c.End.c, c.End.done = c, make(chan struct{})
	c.In.c, c.Out.c, c.Carried.c, c.below.c = c, c, c, c
	c.In.begin(&c.End, c.drive, c.kick)
	c.Out.begin(&c.End, c.drive, c.kick)
	s.Stats.BufferSize(stats.RX, rmbe.Bytes())
	if g.mem.rmbBytes == rmb {
		s.Stats.Buffer(stats.RX, stats.Reuse)
	} else {
		s.Stats.Buffer(stats.RX, stats.Alloc)
	}
	s.Stats.BufferSize(stats.TX, s.SendBuf)
	if g.mem.sendBytes > 0 { // otherwise the memory of the first chunk is counted when it is mapped
		s.Stats.Buffer(stats.TX, stats.Reuse)
	}
	core.Data = member(c)
	core.SetNoDelay(now, true) // the default of package net
	g.conns[c] = struct{}{}
	if !g.peerAddr.IsValid() {
		g.peerAddr = conf.Remote.Addr()
	}
	return c, nil
}

// Begin makes the first link and the first connection of a new group. With peer, which is
// what a server's ACCEPT says, it also connects the link. The connection is not nil if it
// was made, also with an error; Drop gives it back.
func (g *Group) Begin(conf ConnConfig, peer *linkgroup.ConnParams) (c *Conn, local linkgroup.ConnParams, err error) {
	err = g.event(func(now time.Time) error {
		if peer != nil {
			if err := peer.Check(); err != nil {
				return err
			}
		}
		if _, err := g.core.FirstLink(now); err != nil {
			return err
		}
		var err error
		if c, err = g.newConn(now, conf); err != nil {
			return err
		}
		local = c.core.Local()
		if peer == nil {
			return nil
		}
		return g.core.ConnectFirst(now, *peer)
	})
	return c, local, err
}

// Connect connects the first link of a server's group to what the client's CONFIRM says.
// In version 2, about tells more of the client, and id is its peer ID; about is nil in
// version 1.
func (g *Group) Connect(peer linkgroup.ConnParams, id smc.PeerID, about *rendezvous.Terms) error {
	return g.event(func(now time.Time) error {
		if about != nil {
			g.terms.Peer = about.Peer
			g.core.SetPeer(id, about.Peer.OS, about.Peer.Release)
		}
		if err := peer.Check(); err != nil {
			return err
		}
		return g.core.ConnectFirst(now, peer)
	})
}

// Drop ends a link group whose first contact failed. c is its connection, or nil.
func (g *Group) Drop(c *Conn) {
	if c != nil {
		c.Cancel()
	}
	g.do(func(now time.Time) {
		if !g.end.dead {
			g.core.Terminate(now, wire.DeleteLinkProgram)
		}
	})
}

// PeerLost ends a link group that the peer does not have any more, although this host was
// not told: nobody is left to exchange messages with.
//
// qpn is the end of the link that ACCEPT named. If that link has failed since, the client
// did not find it for this reason, and the group lives on.
//
// Anybody can put the peer ID and the port of another host into a proposal. So only a host
// that has had a connection in the group is believed. If another host says so, the group is
// asked whether its peer is there.
func (g *Group) PeerLost(qpn smc.QPN, from netip.Addr, cause error) {
	g.do(func(now time.Time) {
		links := g.core.Links()
		if g.end.dead || !slices.ContainsFunc(links, func(l *linkgroup.Link) bool {
			return l.Local().QPN == qpn && l.State() == smc.LinkActive
		}) {
			return
		}
		if _, known := g.peers[from]; !known && from != g.peerAddr {
			g.log.Info("a host without connections in this link group reports that the peer has lost it", "host", from)
			g.core.Doubt(now)
			return
		}
		g.log.Warn("the peer has lost this link group", "err", cause)
		for _, l := range links {
			g.core.LinkFailed(now, l, cause)
		}
	})
}

// Announced returns a channel with the outcome of announcing the RMB of the connection to
// the peer, on a subsequent contact.
func (c *Conn) Announced() <-chan error { return c.ready }

// Local returns what the peer must know of this end of the connection. The error is
// linkgroup.ErrGroupDead if the group has ended.
func (c *Conn) Local() (local linkgroup.ConnParams, err error) {
	err = c.g.event(func(time.Time) error { local = c.core.Local(); return nil })
	return local, err
}

// Attach joins the connection to the peer's end, and returns this end. On a group that
// exists it may move to another link.
func (c *Conn) Attach(peer linkgroup.ConnParams) (local linkgroup.ConnParams, err error) {
	g := c.g
	err = g.event(func(now time.Time) error {
		if err := peer.Check(); err != nil {
			return err
		}
		if err := c.core.Attach(now, peer); err != nil {
			return err
		}
		if g.role == smc.Server {
			g.peers[peer.From] = struct{}{}
		}
		local = c.core.Local()
		return nil
	})
	return local, err
}

// Refuse tells the peer on the link group that the connection is reset.
func (c *Conn) Refuse(peer linkgroup.ConnParams) {
	g := c.g
	g.do(func(now time.Time) {
		if !g.end.dead {
			c.core.Refuse(now, peer)
		}
	})
}

// Cancel gives back what a connection that never opened holds.
func (c *Conn) Cancel() {
	g := c.g
	g.do(func(now time.Time) {
		if !g.end.broken {
			c.core.Cancel(now) // also when the group is dead: the memory is given back now
		}
		c.forget()
	})
}

// Abandon resets a connection that was attached but never given out.
func (c *Conn) Abandon() {
	c.End.closed.Store(true)
	c.g.do(func(now time.Time) {
		if !c.g.end.dead {
			c.core.Abort(now)
		}
	})
}

// Start gives the connection out. It begins to watch the TCP connection below, which
// carries nothing but its end from then on.
func (c *Conn) Start() {
	s := c.g.s
	_ = c.tcp.SetDeadline(time.Time{})
	s.trim.count()
	broken, e := false, &c.End
	c.g.do(func(time.Time) {
		if e.started = true; !e.over { // otherwise it has ended already
			e.counted = true
			s.open.Add(1)
		}
		broken = c.g.end.broken
	})
	if broken {
		c.broken(nil)
	}
	c.below.watch()
}
