// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"
	"testing"

	"smcr/userstack/wire"
)

// TestSameSubnet: in version 1 the server is in the client's IPv4 subnet, or attached to
// one of its IPv6 prefixes (RFC 7609, section 3.5.1.2). All addresses of the netdev count,
// as with Linux.
func TestSameSubnet(t *testing.T) {
	list := func(ps ...string) (out []netip.Prefix) {
		for _, p := range ps {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	six := list("2001:db8:0::/64", "2001:db8:7::/64")
	for _, tt := range []struct {
		name  string
		own   []netip.Prefix // of the server's netdev
		local string
		ipv4  string
		ipv6  []netip.Prefix
		want  bool
	}{
		{"own", list("10.7.0.9/16", "10.7.0.1/16"), "10.7.0.1", "10.7.0.0/16", nil, true},
		{"of another netdev", list("10.9.0.1/16", "10.7.1.1/16"), "10.7.0.1", "10.7.0.0/16", nil, true},
		{"of another address", list("10.9.0.1/16", "10.7.0.1/16"), "10.9.0.1", "10.7.0.0/16", nil, true},
		{"other length", list("10.7.0.1/17"), "10.7.0.1", "10.7.0.0/16", nil, false},
		{"other subnet", list("10.9.0.1/16"), "10.7.0.1", "10.7.0.0/16", nil, false},
		{"mapped", list("10.7.0.1/16"), "::ffff:10.7.0.1", "10.7.0.0/16", nil, true},
		{"no subnet", list("10.7.0.1/16"), "10.7.0.1", "", nil, false},
		{"IPv6, first", list("fd00::2/64", "2001:db8:0::2/64"), "2001:db8:0::2", "", six, true},
		{"IPv6, last", list("fd00::2/64", "2001:db8:7::2/64"), "2001:db8:7::2", "", six, true},
		{"IPv6, other prefix", list("2001:db8:8::2/64"), "2001:db8:8::2", "", six, false},
		{"IPv6, other length", list("2001:db8:7::2/48"), "2001:db8:7::2", "", six, false},
		{"link-local, with prefixes", list("fe80::2/64"), "fe80::2", "", six, false},
		{"link-local", list("fe80::2/64"), "fe80::2", "", nil, true},
		{"link-local, client with IPv4", list("fe80::2/64"), "fe80::2", "10.7.0.0/16", nil, false},
	} {
		p := wire.Proposal{IPv6: tt.ipv6}
		if tt.ipv4 != "" {
			p.IPv4 = netip.MustParsePrefix(tt.ipv4)
		}
		if got := sameSubnet(&p, tt.own, netip.MustParseAddr(tt.local)); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}
