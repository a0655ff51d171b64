// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// AddLinkReason is the reason for which an ADD LINK was rejected.
type AddLinkReason uint8

// The reasons: four bits on the wire.
const (
	AddLinkNoAlternatePath AddLinkReason = 1 // no other path to the peer
	AddLinkInvalidMTU      AddLinkReason = 2 // the path MTU is a reserved value
)

// String returns what the reason means.
func (r AddLinkReason) String() string {
	switch r {
	case AddLinkNoAlternatePath:
		return "no alternate path"
	case AddLinkInvalidMTU:
		return "invalid MTU"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// AddLink sets up a further link of a link group. The server requests it; a
// request from the client asks the server to request it (RFC 7609, appendix
// A.3.2, figure 32).
//
//	0   header; byte 2 low nibble reason; flag 0x40 rejected
//	4   sender's MAC (6)
//	10  reserved (2)
//	12  sender's GID (16)
//	28  sender's queue pair number (3)
//	31  link number
//	32  MTU code (low nibble)
//	33  initial PSN (3)
//	36  reserved (8)
//
// In figure 32 the GID follows the MAC, at 10, and everything behind it is two bytes
// earlier. Linux and the dissector of Wireshark have two reserved bytes here, so this is
// what peers send.
//
// In version 2 the length is in the place of the reason, and AddLinkExt follows at 44,
// except in a message that rejects. Version 2 has no AddLinkCont.
type AddLink struct {
	Layout LLCLayout
	Reply  bool
	// Rejected is the Z flag of a reply, and Reason says why. A Reason without
	// Rejected, or in version 2, is neither sent nor parsed.
	Rejected bool
	Reason   AddLinkReason
	MAC      smc.MAC
	GID      smc.GID
	// QPN, MTU and PSN are 0 in the request of a Linux client, which has no
	// queue pair yet.
	QPN smc.QPN
	// LinkNum is chosen by the server and echoed by the client.
	LinkNum uint8
	MTU     smc.MTU
	PSN     smc.PSN
	// Ext is the extension of version 2. It is nil in version 1. With Rejected it is
	// neither sent nor parsed.
	Ext *AddLinkExt
}

// AddLinkExt is what version 2 adds to ADD LINK: the RTokens of the sender's
// RMBs on the new link, all at once.
//
//	44  direct (highest bit), reserved
//	46  target GID (16)
//	62  reserved (8)
//	70  number of pairs (2), of which only the low byte counts
//	72  pairs: reference RKey (4), new RKey (4), new address (8)
type AddLinkExt struct {
	// Direct is as in FirstContactExt, for the new link.
	Direct bool
	// TargetGID is the GID of the client that the server wants to reach. Linux sends
	// its own GID here, and ignores the one of its peer.
	TargetGID smc.GID
	// Pairs has at most AddLinkMaxPairs entries.
	Pairs []RKeyPair
}

// AddLinkMaxPairs is the largest number of pairs in an AddLinkExt.
const AddLinkMaxPairs = 255

const addLinkExtLen = 28

// LLCType returns LLCAddLink.
func (AddLink) LLCType() LLCType { return LLCAddLink }

// IsReply returns m.Reply.
func (m AddLink) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b: LLCLen bytes, and with Ext 28 and 16
// for each pair. It returns ErrRange if QPN or PSN exceeds 24 bits, or MTU or
// Reason four, or if there are too many pairs; ErrVersion for an extension in
// version 1.
func (m AddLink) AppendBinary(b []byte) ([]byte, error) {
	if err := check24(m.QPN, m.PSN); err != nil {
		return b, err
	}
	if m.MTU > 15 {
		return b, rangeErr("MTU code", uint8(m.MTU))
	}
	if m.Reason > 15 {
		return b, rangeErr("rejection reason", uint8(m.Reason))
	}
	n, ext := LLCLen, m.Ext
	if m.Rejected {
		ext = nil
	}
	if ext != nil {
		if m.Layout == LLCV1 {
			return b, fmt.Errorf("%w: extension of ADD LINK in version 1", ErrVersion)
		}
		if len(ext.Pairs) > AddLinkMaxPairs {
			return b, rangeErr("number of RKeys", len(ext.Pairs))
		}
		n += addLinkExtLen + rkeyPairLen*len(ext.Pairs)
	}
	b, p, err := appendLLC(b, m.Layout, LLCAddLink, n, m.Reply)
	if err != nil {
		return b, err
	}
	if m.Rejected {
		p[3] |= llcRejected
		if m.Layout == LLCV1 {
			p[2] = byte(m.Reason)
		}
	}
	copy(p[4:], m.MAC[:])
	copy(p[12:], m.GID[:])
	put24(p[28:], uint32(m.QPN))
	p[31] = m.LinkNum
	p[32] = byte(m.MTU)
	put24(p[33:], uint32(m.PSN))
	if ext != nil {
		ext.put(p[LLCLen:], m.Layout)
	}
	return b, nil
}

func (x *AddLinkExt) put(b []byte, l LLCLayout) {
	if x.Direct {
		b[0] = 0x80
	}
	copy(b[2:], x.TargetGID[:])
	l.putUint16(b[26:], uint16(len(x.Pairs)))
	for i, pair := range x.Pairs {
		putRKeyPair(b[addLinkExtLen+rkeyPairLen*i:], pair)
	}
}

func getAddLinkExt(b []byte) (*AddLinkExt, error) {
	if len(b) < addLinkExtLen {
		return nil, fmt.Errorf("%w: ADD LINK with an extension of %d bytes", ErrLength, len(b))
	}
	x := &AddLinkExt{Direct: b[0]&0x80 != 0, TargetGID: smc.GID(b[2:18])}
	// The number stands in either byte order, and up to 255 it takes one
	// byte. Who does not know its peer's order may have put it in both.
	n := int(b[26])
	if n == 0 {
		n = int(b[27])
	} else if b[27] != 0 && int(b[27]) != n {
		return nil, rangeErr("number of RKeys", binary.BigEndian.Uint16(b[26:]))
	}
	if len(b) < addLinkExtLen+rkeyPairLen*n {
		return nil, fmt.Errorf("%w: ADD LINK with an extension of %d bytes and %d RKeys", ErrLength, len(b), n)
	}
	if n > 0 {
		x.Pairs = make([]RKeyPair, n)
	}
	for i := range x.Pairs {
		x.Pairs[i] = getRKeyPair(b[addLinkExtLen+rkeyPairLen*i:])
	}
	return x, nil
}

// ParseAddLink decodes an ADD LINK message of either version. It accepts reserved MTU
// codes; the link group rejects them.
func ParseAddLink(b []byte) (AddLink, error) {
	flags, l, err := checkLLCAny(b, LLCAddLink)
	if err != nil {
		return AddLink{}, err
	}
	m := AddLink{
		Layout:   l,
		Reply:    flags&llcReply != 0,
		Rejected: flags&llcRejected != 0,
		MAC:      smc.MAC(b[4:10]),
		GID:      smc.GID(b[12:28]),
		QPN:      smc.QPN(get24(b[28:])),
		LinkNum:  b[31],
		MTU:      smc.MTU(b[32] & 15),
		PSN:      smc.PSN(get24(b[33:])),
	}
	switch {
	case m.Rejected && l == LLCV1:
		m.Reason = AddLinkReason(b[2] & 15)
	case !m.Rejected && len(b) > LLCLen:
		if m.Ext, err = getAddLinkExt(b[LLCLen:]); err != nil {
			return AddLink{}, err
		}
	}
	return m, nil
}
