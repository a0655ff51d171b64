// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"smcr/smc"
)

// AddLinkContMax is the largest number of pairs in one AddLinkCont.
const AddLinkContMax = 2

const rkeyPairLen = 16

// RKeyPair gives an RMB's RToken on a new link, and names the RMB by its RKey
// on the link that carries the message (RFC 7609, appendix A.3.3, figure 34).
type RKeyPair struct {
	RefRKey smc.RKey
	New     smc.RToken
}

func putRKeyPair(b []byte, p RKeyPair) {
	binary.BigEndian.PutUint32(b, uint32(p.RefRKey))
	putRToken(b[4:], p.New)
}

func getRKeyPair(b []byte) RKeyPair {
	return RKeyPair{RefRKey: smc.RKey(binary.BigEndian.Uint32(b)), New: getRToken(b[4:])}
}

// AddLinkCont has the RTokens of the sender's RMBs on a link being added
// (RFC 7609, appendix A.3.3, figure 33). In version 2 AddLinkExt does that.
//
//	0   header
//	4   link number of the new link
//	5   number of RTokens left, with those in this message
//	6   reserved (2)
//	8   two pairs: reference RKey (4), new RKey (4), new address (8)
//	40  reserved (4)
type AddLinkCont struct {
	Reply   bool
	LinkNum uint8
	// Left is the number of RTokens that are still to be sent, with those in this
	// message. If it is larger than AddLinkContMax, another message follows.
	Left uint8
	// Pairs has Count entries. The others are sent as zeros and ignored by the parser.
	Pairs [AddLinkContMax]RKeyPair
}

// Count returns the number of entries of Pairs in use.
func (m AddLinkCont) Count() int { return min(int(m.Left), AddLinkContMax) }

// LLCType returns LLCAddLinkCont.
func (AddLinkCont) LLCType() LLCType { return LLCAddLinkCont }

// IsReply returns m.Reply.
func (m AddLinkCont) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b. It cannot fail.
func (m AddLinkCont) AppendBinary(b []byte) ([]byte, error) {
	b, p, err := appendLLC(b, LLCV1, LLCAddLinkCont, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	p[4], p[5] = m.LinkNum, m.Left
	for i, pair := range m.Pairs[:m.Count()] {
		putRKeyPair(p[8+rkeyPairLen*i:], pair)
	}
	return b, nil
}

// ParseAddLinkCont decodes an ADD LINK CONTINUATION message.
func ParseAddLinkCont(b []byte) (AddLinkCont, error) {
	flags, err := checkLLC(b, LLCAddLinkCont)
	if err != nil {
		return AddLinkCont{}, err
	}
	m := AddLinkCont{Reply: flags&llcReply != 0, LinkNum: b[4], Left: b[5]}
	for i := range m.Count() {
		m.Pairs[i] = getRKeyPair(b[8+rkeyPairLen*i:])
	}
	return m, nil
}
