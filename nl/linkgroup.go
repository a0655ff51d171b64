// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"smcr/smc"
)

// A BufType is the kind of memory of RMBs.
type BufType uint8

// The kinds of memory, with the numbers of the kernel.
const (
	BufPhysical BufType = 0 // physically contiguous
	BufVirtual  BufType = 1 // virtually contiguous
	BufMixed    BufType = 2 // physically contiguous if possible, otherwise virtually
)

// String returns "physical", "virtual" or "mixed".
func (b BufType) String() string { return name("BufType", b, "physical", "virtual", "mixed") }

// name returns names[v], or the type and the number.
func name[T ~uint8 | ~uint32](typ string, v T, names ...string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", typ, v)
}

// A V2Common has what version 2 of SMC adds to both kinds of link groups.
type V2Common struct {
	Version  uint8 // 2 or more
	Release  uint8 // the peer's release
	OS       smc.OS
	EID      string // the negotiated enterprise ID
	PeerHost string // the peer's host name
}

func (v *V2Common) encode(ae *attrEncoder) {
	ae.Uint8(attrV2Ver, v.Version)
	ae.Uint8(attrV2Rel, v.Release)
	ae.Uint8(attrV2OS, uint8(v.OS))
	padded(ae, attrV2PeerHost, v.PeerHost)
	padded(ae, attrV2NegEID, v.EID)
}

func (v *V2Common) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrV2Ver:
			v.Version = number8(ad)
		case attrV2Rel:
			v.Release = number8(ad)
		case attrV2OS:
			v.OS = smc.OS(number8(ad))
		case attrV2PeerHost:
			v.PeerHost = text(ad)
		case attrV2NegEID:
			v.EID = text(ad)
		}
	}
	return ad.Err()
}

// A V2R has what version 2 adds to an SMC-R link group.
type V2R struct {
	Direct   bool  // both sides are in one subnet, without a router between them
	MaxConns uint8 // connections in the link group, at most
	MaxLinks uint8 // links in the link group, at most
}

func (v *V2R) encode(ae *attrEncoder) {
	boolAttr(ae, attrRV2Direct, v.Direct)
	ae.Uint8(attrRV2MaxConns, v.MaxConns)
	ae.Uint8(attrRV2MaxLinks, v.MaxLinks)
}

func (v *V2R) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrRV2Direct:
			v.Direct = number(ad) != 0
		case attrRV2MaxConns:
			v.MaxConns = number8(ad)
		case attrRV2MaxLinks:
			v.MaxLinks = number8(ad)
		}
	}
	return ad.Err()
}

// A LinkGroupID identifies a link group within its stack.
type LinkGroupID uint32

// String returns eight hexadecimal digits.
func (id LinkGroupID) String() string { return string(appendHex32(nil, uint32(id))) }

// appendHex32 appends eight hexadecimal digits.
func appendHex32(b []byte, v uint32) []byte {
	return hex.AppendEncode(b, binary.BigEndian.AppendUint32(make([]byte, 0, 4), v))
}

// ParseLinkGroupID parses up to eight hexadecimal digits.
func ParseLinkGroupID(s string) (LinkGroupID, error) {
	v, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("nl: %q is not a link group ID, which has 1 to 8 hexadecimal digits", s)
	}
	return LinkGroupID(v), nil
}

// A LinkGroup is an SMC-R link group (RFC 7609, section 2.2).
type LinkGroup struct {
	ID        LinkGroupID
	Role      smc.Role
	Type      smc.GroupType
	PNETID    string // pnetid of the network it is in, or ""
	VLAN      uint16 // VLAN ID, 0 for none; kernels send only the low 8 bits
	Conns     uint32 // connections now
	NetCookie uint64 // cookie of the network namespace
	BufType   BufType
	Sndbuf    uint64 // bytes of send buffers allocated
	RMB       uint64 // bytes of RMBs allocated

	V2  *V2Common // nil in version 1
	V2R *V2R      // nil in version 1

	// The fields below are set only by stacks in user space.

	PeerID smc.PeerID // the peer's ID: instance and MAC address (RFC 7609, appendix A.2.1)
	Peer   string     // IP address of the peer's end of the first connection
	Links  uint32     // links that exist
}

// Version returns the SMC version that the link group uses.
func (g *LinkGroup) Version() uint8 {
	if g.V2 != nil {
		return g.V2.Version
	}
	return 1
}

func (g *LinkGroup) encode(ae *attrEncoder) {
	ae.Uint32(attrLgrRID, uint32(g.ID))
	ae.Uint32(attrLgrRConns, g.Conns)
	ae.Uint8(attrLgrRRole, uint8(g.Role))
	ae.Uint8(attrLgrRType, uint8(g.Type))
	ae.Uint8(attrLgrRBufType, uint8(g.BufType))
	ae.Uint8(attrLgrRVLAN, uint8(g.VLAN))
	ae.Uint64(attrLgrRNetCookie, g.NetCookie)
	limited(ae, attrLgrRPNETID, g.PNETID, 16)
	uintAttr(ae, attrLgrRSndbufAlloc, g.Sndbuf)
	uintAttr(ae, attrLgrRRMBAlloc, g.RMB)
	if g.V2 != nil {
		nest(ae, attrLgrRV2Common, g.V2)
	}
	if g.V2R != nil {
		nest(ae, attrLgrRV2, g.V2R)
	}
	if g.VLAN > 0xff {
		ae.Uint16(attrLgrFullVLAN, g.VLAN)
	}
	if !g.PeerID.IsZero() {
		ae.Bytes(attrLgrPeerID, g.PeerID[:])
	}
	if g.Peer != "" {
		limited(ae, attrLgrPeer, g.Peer, 64)
	}
	if g.Links != 0 {
		ae.Uint32(attrLgrLinks, g.Links)
	}
}

func (g *LinkGroup) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrLgrRID:
			g.ID = LinkGroupID(number32(ad))
		case attrLgrRConns:
			g.Conns = number32(ad)
		case attrLgrRRole:
			g.Role = smc.Role(number8(ad))
		case attrLgrRType:
			g.Type = smc.GroupType(number8(ad))
		case attrLgrRBufType:
			g.BufType = BufType(number8(ad))
		case attrLgrRVLAN:
			g.VLAN = g.VLAN&^0xff | uint16(number8(ad))
		case attrLgrRNetCookie:
			g.NetCookie = number(ad)
		case attrLgrRPNETID:
			g.PNETID = text(ad)
		case attrLgrRSndbufAlloc:
			g.Sndbuf = number(ad)
		case attrLgrRRMBAlloc:
			g.RMB = number(ad)
		case attrLgrRV2Common:
			g.V2 = new(V2Common)
			denest(ad, g.V2)
		case attrLgrRV2:
			g.V2R = new(V2R)
			denest(ad, g.V2R)
		case attrLgrFullVLAN:
			g.VLAN = number16(ad)
		case attrLgrPeerID:
			copy(g.PeerID[:], ad.Bytes())
		case attrLgrPeer:
			g.Peer = text(ad)
		case attrLgrLinks:
			g.Links = number32(ad)
		}
	}
	return ad.Err()
}
