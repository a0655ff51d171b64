// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// TestVLAN: the devices that may serve a connection are those of
// netdevs in its VLAN.
func TestVLAN(t *testing.T) {
	hosts := host{
		{Name: "eth0", Up: true}, {Name: "eth1", Up: true}, {Name: "eth2", Up: true}, {Name: "eth3", Up: true},
		{Name: "eth0.7", Up: true, VLAN: 7, Lower: []string{"eth0"}},
		{Name: "eth0.8", Up: true, VLAN: 8, Lower: []string{"eth0"}},
		{Name: "eth1.7", Up: true, VLAN: 7, Lower: []string{"eth1"}},
		{Name: "eth2.7", VLAN: 7, Lower: []string{"eth2"}},
		{Name: "eth0.9", Up: true, VLAN: 9, Lower: []string{"eth0"}},
		{Name: "eth0.9.7", Up: true, VLAN: 7, Lower: []string{"eth0.9", "eth0"}},
		{Name: "eth4.7", Up: true, VLAN: 7, Lower: []string{"eth4"}}, // in another network namespace
	}
	all := []pnet.Entry{{ID: "A", NetDev: "eth0"}}
	for _, d := range []string{"eth0", "eth1", "eth2", "eth3"} {
		all = append(all, pnet.Entry{ID: "A", IBDev: "fake-" + d, IBPort: 1})
	}
	for _, tt := range []struct {
		name    string
		entries []pnet.Entry
		rt      network.Route
		want    string
	}{
		{"no pnetid", nil, network.Route{NetDev: "eth0.7", VLAN: 7, Peers: []string{"eth1.7"}}, "[eth0.7 eth1.7]"},
		{"no pnetid, no VLAN", nil, network.Route{NetDev: "eth0", Peers: []string{"eth1"}}, "[eth0 eth1]"},
		{"no VLAN", all, network.Route{NetDev: "eth0"}, "[eth0 eth1 eth2 eth3]"},
		{"of the netdev below", all, network.Route{NetDev: "eth0.7", VLAN: 7}, "[eth0.7 eth1.7]"},
		{"only one has the VLAN", all, network.Route{NetDev: "eth0.8", VLAN: 8}, "[eth0.8]"},
		{"a tag upon a tag", all, network.Route{NetDev: "eth0.9.7", VLAN: 7}, "[eth0.9.7 eth1.7]"},
		{"of the VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0.7"}, {ID: "A", IBDev: "fake-eth1", IBPort: 1}}, network.Route{NetDev: "eth0.7", VLAN: 7}, "[eth1.7]"},
		{"device of the VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0.7"}, {ID: "A", IBDev: "fake-eth1.7", IBPort: 1}}, network.Route{NetDev: "eth0.7", VLAN: 7}, "[eth1.7]"},
		{"device of another VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0.7"}, {ID: "A", IBDev: "fake-eth0.8", IBPort: 1}}, network.Route{NetDev: "eth0.7", VLAN: 7}, "[]"},
		{"without tag, device of a VLAN", []pnet.Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "fake-eth0.8", IBPort: 1}}, network.Route{NetDev: "eth0"}, "[]"},
	} {
		s := newSet(t, hosts, fakeOn(hosts))
		for _, e := range tt.entries {
			if err := s.cfg.PNETs.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		places, _, err := s.places(tt.rt)
		names := []string{}
		for _, p := range places {
			names = append(names, p.netdev)
		}
		if got := fmt.Sprint(names); got != tt.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
}

// TestSourceGID: version 1 takes the link-local GID, of RoCE version 1 where there
// is one; version 2 a RoCE version 2 GID in the subnet of the connection, that of
// its own address if it can.
func TestSourceGID(t *testing.T) {
	entry := func(typ rdmaverbs.GIDType, a string) rdmaverbs.GIDEntry {
		return rdmaverbs.GIDEntry{GID: netip.MustParseAddr(a).As16(), Type: typ}
	}
	const v1, v2 = rdmaverbs.RoCEv1, rdmaverbs.RoCEv2
	all := []rdmaverbs.GIDEntry{
		entry(v2, "fe80::1"), entry(v1, "10.0.0.2"), entry(v2, "10.9.0.1"), entry(v2, "10.0.0.1"), {}, entry(v2, "10.0.0.2"), entry(v1, "fe80::1"),
	}
	for _, tt := range []struct {
		name   string
		table  []rdmaverbs.GIDEntry
		subnet string
		want   int // -1: none
	}{
		{"Version1", all, "", 6},
		{"Version1OverRoCEv2", all[:6], "", 0},
		{"Version1NoLinkLocal", all[1:6], "", -1},
		{"Version2OwnAddress", all, "10.0.0.2/24", 5},
		{"Version2OtherAddress", all, "10.0.0.7/24", 3},
		{"Version2OtherSubnet", all, "10.8.0.7/24", -1},
		{"Version2NoRoCEv2", all[1:2], "10.0.0.2/24", -1},
	} {
		d := &Device{rdma: &fakeDevice{gids: tt.table}}
		p := &Port{num: 1, dev: d}
		var subnet netip.Prefix
		if tt.subnet != "" {
			subnet = netip.MustParsePrefix(tt.subnet)
		}
		i, gid, err := p.SourceGID(subnet)
		if tt.want < 0 {
			if !errors.Is(err, ErrNoDevice) {
				t.Errorf("%s: entry %d, %v", tt.name, i, err)
			}
		} else if err != nil || i != tt.want || gid != tt.table[i].GID {
			t.Errorf("%s: entry %d, %v, want %d", tt.name, i, err, tt.want)
		}
	}
}
