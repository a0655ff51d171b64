// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// AddLinkReason says why an ADD LINK was rejected.
type AddLinkReason uint8

// The reasons: four bits on the wire.
const (
	AddLinkNoAlternatePath AddLinkReason = 1
	AddLinkInvalidMTU      AddLinkReason = 2
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
// Figure 32 has the GID at 10, right behind the MAC, and all that follows two
// bytes earlier. Linux reserves these two bytes, and so does Wireshark's
// dissector, so their layout is the one that peers speak.
type AddLink struct {
	Reply bool
	// Rejected is the Z flag of a reply, Reason the cause of it. A Reason
	// without Rejected is not sent and not read.
	Rejected bool
	Reason   AddLinkReason
	MAC      MAC
	GID      GID
	// QPN, MTU and PSN are 0 in the request of a Linux client, which has no
	// queue pair yet.
	QPN QPN
	// LinkNum is given by the server and echoed by the client.
	LinkNum uint8
	MTU     MTU
	PSN     PSN
}

// LLCType returns LLCAddLink.
func (AddLink) LLCType() LLCType { return LLCAddLink }

// IsReply returns m.Reply.
func (m AddLink) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b; ErrRange if QPN or PSN exceeds 24
// bits, or MTU or Reason four.
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
	b, p := appendLLC(b, LLCAddLink, m.Reply)
	if m.Rejected {
		p[2] = byte(m.Reason)
		p[3] |= llcRejected
	}
	copy(p[4:], m.MAC[:])
	copy(p[12:], m.GID[:])
	put24(p[28:], uint32(m.QPN))
	p[31] = m.LinkNum
	p[32] = byte(m.MTU)
	put24(p[33:], uint32(m.PSN))
	return b, nil
}

// ParseAddLink decodes an ADD LINK message. Reserved MTU codes pass; they are
// for the link group to reject.
func ParseAddLink(b []byte) (AddLink, error) {
	flags, err := checkLLC(b, LLCAddLink)
	if err != nil {
		return AddLink{}, err
	}
	m := AddLink{
		Reply:    flags&llcReply != 0,
		Rejected: flags&llcRejected != 0,
		MAC:      MAC(b[4:10]),
		GID:      GID(b[12:28]),
		QPN:      QPN(get24(b[28:])),
		LinkNum:  b[31],
		MTU:      MTU(b[32] & 15),
		PSN:      PSN(get24(b[33:])),
	}
	if m.Rejected {
		m.Reason = AddLinkReason(b[2] & 15)
	}
	return m, nil
}
