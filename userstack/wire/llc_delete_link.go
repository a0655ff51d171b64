// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

// DeleteLinkReason is the reason for which a link ends, or for which it does not.
type DeleteLinkReason uint32

// The reasons of RFC 7609, appendix A.3.4, and one of Linux.
const (
	DeleteLinkLostPath          DeleteLinkReason = 0x00010000 // the path to the peer was lost
	DeleteLinkOperator          DeleteLinkReason = 0x00020000 // an operator ended it
	DeleteLinkProgram           DeleteLinkReason = 0x00030000 // the program that owns it ends, in order
	DeleteLinkProtocolViolation DeleteLinkReason = 0x00040000 // the peer broke the protocol
	DeleteLinkAsymmetric        DeleteLinkReason = 0x00050000 // the link is asymmetric and not needed any more
	// DeleteLinkUnknownLink says in a reply that there is no such link.
	DeleteLinkUnknownLink DeleteLinkReason = 0x00100000
	// DeleteLinkUnknownGroup says in a reply that there is no such link group. It is
	// not in RFC 7609.
	DeleteLinkUnknownGroup DeleteLinkReason = 0x00200000
)

// String returns what the reason means.
func (r DeleteLinkReason) String() string {
	switch r {
	case DeleteLinkLostPath:
		return "lost path"
	case DeleteLinkOperator:
		return "operator initiated termination"
	case DeleteLinkProgram:
		return "program initiated termination"
	case DeleteLinkProtocolViolation:
		return "LLC protocol violation"
	case DeleteLinkAsymmetric:
		return "asymmetric link no longer needed"
	case DeleteLinkUnknownLink:
		return "unknown link"
	case DeleteLinkUnknownGroup:
		return "unknown link group"
	}
	return fmt.Sprintf("reason 0x%08x", uint32(r))
}

// DeleteLink removes a link, or all links, from a link group. The request of a client
// asks the server to send one (RFC 7609, appendix A.3.4, figure 35).
//
//	0  header; flags 0x40 all, 0x20 orderly
//	4  link number
//	5  reason (4)
//	9  reserved (35)
type DeleteLink struct {
	Layout LLCLayout
	Reply  bool
	// All ends the link group. The link number is then sent as 0, and ignored by
	// the parser.
	All bool
	// Orderly says that there is no error: an operator or a program asked for it.
	Orderly bool
	LinkNum uint8
	Reason  DeleteLinkReason
}

// LLCType returns LLCDeleteLink.
func (DeleteLink) LLCType() LLCType { return LLCDeleteLink }

// IsReply returns m.Reply.
func (m DeleteLink) IsReply() bool { return m.Reply }

// AppendBinary appends the LLCLen bytes of the message to b; ErrRange if
// Layout is none of the defined ones.
func (m DeleteLink) AppendBinary(b []byte) ([]byte, error) {
	b, p, err := appendLLC(b, m.Layout, LLCDeleteLink, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	if m.All {
		p[3] |= llcAll
	} else {
		p[4] = m.LinkNum
	}
	if m.Orderly {
		p[3] |= llcOrderly
	}
	binary.BigEndian.PutUint32(p[5:], uint32(m.Reason))
	return b, nil
}

// ParseDeleteLink decodes a DELETE LINK message of either version.
func ParseDeleteLink(b []byte) (DeleteLink, error) {
	flags, l, err := checkLLCAny(b, LLCDeleteLink)
	if err != nil {
		return DeleteLink{}, err
	}
	m := DeleteLink{
		Layout:  l,
		Reply:   flags&llcReply != 0,
		All:     flags&llcAll != 0,
		Orderly: flags&llcOrderly != 0,
		Reason:  DeleteLinkReason(binary.BigEndian.Uint32(b[5:])),
	}
	if !m.All {
		m.LinkNum = b[4]
	}
	return m, nil
}
