// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestVLANOf: the VLAN of a connection is that of the netdev of its route (RFC 7609,
// sections 2 and 5.1).
func TestVLANOf(t *testing.T) {
	for want, l := range map[uint16]netlink.Link{
		0:    &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0.5"}},
		7:    &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, VlanId: 7},
		4094: &netlink.Vlan{VlanId: 4094},
	} {
		if got := vlanOf(l); got != want {
			t.Errorf("%s: VLAN %d, want %d", l.Attrs().Name, got, want)
		}
	}
}

// TestBelow: a VLAN stands upon netdevs of its own network namespace; the other
// end of a veth pair, which has the same attribute, is none.
func TestBelow(t *testing.T) {
	at := func(index, parent int, name string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, Name: name}
	}
	links := []netlink.Link{
		&netlink.Veth{LinkAttrs: at(2, 3, "veth0")},
		&netlink.Veth{LinkAttrs: at(3, 2, "veth1")},
		&netlink.Vlan{LinkAttrs: at(4, 2, "veth0.7"), VlanId: 7},
		&netlink.Vlan{LinkAttrs: at(5, 4, "veth0.7.8"), VlanId: 8},
		&netlink.Vlan{LinkAttrs: at(6, 9, "far.7"), VlanId: 7},
	}
	want := []string{"[]", "[]", "[veth0]", "[veth0.7 veth0]", "[]"}
	for i, l := range links {
		if got := fmt.Sprint(below(l, links)); got != want[i] {
			t.Errorf("%s: stands upon %s, want %s", l.Attrs().Name, got, want[i])
		}
	}
}
