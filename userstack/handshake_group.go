// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// What a rendezvous does with link groups and connections.

// makeGroup makes the link group of a first contact. That of a client is connected.
func (h *handshake) makeGroup(a rendezvous.MakeGroup) rendezvous.Event {
	s := h.s
	g := newGroup(s, h.role, a.Terms, a.PeerID, h.host.lan, h.host.ports(a.Terms))
	if err := s.reg.addGroup(g); err != nil {
		h.cause = err
		return rendezvous.Closed{Cause: err}
	}
	h.fresh = g
	var local linkgroup.ConnParams
	err := g.event(func(now time.Time) error {
		var peer linkgroup.ConnParams
		if a.Peer != nil {
			peer = h.peerParams(*a.Peer)
			if err := peer.Check(); err != nil {
				return err
			}
		}
		if _, err := g.core.FirstLink(now); err != nil {
			return err
		}
		if err := h.newConn(g, now); err != nil {
			return err
		}
		local = h.conn.core.Local()
		if a.Peer == nil {
			return nil
		}
		return g.core.ConnectFirst(now, peer)
	})
	return answerOf(rendezvous.GroupMade{Local: endpoint(s.peerIDNow(), local)}, err)
}

// connectFirst connects the link group of a server's first contact.
func (h *handshake) connectFirst(a rendezvous.ConnectFirst) error {
	g := h.fresh
	peer := h.peerParams(a.Peer)
	return g.event(func(now time.Time) error {
		if a.Terms != nil {
			g.terms.Peer = a.Terms.Peer
			g.core.SetPeer(a.Peer.PeerID, a.Terms.Peer.OS, a.Terms.Peer.Release)
		}
		if err := peer.Check(); err != nil {
			return err
		}
		return g.core.ConnectFirst(now, peer)
	})
}

// newConn makes the connection on a link group, whose lock is held.
func (h *handshake) newConn(g *group, now time.Time) (err error) {
	h.conn, err = g.newConn(now, h.tcp, h.owner, h.recvBuf)
	return err
}

// join puts the connection on an existing link group.
func (h *handshake) join(a rendezvous.JoinGroup) rendezvous.Event {
	k := groupKey{role: h.role, terms: a.Terms, peer: a.PeerID, gid: a.GID, mac: a.MAC, vlan: h.host.lan.rt.VLAN}
	if h.role == smc.Server {
		g := h.s.reuse(k, func(g *group, now time.Time) error {
			if !g.core.CanAccept() {
				return linkgroup.ErrFull
			}
			return h.newConn(g, now)
		})
		if g == nil {
			return rendezvous.NoGroup{}
		}
		return rendezvous.Joined{}
	}
	peer := h.peerParams(*a.Peer)
	if err := peer.Check(); err != nil {
		return answerOf(nil, err)
	}
	k.qpn = peer.Link.QPN
	var err error
	g := h.s.reuse(k, func(g *group, now time.Time) error {
		// A failure is not that of the group: to decline as if there were
		// none would make the server end it.
		err = h.newConn(g, now)
		return nil
	})
	if g == nil {
		return rendezvous.NoGroup{}
	}
	return answerOf(rendezvous.Joined{}, err)
}

// awaitLLC makes the outcome of the LLC exchange an event.
func (h *handshake) awaitLLC() {
	if h.fresh != nil {
		h.llc = h.fresh.first
	} else {
		h.llc = h.conn.ready
	}
}

func (h *handshake) llcOutcome(err error) rendezvous.Event {
	h.llc = nil
	var local linkgroup.ConnParams
	if g := h.conn.g; err == nil && h.fresh == nil {
		err = g.event(func(time.Time) error { local = h.conn.core.Local(); return nil })
	}
	if err != nil {
		return rendezvous.LLCFailed{Failure: failureOf(err)}
	}
	return rendezvous.LLCDone{Local: endpoint(h.s.peerIDNow(), local)}
}

// attach joins the connection to the peer's end. On an existing link group it may move to
// another link.
func (h *handshake) attach(e wire.Endpoint) (wire.Endpoint, error) {
	peer := h.peerParams(e)
	c := h.conn
	var local linkgroup.ConnParams
	err := c.g.event(func(now time.Time) error {
		if err := peer.Check(); err != nil {
			return err
		}
		if err := c.core.Attach(now, peer); err != nil {
			return err
		}
		if h.role == smc.Server {
			c.g.peers[peerOf(h.tcp)] = struct{}{}
		}
		local = c.core.Local()
		return nil
	})
	return endpoint(h.s.peerIDNow(), local), err
}

// refuseConn tells the peer on the link group that the connection is reset.
func (h *handshake) refuseConn(e wire.Endpoint) {
	g := h.conn.g
	g.do(func(now time.Time) {
		if !g.end.dead {
			h.conn.core.Refuse(now, h.peerParams(e))
		}
	})
}

// event hands an event with an outcome to the core.
func (g *group) event(f func(now time.Time) error) (err error) {
	err = linkgroup.ErrGroupDead // also if f ends it
	g.do(func(now time.Time) {
		if !g.end.dead {
			err = f(now)
		}
	})
	return err
}

// drop ends a link group whose first contact failed.
func (g *group) drop(c *Conn) {
	g.cancel(c)
	g.do(func(now time.Time) {
		if !g.end.dead {
			g.core.Terminate(now, wire.DeleteLinkProgram)
		}
	})
}

// cancel gives back what a connection that never opened holds.
func (g *group) cancel(c *Conn) {
	if c == nil {
		return
	}
	g.do(func(now time.Time) {
		if !g.end.broken {
			c.core.Cancel(now) // also when the group is dead: the memory is given back now
		}
		delete(g.conns, c)
	})
}

// peerHasLost ends a link group that the peer does not have any more, although this host
// was not told: nobody is left to exchange messages with.
//
// qpn is the end of the link that ACCEPT named. If that link has failed since,
// the client did not find it for this reason, and the group lives on.
//
// Anybody can put the peer ID and the port of another host into a proposal. So
// only a host that has had a connection in the group is believed; if
// another one says so, the group is asked whether its peer is there.
func (g *group) peerHasLost(qpn smc.QPN, from netip.Addr, cause error) {
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

// params and endpoint convert between CLC and the core.
func params(e wire.Endpoint) linkgroup.ConnParams {
	return linkgroup.ConnParams{
		Link: linkgroup.Endpoint{GID: e.GID, MAC: e.MAC, QPN: e.QPN, PSN: e.PSN, MTU: e.MTU},
		RKey: e.RMB.RKey, VAddr: e.RMB.Addr, Index: e.RMBEIndex, Token: e.AlertToken, SizeCode: e.RMBESize,
	}
}

// peerParams is what the peer's ACCEPT or CONFIRM says, and which host says so.
func (h *handshake) peerParams(e wire.Endpoint) linkgroup.ConnParams {
	p := params(e)
	p.From = addrPort(h.tcp.RemoteAddr()).Addr()
	return p
}

func endpoint(id smc.PeerID, p linkgroup.ConnParams) wire.Endpoint {
	return wire.Endpoint{
		PeerID: id, GID: p.Link.GID, MAC: p.Link.MAC, QPN: p.Link.QPN, PSN: p.Link.PSN, MTU: p.Link.MTU,
		RMB: smc.RToken{RKey: p.RKey, Addr: p.VAddr}, RMBEIndex: p.Index, AlertToken: p.Token, RMBESize: p.SizeCode,
	}
}
