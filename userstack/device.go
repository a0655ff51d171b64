// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net/netip"
	"time"

	"smcr/userstack/devices"
	"smcr/userstack/network"
)

// portChanged tells the link groups on the LAN of a port whether it is up.
func (s *Stack) portChanged(p *devices.Port, up bool) {
	for _, g := range s.reg.groupList() {
		// The GID of a port that comes up may come later: an IPv6 address is
		// checked for duplicates first.
		d, err := p.Describe(g.terms.Subnet())
		usable := up && err == nil
		if usable && !s.onLAN(g, p) {
			continue
		}
		g.do(func(now time.Time) {
			switch {
			case g.end.dead:
			case usable:
				g.core.DeviceUp(now, d)
			default:
				g.core.DeviceDown(now, p.ID())
			}
		})
	}
}

// lan is the network of the connection of a first contact. All links of the group are
// on ports of this LAN and VLAN.
type lan struct {
	rt            network.Route
	local, remote netip.Addr
	pnetID        string
}

// onLAN reports whether p may carry links of g. The port may be newer than g.
func (s *Stack) onLAN(g *group, p *devices.Port) bool {
	rt, err := s.net.Route(g.lan.local, g.lan.remote)
	if err != nil || rt.VLAN != g.lan.rt.VLAN {
		rt = g.lan.rt // its netdev is down
	}
	return s.devices.Serves(rt, p)
}
