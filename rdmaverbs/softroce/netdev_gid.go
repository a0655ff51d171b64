// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"net/netip"
	"slices"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// gidTable builds the GID table of a netdev as Linux does for a device that has
// both versions (drivers/infiniband/core/roce_gid_mgmt.c): the default GID,
// derived from the MAC, as version 1 and as version 2 entry, whether or not it
// is an address of the netdev; then each IP address with one entry for each
// version, IPv4 in mapped form. An address equal to the default GID has no
// further entries.
//
// The loopback address ::1 is left out: packets with it must be dropped (RoCE
// annex, A16.7.2).
func gidTable(netdev string, mac [6]byte, ips []netip.Addr) []rdmaverbs.GIDEntry {
	def := defaultGID(mac)
	var t []rdmaverbs.GIDEntry
	add := func(g smc.GID) {
		for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
			t = append(t, rdmaverbs.GIDEntry{GID: g, Type: typ, NetDev: netdev})
		}
	}
	add(def)
	for _, ip := range ips {
		g := smc.GID(ip.As16())
		if g == loopbackGID || g == def || !ip.IsValid() || ip.IsMulticast() || ip.IsUnspecified() {
			continue
		}
		add(g)
	}
	return t
}

// mergeGIDs returns the table now, with the indexes of the table was, as on
// Linux: an entry that remains keeps its index, one that is gone leaves a zero
// entry, and a new one takes the first zero entry or is added at the end. The
// first defaults entries of both tables are those of the default GID; they
// change in place.
func mergeGIDs(was, now []rdmaverbs.GIDEntry, defaults int) []rdmaverbs.GIDEntry {
	t := slices.Clone(now[:defaults])
	if len(was) > defaults {
		for _, e := range was[defaults:] {
			if !slices.Contains(now[defaults:], e) {
				e = rdmaverbs.GIDEntry{}
			}
			t = append(t, e)
		}
	}
	for _, e := range now[defaults:] {
		if slices.Contains(t[defaults:], e) {
			continue
		}
		if i := slices.Index(t, rdmaverbs.GIDEntry{}); i >= 0 {
			t[i] = e
		} else {
			t = append(t, e)
		}
	}
	for len(t) > defaults && t[len(t)-1] == (rdmaverbs.GIDEntry{}) {
		t = t[:len(t)-1]
	}
	return t
}

// loopbackGID is ::1. It is reserved: InfiniBand Architecture Specification,
// section 4.1.1; RoCE annex, A16.7.2.
var loopbackGID = smc.GID{15: 1}

// defaultGID returns the link-local prefix followed by the modified EUI-64 of
// mac.
func defaultGID(mac [6]byte) smc.GID {
	return smc.GID{0: 0xfe, 1: 0x80,
		8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
}
