// SPDX-License-Identifier: Apache-2.0

package wire

import "smcr/smc"

// ConfirmRKeyMax is the largest number of other links in one ConfirmRKey.
const ConfirmRKeyMax = 2

// ConfirmRKey has the RTokens of a new RMB on all links of the link group. The reply
// echoes the request (RFC 7609, appendix A.3.5, figures 36 and 37).
//
//	0   header; flags 0x20 negative, 0x10 retry
//	4   number of other links
//	5   RKey on this link (4), address on this link (8)
//	17  two other links: link number, RKey (4), address (8)
//	43  reserved
type ConfirmRKey struct {
	Layout LLCLayout
	Reply  bool
	// Negative refuses the RMB. With Retry the sender must try again after the change
	// of the configuration that is in progress.
	Negative bool
	Retry    bool
	// Others is the number of other links in this message and those that continue it.
	// If it is larger than ConfirmRKeyMax, a ConfirmRKeyCont follows.
	Others uint8
	// This is the RToken on the link of the message.
	This smc.RToken
	// Other has Count entries. The rest is sent as zeros and ignored by the parser.
	Other [ConfirmRKeyMax]LinkRToken
}

// Count returns the number of entries of Other in use.
func (m ConfirmRKey) Count() int { return min(int(m.Others), ConfirmRKeyMax) }

// LLCType returns LLCConfirmRKey.
func (ConfirmRKey) LLCType() LLCType { return LLCConfirmRKey }

// IsReply returns m.Reply.
func (m ConfirmRKey) IsReply() bool { return m.Reply }

// AppendBinary appends the LLCLen bytes of the message to b; ErrRange if
// Layout is none of the defined ones.
func (m ConfirmRKey) AppendBinary(b []byte) ([]byte, error) {
	b, p, err := appendLLC(b, m.Layout, LLCConfirmRKey, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	if m.Negative {
		p[3] |= llcNegative
	}
	if m.Retry {
		p[3] |= llcRetry
	}
	p[4] = m.Others
	putRToken(p[5:], m.This)
	for i, t := range m.Other[:m.Count()] {
		putLinkRToken(p[17+linkRTokenLen*i:], t)
	}
	return b, nil
}

// ParseConfirmRKey decodes a CONFIRM RKEY message of either version.
func ParseConfirmRKey(b []byte) (ConfirmRKey, error) {
	flags, l, err := checkLLCAny(b, LLCConfirmRKey)
	if err != nil {
		return ConfirmRKey{}, err
	}
	m := ConfirmRKey{
		Layout:   l,
		Reply:    flags&llcReply != 0,
		Negative: flags&llcNegative != 0,
		Retry:    flags&llcRetry != 0,
		Others:   b[4],
		This:     getRToken(b[5:]),
	}
	for i := range m.Count() {
		m.Other[i] = getLinkRToken(b[17+linkRTokenLen*i:])
	}
	return m, nil
}
