// SPDX-License-Identifier: Apache-2.0

package nl

// A LinkGroupD is an SMC-D link group: the connections between two ISM devices.
type LinkGroupD struct {
	ID         LinkGroupID
	GID        uint64
	PeerGID    uint64
	ExtGID     uint64 // upper half of a 128-bit GID
	PeerExtGID uint64
	VLAN       uint16 // VLAN ID, 0 for none; kernels send only the low 8 bits
	Conns      uint32
	PNETID     string
	CHID       uint32
	Sndbuf     uint64 // bytes of send buffers allocated
	DMB        uint64 // bytes of DMBs allocated

	V2 *V2Common // nil in version 1
}

func (g *LinkGroupD) encode(ae *attrEncoder) {
	ae.Uint32(attrLgrDID, uint32(g.ID))
	ae.Uint64(attrLgrDGID, g.GID)
	ae.Uint64(attrLgrDExtGID, g.ExtGID)
	ae.Uint64(attrLgrDPeerGID, g.PeerGID)
	ae.Uint64(attrLgrDPeerExtGID, g.PeerExtGID)
	ae.Uint8(attrLgrDVLAN, uint8(g.VLAN))
	ae.Uint32(attrLgrDConns, g.Conns)
	ae.Uint32(attrLgrDCHID, g.CHID)
	uintAttr(ae, attrLgrDSndbufAlloc, g.Sndbuf)
	uintAttr(ae, attrLgrDDMBAlloc, g.DMB)
	limited(ae, attrLgrDPNETID, g.PNETID, 16)
	if g.V2 != nil {
		nest(ae, attrLgrDV2Common, g.V2)
	}
	if g.VLAN > 0xff {
		ae.Uint16(attrLgrFullVLAN, g.VLAN)
	}
}

func (g *LinkGroupD) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrLgrDID:
			g.ID = LinkGroupID(number32(ad))
		case attrLgrDGID:
			g.GID = number(ad)
		case attrLgrDExtGID:
			g.ExtGID = number(ad)
		case attrLgrDPeerGID:
			g.PeerGID = number(ad)
		case attrLgrDPeerExtGID:
			g.PeerExtGID = number(ad)
		case attrLgrDVLAN:
			g.VLAN = g.VLAN&^0xff | uint16(number8(ad))
		case attrLgrDConns:
			g.Conns = number32(ad)
		case attrLgrDCHID:
			g.CHID = number32(ad)
		case attrLgrDSndbufAlloc:
			g.Sndbuf = number(ad)
		case attrLgrDDMBAlloc:
			g.DMB = number(ad)
		case attrLgrDPNETID:
			g.PNETID = text(ad)
		case attrLgrDV2Common:
			g.V2 = new(V2Common)
			denest(ad, g.V2)
		case attrLgrFullVLAN:
			g.VLAN = number16(ad)
		}
	}
	return ad.Err()
}
