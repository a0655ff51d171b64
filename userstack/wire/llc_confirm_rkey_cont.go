// SPDX-License-Identifier: Apache-2.0

package wire

// ConfirmRKeyContMax is the largest number of links in one ConfirmRKeyCont.
const ConfirmRKeyContMax = 3

// ConfirmRKeyCont goes on where a ConfirmRKey had no more room (RFC 7609,
// appendix A.3.6, figure 38).
//
//	0  header; flag 0x20 negative
//	4  number of links left, with those in this message
//	5  three links: link number, RKey (4), address (8)
//
// Figure 38 gives the first entry 12 bytes and keeps the last byte reserved;
// figure 37 and the text need 13 bytes an entry, which fill the message. The
// text is followed here. With at most three links in a link group, as Linux
// has it, the message never flows.
type ConfirmRKeyCont struct {
	Reply    bool
	Negative bool
	// Left is the number of links still to be told about, with those in this
	// message; above ConfirmRKeyContMax another message follows.
	Left uint8
	// Other holds Count entries; the rest is sent as zeros and not read.
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
