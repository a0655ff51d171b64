// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"

	"smcr/smc"
)

// LinkRToken is an RToken and the number of the link on which it is valid
// (RFC 7609, appendix A.3.5, figure 37).
type LinkRToken struct {
	LinkNum uint8
	smc.RToken
}

const (
	rtokenLen     = 12
	linkRTokenLen = 1 + rtokenLen
)

// put24 stores the low 24 bits of v.
func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

func get24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

func putRToken(b []byte, t smc.RToken) {
	binary.BigEndian.PutUint32(b, uint32(t.RKey))
	binary.BigEndian.PutUint64(b[4:], t.Addr)
}

func getRToken(b []byte) smc.RToken {
	return smc.RToken{RKey: smc.RKey(binary.BigEndian.Uint32(b)), Addr: binary.BigEndian.Uint64(b[4:])}
}

func putLinkRToken(b []byte, t LinkRToken) {
	b[0] = t.LinkNum
	putRToken(b[1:], t.RToken)
}

func getLinkRToken(b []byte) LinkRToken {
	return LinkRToken{LinkNum: b[0], RToken: getRToken(b[1:])}
}

// extend appends n zero bytes to b and returns the result and the new part.
func extend(b []byte, n int) (whole, part []byte) {
	whole = slices.Grow(b, n)[:len(b)+n]
	part = whole[len(b):]
	clear(part)
	return whole, part
}
