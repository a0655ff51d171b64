// SPDX-License-Identifier: Apache-2.0

package wire

// ConfirmRKeyContMax is the largest number of links in one ConfirmRKeyCont.
const ConfirmRKeyContMax = 3

// ConfirmRKeyCont has the RTokens for which a ConfirmRKey had no room (RFC 7609,
// appendix A.3.6, figure 38).
//
//	0  header; flag 0x20 negative
//	4  number of links left, with those in this message
//	5  three links: link number, RKey (4), address (8)
//
// In figure 38 the first entry has 12 bytes and the last byte is reserved. In figure 37
// and in the text each entry has 13 bytes, and the entries fill the message. This
// package does what the text says. Link groups with at most three links, such as those
// of Linux, never send the message.
type ConfirmRKeyCont struct {
	Reply    bool
	Negative bool
	// Left is the number of links that are still to be sent, with those in this
	// message. If it is larger than ConfirmRKeyContMax, another message follows.
	Left uint8
	// Other has Count entries. The rest is sent as zeros and ignored by the parser.
	Other [ConfirmRKeyContMax]LinkRToken
}

// Count returns the number of entries of Other in use.
func (m ConfirmRKeyCont) Count() int { return min(int(m.Left), ConfirmRKeyContMax) }

// LLCType returns LLCConfirmRKeyCont.
func (ConfirmRKeyCont) LLCType() LLCType { return LLCConfirmRKeyCont }

// IsReply returns m.Reply.
func (m ConfirmRKeyCont) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b. It cannot fail.
func (m ConfirmRKeyCont) AppendBinary(b []byte) ([]byte, error) {
	b, p, err := appendLLC(b, LLCV1, LLCConfirmRKeyCont, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	if m.Negative {
		p[3] |= llcNegative
	}
	p[4] = m.Left
	for i, t := range m.Other[:m.Count()] {
		putLinkRToken(p[5+linkRTokenLen*i:], t)
	}
	return b, nil
}

// ParseConfirmRKeyCont decodes a CONFIRM RKEY CONTINUATION message.
func ParseConfirmRKeyCont(b []byte) (ConfirmRKeyCont, error) {
	flags, err := checkLLC(b, LLCConfirmRKeyCont)
	if err != nil {
		return ConfirmRKeyCont{}, err
	}
	m := ConfirmRKeyCont{Reply: flags&llcReply != 0, Negative: flags&llcNegative != 0, Left: b[4]}
	for i := range m.Count() {
		m.Other[i] = getLinkRToken(b[5+linkRTokenLen*i:])
	}
	return m, nil
}
