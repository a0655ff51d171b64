// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"net/netip"
	"testing"
)

// TestLimitAddresses: which addresses count as one host.
func TestLimitAddresses(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "::ffff:10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"fd00::1:2:3:4", "fd00::5:6:7:8", true},
		{"fd00:0:0:1::1", "fd00:0:0:2::1", false},
		{"fe80::1%eth0", "fe80::1%eth0", true},
		{"fe80::1%eth0", "fe80::2%eth0", false},
		{"fe80::1%eth0", "fe80::1%eth1", false},
	} {
		a, b := netip.MustParseAddr(tt.a), netip.MustParseAddr(tt.b)
		if same := Host(a) == Host(b); same != tt.same {
			t.Errorf("%s and %s count as one host: %v, want %v", a, b, same, tt.same)
		}
	}
}

// TestOrigins: which hosts may be one machine.
func TestOrigins(t *testing.T) {
	at := netip.MustParseAddr
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	for _, tt := range []struct {
		name string
		a, b Origin
		same bool
	}{
		{"one neighbour", OriginOfNeighbour(mac), OriginOfNeighbour(mac), true},
		{"two neighbours", OriginOfNeighbour(mac), OriginOfNeighbour([6]byte{2, 0, 0, 0, 0, 2}), false},
		{"a network of IPv4", OriginOfNetwork(at("10.0.0.1")), OriginOfNetwork(at("::ffff:10.0.0.200")), true},
		{"two networks of IPv4", OriginOfNetwork(at("10.0.0.1")), OriginOfNetwork(at("10.0.1.1")), false},
		{"a site of IPv6", OriginOfNetwork(at("fd00:0:0:1::1")), OriginOfNetwork(at("fd00:0:0:2::1")), true},
		{"two sites of IPv6", OriginOfNetwork(at("fd00:0:1::1")), OriginOfNetwork(at("fd00:0:2::1")), false},
		{"two hosts", OriginOfHost(at("10.0.0.1")), OriginOfHost(at("10.0.0.2")), false},
		{"a host and its network", OriginOfHost(at("10.0.0.0")), OriginOfNetwork(at("10.0.0.0")), false},
	} {
		if same := tt.a == tt.b; same != tt.same {
			t.Errorf("%s: %s and %s are the same: %t", tt.name, tt.a, tt.b, same)
		}
	}
	for o, want := range map[Origin]string{
		OriginOfNeighbour(mac):            "the neighbour 02:00:00:00:00:01",
		OriginOfNetwork(at("10.0.0.7")):   "the network 10.0.0.0/24",
		OriginOfHost(at("fd00:0:0:1::7")): "the host fd00:0:0:1::",
	} {
		if o.String() != want {
			t.Errorf("%q, want %q", o, want)
		}
	}
	// The addresses of a neighbour are told apart, also in one subnet of IPv6.
	a, b := at("fd00::1"), at("fd00::2")
	if o := OriginOfNeighbour(mac); o.HostOf(a) == o.HostOf(b) {
		t.Error("two addresses of a neighbour are one")
	}
	if o := OriginOfNetwork(a); o.HostOf(a) != o.HostOf(b) {
		t.Error("two addresses of a routed subnet are two")
	}
}
