// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"smcr/smc"
)

// DeleteRKeyMax is the largest number of RKeys in one DeleteRKey.
const DeleteRKeyMax = 8

// DeleteRKey says that RMBs do not exist any more. The reply echoes the request (RFC 7609,
// appendix A.3.7, figure 39). Version 2 has DeleteRKeyV2.
//
//	0   header; flag 0x20 negative
//	4   number of RKeys
//	5   error mask
//	6   reserved (2)
//	8   RKeys (8 times 4)
//	40  reserved (4)
type DeleteRKey struct {
	Reply    bool
	Negative bool
	// Count is the number of entries of RKeys in use, at most DeleteRKeyMax.
	Count uint8
	// ErrorMask has, in a negative reply, a bit for each RKey that was not known. The
	// highest bit is for RKeys[0]; see Failed.
	ErrorMask uint8
	// RKeys has the RKeys on the link of the message. Entries from Count on are sent
	// as zeros and ignored by the parser.
	RKeys [DeleteRKeyMax]smc.RKey
}

// Failed reports whether the error mask has the bit of RKeys[i].
func (m DeleteRKey) Failed(i int) bool {
	return i >= 0 && i < DeleteRKeyMax && m.ErrorMask&(0x80>>i) != 0
}

// LLCType returns LLCDeleteRKey.
func (DeleteRKey) LLCType() LLCType { return LLCDeleteRKey }

// IsReply returns m.Reply.
func (m DeleteRKey) IsReply() bool { return m.Reply }

// AppendBinary appends the message to b; ErrRange if Count exceeds
// DeleteRKeyMax.
func (m DeleteRKey) AppendBinary(b []byte) ([]byte, error) {
	if m.Count > DeleteRKeyMax {
		return b, rangeErr("number of RKeys", m.Count)
	}
	b, p, err := appendLLC(b, LLCV1, LLCDeleteRKey, LLCLen, m.Reply)
	if err != nil {
		return b, err
	}
	if m.Negative {
		p[3] |= llcNegative
	}
	p[4], p[5] = m.Count, m.ErrorMask
	for i, k := range m.RKeys[:m.Count] {
		binary.BigEndian.PutUint32(p[8+4*i:], uint32(k))
	}
	return b, nil
}

// ParseDeleteRKey decodes a DELETE RKEY message of version 1. It returns ErrRange if
// the number of RKeys is larger than DeleteRKeyMax.
func ParseDeleteRKey(b []byte) (DeleteRKey, error) {
	flags, err := checkLLC(b, LLCDeleteRKey)
	if err != nil {
		return DeleteRKey{}, err
	}
	m := DeleteRKey{
		Reply:     flags&llcReply != 0,
		Negative:  flags&llcNegative != 0,
		Count:     b[4],
		ErrorMask: b[5],
	}
	if m.Count > DeleteRKeyMax {
		return DeleteRKey{}, rangeErr("number of RKeys", m.Count)
	}
	for i := range m.RKeys[:m.Count] {
		m.RKeys[i] = smc.RKey(binary.BigEndian.Uint32(b[8+4*i:]))
	}
	return m, nil
}
