// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
)

// ICRC is an invariant CRC, complete or not: the CRC-32 of Ethernet over all
// fields that do not change between the two ends (InfiniBand Architecture
// Specification, section 7.8.1; annex A16, A16.3.3; annex A17, A17.3.3). Fields
// that may change count as ones. A masked local routing header, eight bytes of
// ones, is before all other bytes. Start with a method of [Checker], or with
// one of [Prefix] for many packets of one path. Then use Add for the bytes
// after the BTH.
type ICRC uint32

// lrhOnes is the CRC-32 of the eight bytes of ones.
const lrhOnes = 0x2144df1c

// Add returns the ICRC continued over p.
func (c ICRC) Add(p []byte) ICRC {
	return ICRC(updateCRC(uint32(c), p))
}

// Put writes c into the first four bytes of b, least significant byte
// first, as packets carry it.
func (c ICRC) Put(b []byte) { binary.LittleEndian.PutUint32(b, uint32(c)) }

// Append appends the four bytes of c to b, least significant byte first.
func (c ICRC) Append(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, uint32(c)) }

// ReadICRC reads the ICRC from the first four bytes of b.
func ReadICRC(b []byte) ICRC { return ICRC(binary.LittleEndian.Uint32(b)) }

// A Checker starts ICRCs. It masks the headers in its own memory, so it does
// not allocate. The zero value is ready for use, by one goroutine at a time.
type Checker struct {
	buf [IPv6Len + UDPLen + BTHLen]byte
}

// V1 starts the ICRC of a version 1 packet: GRH and the first 12 bytes of
// bth. Traffic class, flow label, hop limit and the byte with F and B are
// masked.
func (k *Checker) V1(grh GRH, bth []byte) ICRC {
	b := k.buf[:GRHLen+BTHLen]
	copy(b, grh[:GRHLen])
	maskV6(b)
	copy(b[GRHLen:], bth[:BTHLen])
	maskBTH(b[GRHLen:])
	return ICRC(lrhOnes).Add(b)
}

// V2IPv4 starts the ICRC of a version 2 packet over IPv4: the IP header
// (which must have no options), the UDP header and the first 12 bytes of
// bth. Type of service, time to live, both checksums and the byte with F
// and B are masked.
func (k *Checker) V2IPv4(ip IPv4, udp UDP, bth []byte) ICRC {
	b := k.buf[:IPv4Len+UDPLen+BTHLen]
	copy(b, ip[:IPv4Len])
	maskV4(b)
	return k.udpBTH(b, IPv4Len, udp, bth)
}

// V2IPv6 starts the ICRC of a version 2 packet over IPv6: the IP header, the
// UDP header and the first 12 bytes of bth. Traffic class, flow label, hop
// limit, UDP checksum and the byte with F and B are masked.
func (k *Checker) V2IPv6(ip IPv6, udp UDP, bth []byte) ICRC {
	b := k.buf[:IPv6Len+UDPLen+BTHLen]
	copy(b, ip[:IPv6Len])
	maskV6(b)
	return k.udpBTH(b, IPv6Len, udp, bth)
}

func (k *Checker) udpBTH(b []byte, at int, udp UDP, bth []byte) ICRC {
	copy(b[at:], udp[:UDPLen])
	maskUDP(b[at:])
	copy(b[at+UDPLen:], bth[:BTHLen])
	maskBTH(b[at+UDPLen:])
	return ICRC(lrhOnes).Add(b)
}

func maskV6(b []byte) {
	b[0] |= 0x0f
	b[1], b[2], b[3], b[7] = 0xff, 0xff, 0xff, 0xff
}

func maskV4(b []byte) { b[1], b[8], b[10], b[11] = 0xff, 0xff, 0xff, 0xff }

func maskUDP(b []byte) { b[6], b[7] = 0xff, 0xff }

func maskBTH(b []byte) { b[4] = 0xff }
