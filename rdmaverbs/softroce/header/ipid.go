// SPDX-License-Identifier: Apache-2.0

package header

import "hash/crc32"

// An IDSolver finds the IPv4 identification that a received version 2 packet
// was sent with. The ICRC covers that field, but a UDP socket does not show it.
// A CRC is linear, so a different identification changes the ICRC in a way that
// depends only on the changed bits and on the number of bytes that follow. If
// the difference of two ICRCs is shifted back over these bytes, the result is
// the difference of the identifications, if there is one.
//
// A packet that is damaged elsewhere passes with a probability of 2^-16. So use
// Solve only for packets that do not match the expected identification. The
// kernel has verified the UDP checksum before.
//
// Solve may be called concurrently.
type IDSolver struct {
	back [maxCovered + 1]uint32 // x^(-8n) modulo the CRC's polynomial, reflected
}

// maxCovered is the largest number of bytes after the identification: the
// largest path MTU, and room for headers.
const maxCovered = 4096 + 256

// crcOne is the polynomial 1 in the CRC's reflected order of bits.
const crcOne = 1 << 31

// NewIDSolver returns a solver. It computes a table of 17 KiB.
func NewIDSolver() *IDSolver {
	var unstep [256]byte // index of the table entry with this top byte
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

// Solve compares two packets that are equal except for the identification, with
// the ICRCs a and b. It returns the bits in which the identifications differ,
// as a number in network byte order. after is the number of bytes that the ICRC
// covers after the identification. ok is false if no such difference exists.
func (s *IDSolver) Solve(a, b ICRC, after int) (diff uint16, ok bool) {
	if after < 0 || after+2 > maxCovered {
		return 0, false
	}
	d := mulCRC(s.back[after+2], uint32(a^b))
	// The first byte is in the low bits of the CRC.
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
