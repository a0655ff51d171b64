// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net/netip"
	"testing"

	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// gidTable is a device that has nothing but GIDs.
type gidTable struct {
	rdmaverbs.Device
	list []rdmaverbs.GIDEntry
}

func (d gidTable) GIDs(int) ([]rdmaverbs.GIDEntry, error) { return d.list, nil }

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
		d := &device{name: "soft-eth0", rdma: gidTable{list: tt.table}}
		var subnet netip.Prefix
		if tt.subnet != "" {
			subnet = netip.MustParsePrefix(tt.subnet)
		}
		i, gid, err := d.sourceGID(subnet)
		if tt.want < 0 {
			if !errors.Is(err, ErrNoDevice) {
				t.Errorf("%s: entry %d, %v", tt.name, i, err)
			}
		} else if err != nil || i != tt.want || gid != tt.table[i].GID {
			t.Errorf("%s: entry %d, %v, want %d", tt.name, i, err, tt.want)
		}
	}
}

// TestHopLimits: packets to a neighbour do not pass a router. Behind a router they
// do, and the IP stack finds the way, not the MAC address of the peer.
func TestHopLimits(t *testing.T) {
	for _, tt := range []struct {
		terms *terms
		hops  uint8
		dmac  int
	}{
		{nil, 1, 6},
		{&terms{}, 1, 6},
		{&terms{routed: true}, 64, 0},
	} {
		l := &link{g: &group{terms: tt.terms}}
		if p := l.path(); p.HopLimit != tt.hops || len(p.DMAC) != tt.dmac {
			t.Errorf("terms %+v: path %+v", tt.terms, p)
		}
	}
}

// TestVersion2Devices: version 2 is for IPv4 addresses, also where devices have
// GIDs of IPv6 addresses.
func TestVersion2Devices(t *testing.T) {
	table := []rdmaverbs.GIDEntry{}
	var rt network.Route
	for _, p := range []string{"10.0.0.1/24", "fd00::1/64"} {
		p := netip.MustParsePrefix(p)
		rt.Local = append(rt.Local, p)
		table = append(table, rdmaverbs.GIDEntry{GID: p.Addr().As16(), Type: rdmaverbs.RoCEv2})
	}
	devs := []*device{{name: "soft-eth0", rdma: gidTable{list: table}}}
	for local, want := range map[string]int{"10.0.0.1": 1, "::ffff:10.0.0.1": 1, "fd00::1": 0, "fd01::1": 0} {
		if got, own := devicesV2(devs, rt, netip.MustParseAddr(local)); len(got) != want || own.IsValid() != (want > 0) {
			t.Errorf("%s: %d devices, %v, want %d", local, len(got), own, want)
		}
	}
}
