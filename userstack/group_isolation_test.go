// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
	"smcr/userstack/simfabric"
)

// TestVLANsApart: connections of two VLANs never share a link group or a device, even if
// a pnetid names only the device of the netdev below (RFC 7609, sections 2.2 and 5.1).
func TestVLANsApart(t *testing.T) {
	device := nl.PNET{ID: "NET", IBDev: "sim-eth0", IBPort: 1}
	for _, tt := range []struct {
		name  string
		pnets []nl.PNET
		id    string // pnetid of the link groups
	}{
		{"NoPNETID", nil, ""},
		{"OfTheVLANs", []nl.PNET{{ID: "NET", NetDev: "vlan7"}, {ID: "NET", NetDev: "vlan8"}, device}, "NET"},
		{"OfTheNetdevBelow", []nl.PNET{{ID: "NET", NetDev: "eth0"}, device}, "NET"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { testVLANsApart(t, tt.pnets, tt.id, nil) })
		})
	}
	// Version 1 uses the link-local GID, which all VLANs of a netdev share.
	t.Run("Version1", func(t *testing.T) {
		bubble(t, func(t *testing.T) { testVLANsApart(t, nil, "", func(c *Config) { c.NoVersion2 = true }) })
	})
}

func testVLANsApart(t *testing.T, pnets []nl.PNET, id string, tune func(*Config)) {
	b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects)
	at := func(vlan uint16, host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(vlan), byte(host)}) }
	host := func(n int, name string) *simfabric.Host {
		devs := netdevs(n, 1)
		for _, v := range []uint16{7, 8} {
			devs = append(devs, simfabric.NetDev{Name: fmt.Sprint("vlan", v), VLAN: v, Lower: []string{"eth0"}, Addrs: []netip.Prefix{netip.PrefixFrom(at(v, n), 24)}})
		}
		return b.w.Host(name, devs...)
	}
	b.ch, b.sh = host(1, "client"), host(2, "server")
	b.client, b.server = b.stack(b.ch, tune), b.stack(b.sh, tune)
	for _, s := range []*Stack{b.client, b.server} {
		for _, p := range pnets {
			if err := s.Control().AddPNET(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	var pairs [][2]*Conn
	for _, v := range []uint16{7, 8, 7, 8} {
		ct, st, err := b.w.Connect(netip.AddrPortFrom(at(v, 1), 0), netip.AddrPortFrom(at(v, 2), 80))
		if err != nil {
			t.Fatal(err)
		}
		c, s, cerr, serr := b.rendezvous(ct, st)
		if cerr != nil || serr != nil {
			t.Fatalf("VLAN %d: client %v, server %v", v, cerr, serr)
		}
		b.exchange(c, s, pattern(uint64(v), 3000))
		pairs = append(pairs, [2]*Conn{c, s})
	}
	for _, s := range []*Stack{b.client, b.server} {
		list, err := s.Control().LinkGroups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		links, err := s.Control().Links(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range list {
			for _, l := range links {
				if l.LinkGroup == g.ID {
					got = append(got, fmt.Sprintf("VLAN %d, pnetid %q, %d connections, %s", g.VLAN, g.PNETID, g.Conns, l.IBDev))
				}
			}
		}
		var want []string
		for _, v := range []uint16{7, 8} {
			want = append(want, fmt.Sprintf("VLAN %d, pnetid %q, 2 connections, sim-vlan%d", v, id, v))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("links: -want +got:\n%s", diff)
		}
	}
	for _, p := range pairs {
		b.finish(p[0], p[1])
	}
}
