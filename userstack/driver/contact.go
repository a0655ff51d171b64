// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"slices"
	"time"

	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// The operations of a rendezvous on link groups and connections. Errors are those of package
// linkgroup. The rendezvous declines because of them.

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
	if g.mem.sendBytes > 0 { // otherwise the memory of the first chunk is counted when the chunk is mapped
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

// Begin makes the first link and the first connection of a new group. If peer is not nil, it
// is the content of a server's ACCEPT, and Begin also connects the link. If the connection
// was made, it is not nil, also with an error: Drop then frees it.
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

// Pace sets how long the first contact of g waits: see linkgroup.Pace. It comes before Begin on
// a client, and before Connect on a server. It has no effect with TuneTimers.
func Pace(g *Group, send, answer time.Duration) {
	if g.s.TuneTimers != nil {
		return
	}
	g.do(func(time.Time) {
		if !g.end.dead {
			linkgroup.Pace(g.core, send, answer)
		}
	})
}

// Connect connects the first link of a server's group, with the content of the client's
// CONFIRM. In version 2, about has more about the client, and id is its peer ID. In version
// 1, about is nil.
func (g *Group) Connect(peer linkgroup.ConnParams, id smc.PeerID, about *rendezvous.Terms) error {
	return g.event(func(now time.Time) error {
		if about != nil {
			g.terms.Peer = about.Peer
			g.core.SetPeer(id, about.Peer.OS, about.Peer.Release, about.PeerOurs())
		}
		if err := peer.Check(); err != nil {
			return err
		}
		return g.core.ConnectFirst(now, peer)
	})
}

// Drop ends a link group whose first contact has failed. c is its connection, or nil.
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

// PeerLost tests the links of a group after a CLC message which says that the peer does not
// have the group any more (RFC 7609, appendix C.4). A link without an answer fails, and the
// group ends with its last link. Until there is an answer, the group takes no connections.
//
// The message alone does not end the group: it may come from another process on the peer's
// host, or from another host behind the same address. cause is for the log.
//
// qpn is the queue pair of the link that ACCEPT named. If that link has failed since then,
// the client did not find it for this reason, and nothing is tested.
func (g *Group) PeerLost(qpn smc.QPN, cause error) {
	g.do(func(now time.Time) {
		if g.end.dead || !slices.ContainsFunc(g.core.Links(), func(l *linkgroup.Link) bool {
			return l.Local().QPN == qpn && l.State() == smc.LinkActive
		}) {
			return
		}
		g.log.Warn("the peer says that it has lost this link group: testing the links", "err", cause)
		g.core.Doubt(now)
	})
}

// Announced returns a channel for the outcome of announcing the RMB of the connection to the
// peer, on a subsequent contact.
func (c *Conn) Announced() <-chan error { return c.ready }

// Local returns what the peer must know about this end of the connection. The error is
// linkgroup.ErrGroupDead if the group has ended.
func (c *Conn) Local() (local linkgroup.ConnParams, err error) {
	err = c.g.event(func(time.Time) error { local = c.core.Local(); return nil })
	return local, err
}

// Attach connects this end of the connection to the end of the peer, and returns this end. On
// an existing group, the connection may move to another link.
func (c *Conn) Attach(peer linkgroup.ConnParams) (local linkgroup.ConnParams, err error) {
	g := c.g
	err = g.event(func(now time.Time) error {
		if err := peer.Check(); err != nil {
			return err
		}
		if err := c.core.Attach(now, peer); err != nil {
			return err
		}
		local = c.core.Local()
		return nil
	})
	return local, err
}

// Refuse tells the peer over the link group that the connection is reset.
func (c *Conn) Refuse(peer linkgroup.ConnParams) {
	g := c.g
	g.do(func(now time.Time) {
		if !g.end.dead {
			c.core.Refuse(now, peer)
		}
	})
}

// Cancel frees what a connection holds that was never attached.
func (c *Conn) Cancel() {
	g := c.g
	g.do(func(now time.Time) {
		if !g.end.broken {
			c.core.Cancel(now) // also when the group is dead: the memory is given back now
		}
		c.forget()
	})
}

// Abandon resets a connection that was attached but never started.
func (c *Conn) Abandon() {
	c.End.closed.Store(true)
	c.g.do(func(now time.Time) {
		if !c.g.end.dead {
			c.core.Abort(now)
		}
	})
}

// Start gives the connection to the program. From then on, the stack watches the TCP
// connection below.
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
