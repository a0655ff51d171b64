// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"

	"smcr/smc"
	"smcr/userstack/rendezvous"
)

// TestJoinOfOtherVLAN: a connection over a VLAN does not use a link group of another one,
// or of none. Nothing else tells them apart here: a VLAN netdev has the MAC address and the
// GID of the netdev below, and an IPv6 link-local address can be the same on both (RFC 7609,
// sections 2.2, 3.5.1.3 and 5.1).
func TestJoinOfOtherVLAN(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		c, s := b.connect()
		accept := b.accept()
		_, ports := b.lan(b.client, b.server)
		port, err := ports[0].Describe((*rendezvous.Terms)(nil).Subnet())
		b.check(err)
		cc, sc := b.tcp()
		for _, side := range []struct {
			*side
			demand Demand
			conf   ConnConfig
		}{
			{b.client, b.demand(accept), cc},
			{b.server, Demand{Role: smc.Server, PeerID: b.client.id, GID: port.GID, MAC: port.MAC, Host: sc.Remote.Addr()}, sc},
		} {
			side.demand.VLAN = 7
			for _, vlan := range []uint16{7, 0} {
				side.demand.VLAN = vlan
				conn, err := side.Join(side.demand, side.conf)
				b.check(err)
				if joined := conn != nil; joined != (vlan == 0) {
					t.Errorf("%s, VLAN %d: joined %v", side.demand.Role, vlan, joined)
				}
				if conn != nil {
					conn.Cancel()
				}
			}
		}
		b.finish(c, s)
	})
}
