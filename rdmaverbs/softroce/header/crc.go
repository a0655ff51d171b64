// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
	"hash/crc32"
)

// crcLong is the number of bytes from which on hash/crc32 uses an instruction
// of the processor. It is fast for multiples of crcStep bytes, and slow for the
// rest.
const (
	crcLong = 64
	crcStep = 16
)

// crcTables[n] has what a byte contributes to the CRC if n bytes follow it.
var crcTables = makeCRCTables()

func makeCRCTables() *[8][256]uint32 {
	t := new([8][256]uint32)
	t[0] = *crc32.IEEETable
	for i := range 256 {
		c := t[0][i]
		for k := 1; k < 8; k++ {
			c = t[0][c&0xff] ^ c>>8
			t[k][i] = c
		}
	}
	return t
}

// updateCRC continues a CRC-32 over p. It is fast for short p, because
// transport headers are short, and for multiples of four bytes, because packets
// are.
func updateCRC(c uint32, p []byte) uint32 {
	if len(p) >= crcLong {
		n := len(p) &^ (crcStep - 1)
		c = crc32.Update(c, crc32.IEEETable, p[:n])
		p = p[n:]
	}
	t := crcTables
	c = ^c
	for len(p) >= 8 {
		c ^= binary.LittleEndian.Uint32(p)
		d := binary.LittleEndian.Uint32(p[4:])
		c = t[7][c&0xff] ^ t[6][c>>8&0xff] ^ t[5][c>>16&0xff] ^ t[4][c>>24] ^
			t[3][d&0xff] ^ t[2][d>>8&0xff] ^ t[1][d>>16&0xff] ^ t[0][d>>24]
		p = p[8:]
	}
	if len(p) >= 4 {
		c ^= binary.LittleEndian.Uint32(p)
		c = t[3][c&0xff] ^ t[2][c>>8&0xff] ^ t[1][c>>16&0xff] ^ t[0][c>>24]
		p = p[4:]
	}
	for _, b := range p {
		c = t[0][byte(c)^b] ^ c>>8
	}
	return ^c
}
