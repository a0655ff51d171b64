// SPDX-License-Identifier: Apache-2.0

package header

import "hash/crc32"

// An IDSolver finds the IPv4 identification that a received version 2 packet
// was sent with. The ICRC covers that field, but a UDP socket does not show
// it. Since a CRC is linear, changing the identification changes the ICRC in
// a way that depends only on the changed bits and on how many bytes follow:
// shifting the difference of two ICRCs back over these bytes gives the
// difference of the identifications, if there is one.
//
// A packet damaged elsewhere passes with a probability of 2^-16, so Solve is
// for packets that do not match the identification which is expected; the
// UDP checksum has been verified before.
//
// Solve may be called concurrently.
type IDSolver struct {
	back [maxCovered + 1]uint32 // x^(-8n) modulo the CRC's polynomial, reflected
}

// maxCovered is the longest run of bytes after the identification, with room
// to spare beyond the largest path MTU.
const maxCovered = 4096 + 256

// crcOne is the polynomial 1 in the CRC's reflected order of bits.
const crcOne = 1 << 31

// NewIDSolver computes the solver's table.
func NewIDSolver() *IDSolver {
	var unstep [256]byte // which table entry has this top byte
	for i, v := range crc32.IEEETable {
		unstep[v>>24] = byte(i)
	}
	s := new(IDSolver)
	v := uint32(crcOne)
	for n := range s.back {
		s.back[n] = v
		i := unstep[v>>24]
		v = (v^crc32.IEEETable[i])<<8 | uint32(i)
	}
	return s
}

// Solve returns the two bytes (in network byte order, as a number) in which
// the identifications of two packets differ that are otherwise the same and
// whose ICRCs are a and b. after is the number of bytes that the ICRC covers
// after the identification. ok is false if no such difference exists.
func (s *IDSolver) Solve(a, b ICRC, after int) (diff uint16, ok bool) {
	if after < 0 || after+2 > maxCovered {
		return 0, false
	}
	d := mulCRC(s.back[after+2], uint32(a^b))
	// The CRC takes the first byte in its low bits.
	return uint16(d)<<8 | uint16(d)>>8, d>>16 == 0
}

// mulCRC multiplies two polynomials modulo the CRC's, all reflected.
func mulCRC(a, b uint32) uint32 {
	var p uint32
	for a != 0 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return p
}
