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
	"smcr/userstack/wire"
)

// Client runs the client's side of the rendezvous (RFC 7609, section 3.5) on
// a TCP connection whose peer is known to speak SMC, and returns the SMC-R
// connection, which then owns tcp. A peer that does not would take the messages
// of the rendezvous for data: [Stack.Dial] finds that out in the TCP handshake.
// The end of ctx ends the rendezvous.
//
// If the error is a [*DeclineError], no message of the rendezvous goes over tcp
// any more, and it carries the connection's data. After any other error close
// tcp.
func (s *Stack) Client(ctx context.Context, tcp TCPConn) (*Conn, error) {
	return s.rendezvous(ctx, tcp, sideClient, (*clc).client)
}

func (h *clc) client(ctx context.Context) (*Conn, error) {
	s := h.s
	local, remote := addrPort(h.tcp.LocalAddr()), addrPort(h.tcp.RemoteAddr())
	rt, err := h.route(local, remote)
	if err != nil {
		return nil, h.decline(ctx, err)
	}
	devs, pnetID, err := s.devices.For(rt)
	if err != nil {
		return nil, h.decline(ctx, err)
	}
	id := s.identity(devs[0])
	devs = s.linkedFirst(devs, remote.Addr())
	offer, t, devs2 := s.offer(devs, rt, local.Addr())
	d, err := devs[0].Describe(netip.Prefix{})
	if rt.Gateway.IsValid() {
		err = &DeclineError{Code: smc.DiagNoRoute, Err: errRouted(remote.Addr())}
	}
	if err != nil && offer == nil {
		return nil, h.decline(ctx, err)
	}
	// The area for future growth makes it the layout that Linux and tshark read.
	prop := wire.Proposal{PeerID: id, GID: d.GID, MAC: d.MAC, Growth: make([]byte, wire.ProposalGrowthLinux)}
	if err != nil {
		// No GID of version 1, or a router between. The MAC is told
		// nevertheless: servers use it.
		prop.TypeV1, prop.GID, prop.MAC = wire.ModeNone, smc.GID{}, id.MAC()
		if d2, err := devs2[0].Describe(t.local); err == nil {
			prop.MAC = d2.MAC
		}
	} else if p, ok := rt.PrefixOf(local.Addr()); ok && p.Addr().Is4() {
		prop.IPv4 = p.Masked()
	} else {
		prop.IPv6 = rt.IPv6Prefixes(wire.MaxIPv6Prefixes)
	}
	if offer != nil {
		if prop, err = prop.WithOffer(*offer); err != nil {
			return nil, fmt.Errorf("userstack: %w", err)
		}
	}
	if err := h.write(prop); err != nil {
		return nil, err
	}
	m, err := h.read(ctx, clcTimeout)
	if err != nil {
		return nil, err
	}
	if d, ok := m.(wire.Decline); ok {
		return nil, &DeclineError{Remote: true, Code: d.Diagnosis}
	}
	acc := answerOf(m)
	if acc == nil || m.CLCType() != wire.TypeAccept || acc.version >= wire.Version2 && offer == nil ||
		acc.version < wire.Version2 && !prop.TypeV1.HasR() {
		return nil, fmt.Errorf("userstack: unexpected %s in answer to PROPOSAL", m.CLCType())
	}
	if acc.version >= wire.Version2 {
		h.v2 = true
		if err := s.accepted(t, offer, acc); err != nil {
			return nil, h.decline(ctx, err)
		}
		devs = devs2
	} else {
		t = nil
	}
	if acc.first {
		return h.clientFirst(ctx, acc, t, devs, lan{rt, local.Addr(), remote.Addr(), pnetID})
	}
	return h.clientNext(ctx, acc, t, rt.VLAN)
}

// linkedFirst puts devices that carry links to the peer before those that do
// not, because they have just come up: a server finds its link group by the GID
// of a link, and would make another one (RFC 7609, section 3.5.2.2).
func (s *Stack) linkedFirst(devs []*devices.Port, remote netip.Addr) []*devices.Port {
	linked := map[int]bool{}
	for _, g := range s.groupList() {
		if g.role != smc.Client {
			continue
		}
		g.do(func(time.Time) {
			if g.peerAddr != remote || !g.core.CanAccept() {
				return
			}
			for _, l := range g.core.Links() {
				if l.State() == smc.LinkActive {
					linked[l.Dev().ID] = true
				}
			}
		})
	}
	slices.SortStableFunc(devs, func(a, b *devices.Port) int {
		switch {
		case linked[a.ID()] == linked[b.ID()]:
			return 0
		case linked[a.ID()]:
			return -1
		}
		return 1
	})
	return devs
}

// clientFirst creates the link group that the server's ACCEPT begins.
func (h *clc) clientFirst(ctx context.Context, acc *answer, t *terms, devs []*devices.Port, at lan) (*Conn, error) {
	s := h.s
	g := newGroup(s, smc.Client, t, acc.PeerID, at, devs)
	if err := s.addGroup(g); err != nil {
		return nil, err
	}
	h.fresh = g
	peer := h.peerParams(acc.Endpoint)
	var c *Conn
	var local linkgroup.ConnParams
	err := g.event(func(now time.Time) (err error) {
		if err := peer.Check(); err != nil {
			return err
		}
		if _, err = g.core.FirstLink(now); err != nil {
			return err
		}
		if c, err = g.newConn(now, h, true); err != nil {
			return err
		}
		local = c.core.Local()
		return g.core.ConnectFirst(now, peer)
	})
	if err != nil {
		return nil, h.abandon(ctx, g, c, err, 0)
	}
	conf := s.newAnswer(t, true, local)
	conf.MTU = min(conf.MTU, acc.MTU)
	if t != nil {
		conf.gids = t.gids(conf.GID, devs)
	}
	if err := h.write(conf.confirm()); err != nil {
		g.drop(c)
		return nil, err
	}
	confirmed := time.Now()
	if err := h.watchDecline(ctx, g.first, declineWait); err != nil {
		// A DECLINE of the server that is older than ours may need as long again.
		return nil, h.abandon(ctx, g, c, err, min(time.Since(confirmed), clcTimeout))
	}
	if err := g.event(func(now time.Time) error { return c.core.Attach(now, peer) }); err != nil {
		g.drop(c)
		return nil, tooLate(err)
	}
	c.start()
	s.log.Info("link group established", "lgr", g.name(), "role", "client", "peer", acc.PeerID)
	return c, nil
}

// clientNext puts the connection on the link group that ACCEPT names.
func (h *clc) clientNext(ctx context.Context, acc *answer, t *terms, vlan uint16) (*Conn, error) {
	s := h.s
	peer := h.peerParams(acc.Endpoint)
	if err := peer.Check(); err != nil {
		return nil, h.decline(ctx, err)
	}
	var c *Conn
	var err error
	k := groupKey{role: smc.Client, terms: t, peer: acc.PeerID, gid: acc.GID, mac: acc.MAC, qpn: acc.QPN, vlan: vlan}
	g := s.reuse(k, func(g *group, now time.Time) error {
		// A failure is not that of the group: to decline as if there were
		// none would make the server end it.
		c, err = g.newConn(now, h, true)
		return nil
	})
	if g == nil {
		return nil, h.decline(ctx, &DeclineError{Code: smc.DiagSync, Err: fmt.Errorf("no link group with peer %s, queue pair %s", acc.PeerID, acc.QPN)})
	}
	if err == nil {
		err = s.wait(ctx, c.ready)
	}
	var local linkgroup.ConnParams
	if err == nil {
		err = g.event(func(now time.Time) error {
			// Attach moves the connection to the link that ACCEPT names;
			// CONFIRM must carry our RToken on that link.
			err := c.core.Attach(now, peer)
			local = c.core.Local()
			return err
		})
	}
	if err != nil {
		g.cancel(c)
		return nil, h.decline(ctx, err)
	}
	if err := h.write(s.newAnswer(t, false, local).confirm()); err != nil {
		c.abandon()
		return nil, err
	}
	c.start()
	return c, nil
}

// event hands an event with an outcome to the core.
func (g *group) event(f func(now time.Time) error) (err error) {
	err = linkgroup.ErrGroupDead // also if f ends it
	g.do(func(now time.Time) {
		if !g.dead {
			err = f(now)
		}
	})
	return err
}

// abandon ends a link group whose first contact failed, and declines if it is
// not too late for that and the peer keeps to the protocol.
func (h *clc) abandon(ctx context.Context, g *group, c *Conn, cause error, linger time.Duration) error {
	g.drop(c)
	if d, ok := cause.(*DeclineError); ok && d.Remote {
		return d
	}
	if errors.Is(cause, errCLC) {
		return cause
	}
	if errors.Is(cause, linkgroup.ErrNoFallback) {
		return tooLate(cause)
	}
	return h.declineFirst(ctx, cause, linger)
}

// tooLate makes an error after which the TCP connection is reset: the peer
// counts on SMC-R, and DECLINE would reach it as data (RFC 7609, appendices C.1
// and C.3).
func tooLate(cause error) error {
	return fmt.Errorf("userstack: too late to decline SMC-R: %v", cause)
}

// drop ends a link group whose first contact failed.
func (g *group) drop(c *Conn) {
	g.cancel(c)
	g.do(func(now time.Time) {
		if !g.dead {
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
		if !g.broken {
			c.core.Cancel(now) // also when the group is dead: the memory is given back now
		}
		delete(g.conns, c)
	})
}
