// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"slices"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// port is the one port of a device: the facts about its netdev, and the GID
// table. The lock of the device guards it.
type port struct {
	types []rdmaverbs.GIDType // the GID types of the table; all if empty
	info  netdevInfo
	gids  []rdmaverbs.GIDEntry
	gone  bool // the netdev or the wire cannot be used any more
}

// set stores new facts about the netdev, and updates the GID table.
func (p *port) set(info netdevInfo) {
	p.info = info
	var gids []rdmaverbs.GIDEntry
	defaults := 0
	for _, g := range info.GIDs {
		if len(p.types) > 0 && !slices.Contains(p.types, g.Type) {
			continue
		}
		gids = append(gids, g)
		if len(info.HWAddr) == 6 && g.GID == defaultGID([6]byte(info.HWAddr)) {
			defaults++
		}
	}
	p.gids = mergeGIDs(p.gids, gids, defaults)
}

// active reports whether the port can send and receive.
func (p *port) active() bool { return p.info.Up && !p.gone }

// attr returns the attributes of the port.
func (p *port) attr() rdmaverbs.PortAttr {
	a := rdmaverbs.PortAttr{
		State:     rdmaverbs.PortDown,
		MaxMTU:    smc.MTU4096,
		ActiveMTU: p.activeMTU(),
		NetDev:    p.info.Name,
		IfIndex:   p.info.Index,
		HWAddr:    slices.Clone(p.info.HWAddr),
		VLAN:      p.info.VLAN,
	}
	if p.active() {
		a.State = rdmaverbs.PortActive
	}
	return a
}

// activeMTU returns the largest path MTU that fits for every GID type of the
// table.
func (p *port) activeMTU() smc.MTU {
	if len(p.types) == 1 {
		return p.info.pathMTU(p.types[0])
	}
	return min(p.info.pathMTU(rdmaverbs.RoCEv1), p.info.pathMTU(rdmaverbs.RoCEv2))
}

// guid returns the node GUID of the device, which its MAC address determines.
// It is zero if the netdev has no MAC address.
func (p *port) guid() (guid [8]byte) {
	if len(p.info.HWAddr) == 6 {
		g := defaultGID([6]byte(p.info.HWAddr))
		guid = [8]byte(g[8:])
	}
	return guid
}
