// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"net/netip"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// subnetB is another subnet than that of the TCP connections, which is 10.0.0.0/24.
var subnetB = netip.MustParsePrefix("10.0.1.0/24")

// gidOf is the GID of version 2 of an address.
func gidOf(addr string) smc.GID { return smc.GID(netip.MustParseAddr(addr).As16()) }

// twoSubnets makes a group one of version 2 with two devices: 0 in the subnet of the TCP connections,
// 1 in subnetB.
func twoSubnets(ours bool) func(*Config) {
	return func(c *Config) {
		c.Version, c.PeerOS, c.PeerOurs = wire.Version2, smc.OSLinux, ours
		a, b := device(c.Role, 0), device(c.Role, 1)
		a.GID, b.GID, b.Subnet = gidOf("10.0.0.1"), gidOf("10.0.1.1"), subnetB
		c.Devices = []Device{a, b}
	}
}

// TestOtherSubnetServer: a server offers a link from a device of another subnet, but not to Linux. If the
// peer has none there, the server offers one from the device that it has.
func TestOtherSubnetServer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		edit   func(*Config)
		offers []string // the GIDs of ADD LINK, each of which the peer refuses
	}{
		{"a peer of this module", twoSubnets(true), []string{"10.0.1.1", "10.0.0.1"}},
		{"Linux", twoSubnets(false), []string{"10.0.0.1"}},
		{"routed", func(c *Config) { twoSubnets(true)(c); c.Routed = true }, []string{"10.0.0.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Server, tt.edit)
			r.begin()
			r.expect("confirm-link")
			r.recv(r.link, v2(r.confirmLink(true, r.link)))
			for i, want := range tt.offers {
				r.expect("add-link")
				m, err := wire.ParseLLC(r.last)
				if err != nil {
					t.Fatal(err)
				}
				a := m.(wire.AddLink)
				if a.GID != gidOf(want) {
					t.Errorf("ADD LINK %d from %s, want %s", i, a.GID, want)
				}
				r.recv(r.link, v2(wire.AddLink{Reply: true, Rejected: true, Reason: wire.AddLinkNoAlternatePath, LinkNum: a.LinkNum}))
				if i == 0 && (len(r.first) != 1 || r.first[0] != nil) {
					t.Errorf("the first refusal does not end the first contact: %v", r.first)
				}
			}
			r.expect("")
			if len(tt.offers) < 2 {
				return
			}
			// A device of the client in that subnet changes it.
			r.recv(r.link, v2(wire.ReqAddLink{GIDs: []smc.GID{gidOf("10.0.1.2")}}))
			r.expect("add-link")
			if m, _ := wire.ParseLLC(r.last); m.(wire.AddLink).GID != gidOf("10.0.1.1") {
				t.Errorf("ADD LINK from %s after the client has reported a device", m.(wire.AddLink).GID)
			}
		})
	}
}

// TestOtherSubnetReply: a server does not take a link to a port that its device does not reach.
func TestOtherSubnetReply(t *testing.T) {
	r := newRig(t, smc.Server, twoSubnets(true))
	r.begin()
	r.recv(r.link, v2(r.confirmLink(true, r.link)))
	r.expect("confirm-link add-link")
	r.recv(r.link, v2(wire.AddLink{Reply: true, LinkNum: 2, GID: gidOf("10.0.0.7"), MAC: smc.MAC{5: 7}, QPN: 0x901, MTU: 3}))
	r.expect("delete-link(2)")
}

// TestOtherSubnetClient: a client takes a link on the device that is in the subnet of the server's.
func TestOtherSubnetClient(t *testing.T) {
	for _, tt := range []struct {
		name, gid string
		ours      bool
		on        int // device, or -1
	}{
		{"its subnet", "10.0.1.2", true, 1},
		{"the subnet of the connections", "10.0.0.2", true, 0},
		{"a third subnet", "10.0.2.2", true, 0}, // its device was given a pnetid too
		{"its own address", "10.0.1.1", true, -1},
		{"Linux", "10.0.0.2", false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Client, twoSubnets(tt.ours))
			r.begin()
			r.recv(r.link, v2(r.confirmLink(false, r.link)))
			r.expect("re:confirm-link")
			r.recv(r.link, v2(wire.AddLink{
				LinkNum: 2, MAC: smc.MAC{5: 7}, GID: gidOf(tt.gid), QPN: 0x901, MTU: 3,
				Ext: &wire.AddLinkExt{Pairs: []wire.RKeyPair{{RefRKey: 0xAAAA, New: smc.RToken{RKey: 1, Addr: 2}}}},
			}))
			l := r.g.links.byID(2)
			switch {
			case tt.on < 0:
				r.expect("re:add-link-rejected0")
			case l == nil:
				t.Errorf("refused: %s", r.sent())
			case l.dev.ID != tt.on:
				t.Errorf("the link is on device %d, want %d", l.dev.ID, tt.on)
			}
		})
	}
}
