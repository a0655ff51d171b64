// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"smcr/smc"
)

// ConfirmLink shows that a new link carries messages (RFC 7609, appendix
// A.3.1, figure 31).
//
//	0   header
//	4   sender's MAC (6)
//	10  sender's GID (16)
//	26  sender's queue pair number (3)
//	29  link number
//	30  sender's link user ID (4)
//	34  most links in a link group
//	35  most connections in the link group; reserved in version 1
//	36  reserved (8)
type ConfirmLink struct {
	Layout LLCLayout
	Reply  bool
	// NoEyecatcher says that the RMB elements of the sender have no eyecatcher:
	// flags 0x03, which RFC 7609 reserves. Linux sets both, and declines a peer that
	// sets none. For the parser one of them is enough.
	NoEyecatcher bool
	MAC          smc.MAC
	GID          smc.GID
	QPN          smc.QPN
	// LinkNum is chosen by the server and echoed by the client.
	LinkNum uint8
	// LinkUserID is the number that the sender shows for the link.
	LinkUserID uint32
	// MaxLinks is the largest number of links that the sender supports in a link group.
	MaxLinks uint8
	// MaxConns is the largest number of connections in the link group. Only version 2
	// has it, from release 1 on.
	MaxConns uint8
}

// LLCType returns LLCConfirmLink.
func (ConfirmLink) LLCType() LLCType { return LLCConfirmLink }

// IsReply returns m.Reply.
func (m ConfirmLink) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b; ErrRange if QPN exceeds 24 bits
// or Layout is none of the defined ones.
func (m ConfirmLink) AppendBinary(b []byte) ([]byte, error) {
	if err := check24(m.QPN, 0); err != nil {
		return b, err
	}
	b, p, err := appendLLC(b, m.Layout, LLCConfirmLink, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	if m.NoEyecatcher {
		p[3] |= llcNoEyec
	}
	copy(p[4:], m.MAC[:])
	copy(p[10:], m.GID[:])
	put24(p[26:], uint32(m.QPN))
	p[29] = m.LinkNum
	binary.BigEndian.PutUint32(p[30:], m.LinkUserID)
	p[34] = m.MaxLinks
	if m.Layout.V2() {
		p[35] = m.MaxConns
	}
	return b, nil
}

// ParseConfirmLink decodes a CONFIRM LINK message of either version.
func ParseConfirmLink(b []byte) (ConfirmLink, error) {
	flags, l, err := checkLLCAny(b, LLCConfirmLink)
	if err != nil {
		return ConfirmLink{}, err
	}
	m := ConfirmLink{
		Layout:       l,
		Reply:        flags&llcReply != 0,
		NoEyecatcher: flags&llcNoEyec != 0,
		MAC:          smc.MAC(b[4:10]),
		GID:          smc.GID(b[10:26]),
		QPN:          smc.QPN(get24(b[26:])),
		LinkNum:      b[29],
		LinkUserID:   binary.BigEndian.Uint32(b[30:]),
		MaxLinks:     b[34],
	}
	if l.V2() {
		m.MaxConns = b[35]
	}
	return m, nil
}
