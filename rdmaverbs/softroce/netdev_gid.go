// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"net/netip"

	"smcr/rdmaverbs"
)

// gidTable builds the GID table of a netdev. As on Linux, entry 0 is the
// version 1 GID made of the MAC, and each IP address follows with one entry
// for either version, IPv4 addresses in mapped form. Linux also lists the
// default GID for version 2 where the netdev lacks that address; here a
// version 2 entry always is an address of the netdev, since packets leave
// from it through the IP stack. The loopback address ::1 is left out: the
// RoCE annex, A16.7.2, has packets with it dropped.
func gidTable(netdev string, mac [6]byte, ips []netip.Addr) []rdmaverbs.GIDEntry {
	def := defaultGID(mac)
	t := []rdmaverbs.GIDEntry{{GID: def, Type: rdmaverbs.RoCEv1, NetDev: netdev}}
	for _, ip := range ips {
		g := rdmaverbs.GID(ip.As16())
		if g == loopbackGID || !ip.IsValid() || ip.IsMulticast() || ip.IsUnspecified() {
			continue
		}
		if g != def {
			t = append(t, rdmaverbs.GIDEntry{GID: g, Type: rdmaverbs.RoCEv1, NetDev: netdev})
		}
		t = append(t, rdmaverbs.GIDEntry{GID: g, Type: rdmaverbs.RoCEv2, NetDev: netdev})
	}
	return t
}

// loopbackGID is reserved: InfiniBand Architecture Specification, section
// 4.1.1; RoCE annex, A16.7.2.
var loopbackGID = rdmaverbs.GID{15: 1}

// defaultGID is the link-local prefix and the modified EUI-64 of mac.
func defaultGID(mac [6]byte) rdmaverbs.GID {
	return rdmaverbs.GID{0: 0xfe, 1: 0x80,
		8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
}
