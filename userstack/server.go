// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/wire"
)

// hsLimit is the number of rendezvous under way above which a stack with
// handshake limitation declines further ones.
const hsLimit = 32

// Server runs the server's side of the rendezvous on an accepted TCP
// connection whose peer is known to speak SMC. It returns as [Stack.Client]
// does.
func (s *Stack) Server(ctx context.Context, tcp TCPConn) (*Conn, error) {
	return s.rendezvous(ctx, tcp, sideServer, (*clc).server)
}

func (h *clc) server(ctx context.Context) (*Conn, error) {
	s := h.s
	m, err := h.read(ctx, clcTimeout)
	if err != nil {
		return nil, err
	}
	defer s.serving.Add(-1)
	if n := s.serving.Add(1); n > hsLimit && s.limitHS.Load() {
		if _, ok := m.(wire.Proposal); ok {
			return nil, h.decline(ctx, &DeclineError{Code: smc.DiagConfig, Err: fmt.Errorf("%d pending handshakes, above the handshake limit", n)})
		}
	}
	var prop wire.Proposal
	switch m := m.(type) {
	case wire.Decline:
		return nil, &DeclineError{Remote: true, Code: m.Diagnosis}
	case wire.Proposal:
		prop = m
	default:
		return nil, fmt.Errorf("userstack: unexpected %s instead of PROPOSAL", m.CLCType())
	}
	offersV2 := prop.Version >= wire.Version2 && prop.TypeV2.HasR()
	if !prop.TypeV1.HasR() && !offersV2 {
		return nil, h.decline(ctx, &DeclineError{Code: smc.DiagModeMismatch, Err: fmt.Errorf("proposal offers %s", prop.TypeV1)})
	}
	h.v2 = !prop.TypeV1.HasR()
	local, remote := addrPort(h.tcp.LocalAddr()), addrPort(h.tcp.RemoteAddr())
	rt, err := h.route(local, remote)
	if err != nil {
		return nil, h.decline(ctx, err)
	}
	devs, pnetID, err := s.devices.For(rt)
	if err != nil {
		return nil, h.decline(ctx, err)
	}
	var t *terms
	key := peerKey{id: prop.PeerID}
	gid, mac := prop.GID, prop.MAC
	if offersV2 {
		t2, gid2, devs2, err := s.negotiate(prop, devs, rt, local.Addr())
		switch {
		case err == nil:
			h.v2 = true
			t, gid, mac, devs = t2, gid2, smc.MAC{}, devs2
			key.gid = gid
		case !prop.TypeV1.HasR():
			return nil, h.decline(ctx, err)
		default:
			s.log.Debug("not version 2", "peer", prop.PeerID, "err", err)
		}
	}
	if t == nil && !sameSubnet(prop, rt, local.Addr()) {
		return nil, h.decline(ctx, &DeclineError{Code: smc.DiagPrefixMismatch})
	}
	s.identity(devs[0])
	leave, err := s.enterFirst(ctx, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	var c *Conn
	k := groupKey{role: smc.Server, terms: t, peer: prop.PeerID, gid: gid, mac: mac, vlan: rt.VLAN}
	g := s.reuse(k, func(g *group, now time.Time) (err error) {
		if !g.core.CanAccept() {
			return linkgroup.ErrFull
		}
		c, err = g.newConn(now, h, false)
		return err
	})
	if g != nil {
		leave()
		return h.serverNext(ctx, g, c)
	}
	return h.serverFirst(ctx, prop, t, devs, lan{rt, local.Addr(), remote.Addr(), pnetID})
}

// sameSubnet is the check of RFC 7609, section 3.5.1.2: the client's IPv4
// subnet is one of the netdev's, or one of its IPv6 prefixes is.
func sameSubnet(p wire.Proposal, rt network.Route, local netip.Addr) bool {
	if local.Unmap().Is4() {
		return slices.ContainsFunc(rt.Local, func(own netip.Prefix) bool { return own.Addr().Is4() && network.SamePrefix(own, p.IPv4) })
	}
	for _, q := range p.IPv6 {
		for _, own := range rt.Local {
			if own.Addr().Is6() && network.SamePrefix(own, q) {
				return true
			}
		}
	}
	// Two link-local addresses of one link share the prefix fe80::/64, which
	// no proposal lists.
	return local.Is6() && local.IsLinkLocalUnicast() && len(p.IPv6) == 0 && !p.IPv4.IsValid()
}

// serverFirst creates a link group: first contact.
func (h *clc) serverFirst(ctx context.Context, prop wire.Proposal, t *terms, devs []*devices.Port, at lan) (*Conn, error) {
	s := h.s
	g := newGroup(s, smc.Server, t, prop.PeerID, at, devs)
	if err := s.addGroup(g); err != nil {
		return nil, err
	}
	h.fresh = g
	var c *Conn
	var local linkgroup.ConnParams
	err := g.event(func(now time.Time) (err error) {
		if _, err = g.core.FirstLink(now); err != nil {
			return err
		}
		if c, err = g.newConn(now, h, false); err != nil {
			return err
		}
		local = c.core.Local()
		return nil
	})
	if err != nil {
		return nil, h.abandon(ctx, g, c, err, 0)
	}
	if err := h.write(s.newAnswer(t, true, local).accept()); err != nil {
		g.drop(c)
		return nil, err
	}
	conf, err := h.readConfirm(ctx, clcTimeout)
	if err != nil {
		g.drop(c)
		return nil, err
	}
	peer := h.peerParams(conf.Endpoint)
	err = g.event(func(now time.Time) error {
		if t != nil {
			if err := t.confirmed(conf); err != nil {
				return err
			}
			g.core.SetPeer(conf.PeerID, t.peerOS, t.peerRelease)
		}
		if err := peer.Check(); err != nil {
			return err
		}
		return g.core.ConnectFirst(now, peer)
	})
	if err != nil {
		return nil, h.abandon(ctx, g, c, err, 0)
	}
	if err := h.watchDecline(ctx, g.first, 0); err != nil {
		return nil, h.abandon(ctx, g, c, err, 0)
	}
	if err := g.event(func(now time.Time) error { return c.core.Attach(now, peer) }); err != nil {
		g.drop(c)
		return nil, tooLate(err)
	}
	c.start()
	s.log.Info("link group established", "lgr", g.name(), "role", "server", "peer", prop.PeerID)
	return c, nil
}

// serverNext puts c, made on an existing link group, into use.
func (h *clc) serverNext(ctx context.Context, g *group, c *Conn) (*Conn, error) {
	s := h.s
	var local linkgroup.ConnParams
	err := s.wait(ctx, c.ready)
	if err == nil {
		err = g.event(func(time.Time) error { local = c.core.Local(); return nil })
	}
	if err != nil {
		g.cancel(c)
		return nil, h.decline(ctx, err)
	}
	// The client counts on SMC-R as soon as it has sent CONFIRM, and Linux then
	// takes no notice of TCP any more: the connection must be refused on the
	// link group, for which CONFIRM is needed.
	h.firm.Store(true)
	if err = s.interrupted(ctx); err == nil {
		err = h.write(s.newAnswer(g.terms, false, local).accept())
	}
	if err != nil {
		g.cancel(c)
		return nil, err
	}
	conf, err := h.readConfirm(context.WithoutCancel(ctx), linkgroup.ConfirmWait)
	if err != nil {
		g.cancel(c)
		var d *DeclineError
		if errors.As(err, &d) && d.Code == smc.DiagSync {
			g.lost(local.Link.QPN, addrPort(h.tcp.RemoteAddr()).Addr(), d)
		}
		return nil, err
	}
	peer := h.peerParams(conf.Endpoint)
	err = g.event(func(now time.Time) error {
		if err := s.interrupted(ctx); err != nil {
			return err
		}
		if err := peer.Check(); err != nil {
			return err
		}
		if err := c.core.Attach(now, peer); err != nil {
			return err
		}
		g.peers[peerOf(h.tcp)] = struct{}{}
		return nil
	})
	if err != nil {
		g.do(func(now time.Time) {
			// What another host says is no reason to tell the peer anything.
			if !g.dead && !errors.Is(err, linkgroup.ErrNotItsOwn) {
				c.core.Refuse(now, peer)
			}
		})
		g.cancel(c)
		return nil, tooLate(err)
	}
	c.start()
	return c, nil
}

// lost ends a link group that the peer has ended without our knowing: nobody
// is left to exchange messages with.
//
// qpn is the end of the link that ACCEPT named. If that link has failed since,
// the client did not find it for this reason, and the group lives on.
//
// Anybody can put the peer ID and the port of another host into a proposal. So
// only a host says that a group is lost which has had a connection in it; if
// another one does, the group is asked whether its peer is there.
func (g *group) lost(qpn smc.QPN, from netip.Addr, cause error) {
	g.do(func(now time.Time) {
		links := g.core.Links()
		if g.dead || !slices.ContainsFunc(links, func(l *linkgroup.Link) bool {
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

// readConfirm reads CONFIRM of the version that was chosen, within d.
func (h *clc) readConfirm(ctx context.Context, d time.Duration) (*answer, error) {
	m, err := h.read(ctx, d)
	if err != nil {
		return nil, err
	}
	if d, ok := m.(wire.Decline); ok {
		if d.OutOfSync {
			d.Diagnosis = smc.DiagSync
		}
		return nil, &DeclineError{Remote: true, Code: d.Diagnosis}
	}
	a := answerOf(m)
	if a == nil || m.CLCType() != wire.TypeConfirm || (a.version >= wire.Version2) != h.v2 {
		return nil, fmt.Errorf("userstack: unexpected %s instead of CONFIRM", m.CLCType())
	}
	return a, nil
}
