// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
	"hash/crc32"
)

// A Prefix computes the part of ICRCs before the BTH: the masked network
// headers, which are the same for all packets of one path and one length. It
// stores the results for recent lengths, so for most packets only the BTH and
// the bytes after it are computed.
//
// A method that begins with Use chooses the path; Start or StartID returns the
// start of an ICRC; continue with AddBTH. The zero value is ready for use, by
// one goroutine at a time.
type Prefix struct {
	kind     prefixKind
	port     uint16
	src, dst [16]byte
	head     [IPv6Len + UDPLen]byte // masked, lengths still to be set
	known    [16]struct {
		n   int // bytes from the BTH to the end of the ICRC; 0 for none
		crc ICRC
	}
}

type prefixKind uint8

const (
	prefixNone prefixKind = iota
	prefixV1
	prefixIPv4
	prefixIPv6
)

// UseV1 chooses version 1 packets between two GIDs.
func (p *Prefix) UseV1(src, dst *[16]byte) {
	if !p.change(prefixV1, 0, src, dst) {
		return
	}
	GRH(p.head[:]).Encode(&GRHFields{SGID: *src, DGID: *dst})
	maskV6(p.head[:])
}

// UseIPv4 chooses version 2 packets from a UDP port between two addresses in
// mapped form.
func (p *Prefix) UseIPv4(src, dst *[16]byte, port uint16) {
	if !p.change(prefixIPv4, port, src, dst) {
		return
	}
	IPv4(p.head[:]).Encode(&IPv4Fields{Src: [4]byte(src[12:]), Dst: [4]byte(dst[12:])})
	maskV4(p.head[:])
	p.useUDP(IPv4Len)
}

// UseIPv6 chooses version 2 packets from a UDP port between two IPv6 addresses.
func (p *Prefix) UseIPv6(src, dst *[16]byte, port uint16) {
	if !p.change(prefixIPv6, port, src, dst) {
		return
	}
	IPv6(p.head[:]).Encode(&IPv6Fields{Src: *src, Dst: *dst})
	maskV6(p.head[:])
	p.useUDP(IPv6Len)
}

func (p *Prefix) useUDP(at int) {
	UDP(p.head[at:]).Encode(&UDPFields{SrcPort: p.port, DstPort: UDPPortRoCE})
	maskUDP(p.head[at:])
}

// change sets the path and reports whether it is different from the one before.
func (p *Prefix) change(kind prefixKind, port uint16, src, dst *[16]byte) bool {
	if p.kind == kind && p.port == port && p.src == *src && p.dst == *dst {
		return false
	}
	*p = Prefix{kind: kind, port: port, src: *src, dst: *dst}
	return true
}

// Start starts the ICRC of a packet of n bytes from the BTH to the end of the
// ICRC. The identification of IPv4 is 0.
func (p *Prefix) Start(n int) ICRC {
	k := &p.known[n>>2&15]
	if k.n != n {
		k.n, k.crc = n, p.compute(n)
	}
	return k.crc
}

// StartID is Start for an identification of the IPv4 header.
func (p *Prefix) StartID(n int, id uint16) ICRC {
	// A CRC is linear: what the identification contributes does not depend on
	// the other bytes.
	return p.Start(n) ^ ICRC(idPart.high[id>>8]^idPart.low[id&0xff])
}

func (p *Prefix) compute(n int) ICRC {
	b := p.head[:]
	switch p.kind {
	case prefixIPv4:
		binary.BigEndian.PutUint16(b[2:], uint16(IPv4Len+UDPLen+n))
		binary.BigEndian.PutUint16(b[IPv4Len+4:], uint16(UDPLen+n))
		b = b[:IPv4Len+UDPLen]
	case prefixIPv6:
		binary.BigEndian.PutUint16(b[4:], uint16(UDPLen+n))
		binary.BigEndian.PutUint16(b[IPv6Len+4:], uint16(UDPLen+n))
	default:
		binary.BigEndian.PutUint16(b[4:], uint16(n))
		b = b[:GRHLen]
	}
	return ICRC(lrhOnes).Add(b)
}

// AddBTH returns the ICRC continued over b, which begins with a BTH. It masks
// the byte with F and B: b is changed during the call.
func (c ICRC) AddBTH(b []byte) ICRC {
	was := b[4]
	b[4] = 0xff
	c = c.Add(b)
	b[4] = was
	return c
}

// idPart has what the two bytes of the identification contribute to the CRC of
// the IPv4 and UDP headers.
var idPart = makeIDPart()

type idParts struct{ high, low [256]uint32 }

func makeIDPart() *idParts {
	const after = IPv4Len - 6 + UDPLen // bytes that follow the identification
	t := new(idParts)
	var b [2 + after]byte
	for i := range 256 {
		b[0], b[1] = byte(i), 0
		t.high[i] = ^crc32.ChecksumIEEE(b[:]) ^ crcOfZeros(len(b))
		b[0], b[1] = 0, byte(i)
		t.low[i] = ^crc32.ChecksumIEEE(b[:]) ^ crcOfZeros(len(b))
	}
	return t
}

func crcOfZeros(n int) uint32 { return ^crc32.ChecksumIEEE(make([]byte, n)) }
