// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/network"
)

// router is a Network with a router between this host and all other hosts.
type router struct{ network.Network }

func (n router) Route(local, remote netip.Addr) (network.Route, error) {
	rt, err := n.Network.Route(local, remote)
	rt.Gateway = netip.MustParseAddr("10.0.0.254")
	return rt, err
}

// isolated is a Network that has no route to other hosts after the first call.
type isolated struct {
	network.Network
	asked *bool
}

func (n isolated) Route(local, remote netip.Addr) (network.Route, error) {
	if *n.asked {
		return network.Route{}, fmt.Errorf("%w: no route to %s", ErrNotOnLink, remote)
	}
	*n.asked = true
	return n.Network.Route(local, remote)
}

func behindRouter(c *Config) { c.network = router{c.network} }

// TestRouted: version 2 works through a router, which both sides must detect.
func TestRouted(t *testing.T) {
	eid := []string{"COMMON-1"}
	t.Run("Both", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{devices: 2, client: behindRouter, server: behindRouter})
			b.withEIDs(eid, eid)
			c, s := b.connect()
			b.exchange(c, s, pattern(1, 100<<10))
			c2, s2 := b.connect() // on the same link group
			b.exchange(s2, c2, pattern(2, 100<<10))
			for _, x := range []*Stack{b.client, b.server} {
				g := one(t, x.Control().LinkGroups)
				if want := (nl.V2R{MaxConns: 255, MaxLinks: 2}); g.V2R == nil || *g.V2R != want || g.Conns != 2 || g.Links != 2 {
					t.Errorf("%s: link group %+v, %+v", x.cfg.Hostname, g, g.V2R)
				}
			}
			b.finish(c, s)
			b.finish(c2, s2)
		})
	})
	for _, tt := range []struct {
		name                 string
		client, server       func(*Config)
		clientEID, serverEID []string
		want                 smc.Diagnosis // of the side that declines
		byServer             bool
	}{
		{name: "ServerOnly", server: behindRouter, clientEID: eid, serverEID: eid, want: smc.DiagIndirect},
		{name: "NoEID", client: behindRouter, server: behindRouter, want: smc.DiagNoRoute},
		{name: "NoCommonEID", client: behindRouter, server: behindRouter, clientEID: eid, want: smc.DiagNoUEID, byServer: true},
		{
			name: "NoWayToServer", client: func(c *Config) { c.network = isolated{c.network, new(bool)} }, server: behindRouter,
			clientEID: eid, serverEID: eid, want: smc.DiagNoRoute,
		},
		{
			name: "NoWayToClient", client: behindRouter, server: func(c *Config) { c.network = isolated{c.network, new(bool)} },
			clientEID: eid, serverEID: eid, want: smc.DiagNoRoute, byServer: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{client: tt.client, server: tt.server})
				b.withEIDs(tt.clientEID, tt.serverEID)
				ct, st := b.tcp()
				_, _, cerr, serr := b.rendezvous(ct, st)
				wantDecline(t, "client", cerr, tt.want, tt.byServer)
				wantDecline(t, "server", serr, tt.want, !tt.byServer)
			})
		})
	}
}

// TestRoutedCandidate: a program's connection through a router is announced only if
// version 2 is possible.
func TestRoutedCandidate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{client: func(c *Config) {
			behindRouter(c)
			c.AssumeSMC = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
		}})
		if err := b.client.canAnnounce(addr(1, 0), addr(2, 0)); !errors.Is(err, ErrNotOnLink) {
			t.Errorf("without enterprise ID: %v", err)
		}
		b.withEIDs([]string{"COMMON-1"}, nil)
		if err := b.client.canAnnounce(addr(1, 0), addr(2, 0)); err != nil {
			t.Errorf("with an enterprise ID: %v", err)
		}
		// Version 2 needs IPv4.
		for remote, want := range map[string]bool{"10.0.0.2": true, "::ffff:10.0.0.2": true, "fd00::2": false} {
			if got := b.client.speaksV2(netip.MustParseAddr(remote)); got != want {
				t.Errorf("version 2 with %s: %t", remote, got)
			}
		}
	})
}
