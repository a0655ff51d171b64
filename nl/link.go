// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// A LinkUID is the user ID of a link, which both sides exchange: 4 bytes in the
// order of the wire (RFC 7609, appendix A.2.2: link user ID).
type LinkUID [4]byte

// String returns eight hexadecimal digits.
func (u LinkUID) String() string { return fmt.Sprintf("%08x", [4]byte(u)) }

// A Link is one pair of reliably connected queue pairs of an SMC-R link group.
type Link struct {
	LinkGroup LinkGroupID   // the link group it belongs to
	Role      smc.Role      // of the link group
	Type      smc.GroupType // of the link group

	ID      uint8  // link number, unique on both sides of the link group
	IBDev   string // RoCE device
	IBPort  uint8  // its port
	GID     smc.GID
	PeerGID smc.GID
	Conns   uint32 // connections that use the link now
	NetDev  uint32 // index of the network device of the port
	UID     LinkUID
	PeerUID LinkUID
	State   smc.LinkState

	// The fields below are set only by stacks in user space.

	QPN     uint32 // own queue pair number
	PeerQPN uint32 // the peer's queue pair number
	MTU     uint32 // path MTU in bytes
	// Resent is nil if the queue pair does not count it, and while the link has none.
	Resent *Resent
}

func (l *Link) encode(ae *attrEncoder) {
	ae.Uint8(attrLinkID, l.ID)
	ae.Uint32(attrLinkState, uint32(l.State))
	ae.Uint32(attrLinkConns, l.Conns)
	ae.Uint8(attrLinkIBPort, l.IBPort)
	ae.Uint32(attrLinkNetDev, l.NetDev)
	limited(ae, attrLinkIBDev, l.IBDev, 63)
	// The kernel converts the bytes of a user ID to an integer in host order.
	ae.Uint32(attrLinkUID, binary.NativeEndian.Uint32(l.UID[:]))
	ae.Uint32(attrLinkPeerUID, binary.NativeEndian.Uint32(l.PeerUID[:]))
	ae.String(attrLinkGID, l.GID.String())
	ae.String(attrLinkPeerGID, l.PeerGID.String())
	if l.QPN|l.PeerQPN|l.MTU != 0 {
		ae.Uint32(attrLinkQPN, l.QPN)
		ae.Uint32(attrLinkPeerQPN, l.PeerQPN)
		ae.Uint32(attrLinkMTU, l.MTU)
	}
	if l.Resent != nil {
		ae.Uint64(attrLinkRetransmits, l.Resent.Packets)
		ae.Uint64(attrLinkTimeouts, l.Resent.Timeouts)
	}
}

// resent returns the counters of what the queue pair sent again, which the message has.
func (l *Link) resent() *Resent {
	if l.Resent == nil {
		l.Resent = new(Resent)
	}
	return l.Resent
}

func (l *Link) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrLinkID:
			l.ID = number8(ad)
		case attrLinkState:
			l.State = smc.LinkState(number32(ad))
		case attrLinkConns:
			l.Conns = number32(ad)
		case attrLinkIBPort:
			l.IBPort = number8(ad)
		case attrLinkNetDev:
			l.NetDev = number32(ad)
		case attrLinkIBDev:
			l.IBDev = text(ad)
		case attrLinkUID:
			binary.NativeEndian.PutUint32(l.UID[:], number32(ad))
		case attrLinkPeerUID:
			binary.NativeEndian.PutUint32(l.PeerUID[:], number32(ad))
		case attrLinkGID:
			l.GID = lenientGID(text(ad))
		case attrLinkPeerGID:
			l.PeerGID = lenientGID(text(ad))
		case attrLinkQPN:
			l.QPN = number32(ad)
		case attrLinkPeerQPN:
			l.PeerQPN = number32(ad)
		case attrLinkMTU:
			l.MTU = number32(ad)
		case attrLinkRetransmits:
			l.resent().Packets = number(ad)
		case attrLinkTimeouts:
			l.resent().Timeouts = number(ad)
		}
	}
	return ad.Err()
}
