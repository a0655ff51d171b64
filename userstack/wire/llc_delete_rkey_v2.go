// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"smcr/smc"
)

// DeleteRKeyMaxV2 is the largest number of RKeys in one DeleteRKeyV2.
const DeleteRKeyMaxV2 = 255

const deleteRKeyListAt = 8

// DeleteRKeyV2 says in version 2 that RMBs do not exist any more.
//
//	0  header; flag 0x20 negative
//	4  number of RKeys
//	5  number of RKeys that were not known
//	6  reserved (2)
//	8  RKeys (4 each); up to nine of them leave the message at LLCLen bytes
//
// The reply of Linux has LLCLen bytes, and no RKeys whatever their number.
type DeleteRKeyV2 struct {
	Layout LLCLayout
	Reply  bool
	// Negative says in a reply that Invalid is not 0.
	Negative bool
	// RKeys has the RKeys on the link of the message, at most DeleteRKeyMaxV2. Only
	// a request has them.
	RKeys []smc.RKey
	// Count is the number of RKeys in the request. Replies repeat it. In a request
	// it is ignored: the length of RKeys is sent.
	Count uint8
	// Invalid is the number of RKeys that were not known. Only a reply has it.
	Invalid uint8
}

// LLCType returns LLCDeleteRKey.
func (DeleteRKeyV2) LLCType() LLCType { return LLCDeleteRKey }

// IsReply returns m.Reply.
func (m DeleteRKeyV2) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b: LLCLen bytes, more for a request of
// more than nine RKeys. It returns ErrRange if there are too many, or if a
// reply has any; ErrVersion for LLCV1.
func (m DeleteRKeyV2) AppendBinary(b []byte) ([]byte, error) {
	if m.Layout == LLCV1 {
		return b, fmt.Errorf("%w: DeleteRKeyV2 in version 1", ErrVersion)
	}
	if len(m.RKeys) > DeleteRKeyMaxV2 || m.Reply && len(m.RKeys) > 0 {
		return b, rangeErr("number of RKeys", len(m.RKeys))
	}
	b, p, err := appendLLC(b, m.Layout, LLCDeleteRKey, deleteRKeyListAt+4*len(m.RKeys), m.Reply)
	if err != nil {
		return b, err
	}
	if m.Negative {
		p[3] |= llcNegative
	}
	p[4], p[5] = m.Count, m.Invalid
	if !m.Reply {
		p[4] = byte(len(m.RKeys))
	}
	for i, k := range m.RKeys {
		binary.BigEndian.PutUint32(p[deleteRKeyListAt+4*i:], uint32(k))
	}
	return b, nil
}

// ParseDeleteRKeyV2 decodes a DELETE RKEY message of version 2. It returns ErrLength
// if the message is too short for its number of RKeys.
func ParseDeleteRKeyV2(b []byte) (DeleteRKeyV2, error) {
	flags, l, err := checkLLCV2(b, LLCDeleteRKey)
	if err != nil {
		return DeleteRKeyV2{}, err
	}
	m := DeleteRKeyV2{
		Layout:   l,
		Reply:    flags&llcReply != 0,
		Negative: flags&llcNegative != 0,
		Count:    b[4],
		Invalid:  b[5],
	}
	if m.Reply || m.Count == 0 {
		return m, nil
	}
	if want := deleteRKeyListAt + 4*int(m.Count); len(b) < want {
		return DeleteRKeyV2{}, fmt.Errorf("%w: DELETE RKEY of %d bytes with %d RKeys", ErrLength, len(b), m.Count)
	}
	m.RKeys = make([]smc.RKey, m.Count)
	for i := range m.RKeys {
		m.RKeys[i] = smc.RKey(binary.BigEndian.Uint32(b[deleteRKeyListAt+4*i:]))
	}
	return m, nil
}
