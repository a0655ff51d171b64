// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// MAC is the Ethernet address of an RNIC's port, in transmission order.
type MAC [6]byte

// String returns the address as six hex pairs with colons.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// GID is the global identifier of an RNIC's port on the RoCE fabric. It has
// the form of an IPv6 address.
type GID [16]byte

// String returns the GID in IPv6 notation.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// GIDFromIPv4 returns the RoCE version 2 GID of an IPv4 address, the mapped
// form ::ffff:a.b.c.d. For any other address it is zero.
func GIDFromIPv4(a netip.Addr) GID {
	if a = a.Unmap(); !a.Is4() {
		return GID{}
	}
	return a.As16()
}

// IPv4 returns the address in the GID of an RNIC that SMC-R version 2 can
// use: ::ffff:a.b.c.d, or ::a.b.c.d, which Linux takes too.
func (g GID) IPv4() (a netip.Addr, ok bool) {
	zero := [10]byte(g[:10]) == [10]byte{}
	low := [4]byte(g[12:])
	mapped := g[10] == 0xff && g[11] == 0xff
	if !zero || low == [4]byte{} || !mapped && (g[10] != 0 || g[11] != 0) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4(low), true
}

// PeerID identifies one instance of a TCP/IP stack for as long as it runs
// (RFC 7609, appendix A.2.1).
type PeerID [8]byte

// NewPeerID joins an instance number, which has to change when the stack
// restarts, with the MAC of one of its RNICs.
func NewPeerID(instance uint16, mac MAC) PeerID {
	var id PeerID
	binary.BigEndian.PutUint16(id[:], instance)
	copy(id[2:], mac[:])
	return id
}

// Instance returns the instance number.
func (id PeerID) Instance() uint16 { return binary.BigEndian.Uint16(id[:]) }

// MAC returns the RNIC address in the identifier.
func (id PeerID) MAC() MAC { return MAC(id[2:]) }

// String returns the identifier as instance@mac.
func (id PeerID) String() string { return fmt.Sprintf("%04x@%s", id.Instance(), id.MAC()) }

// QPN is a queue pair number: 24 bits on the wire.
type QPN uint32

// PSN is a packet sequence number: 24 bits on the wire.
type PSN uint32

// Max24 is the largest QPN and the largest PSN.
const Max24 = 1<<24 - 1

// String returns the number in the hex form that RDMA tools print.
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

// String returns the number in hex.
func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// MTU is the 4-bit path MTU code of the InfiniBand specification
// (RFC 7609, appendix A.2.3).
type MTU uint8

// The path MTUs. Code 0 and the codes above 5 are reserved.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Valid reports whether the code is not a reserved one.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the payload of a full packet in bytes, 0 for a reserved code.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String returns the size in bytes.
func (m MTU) String() string {
	if !m.Valid() {
		return fmt.Sprintf("reserved MTU code %d", uint8(m))
	}
	return fmt.Sprintf("%d", m.Bytes())
}

// BufSize is the 4-bit compressed size of an RMB element: 16 KiB shifted left
// by the code. RFC 7609 stops at code 5 (512 KiB), Linux goes to 15 (512 MiB).
type BufSize uint8

// Limits of BufSize.
const (
	BufSize16K    BufSize = 0
	MaxBufSizeRFC BufSize = 5
	MaxBufSize    BufSize = 15
)

// Bytes returns the size in bytes; the code is taken modulo 16.
func (s BufSize) Bytes() int { return 16 << 10 << (s & 15) }

// String returns the size in KiB.
func (s BufSize) String() string { return fmt.Sprintf("%d KiB", s.Bytes()>>10) }

// BufSizeFor returns the code of the smallest buffer that holds n bytes, or
// MaxBufSize when none does.
func BufSizeFor(n int) BufSize {
	s := BufSize16K
	for s < MaxBufSize && s.Bytes() < n {
		s++
	}
	return s
}

// RToken is what a peer needs to write into an RMB over one link: the RKey
// and the virtual address of the RMB's first byte.
type RToken struct {
	RKey uint32
	Addr uint64
}

// LinkRToken is an RToken and the number of the link on which it is valid
// (RFC 7609, appendix A.3.5, figure 37).
type LinkRToken struct {
	LinkNum uint8
	RToken
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

func putRToken(b []byte, t RToken) {
	binary.BigEndian.PutUint32(b, t.RKey)
	binary.BigEndian.PutUint64(b[4:], t.Addr)
}

func getRToken(b []byte) RToken {
	return RToken{RKey: binary.BigEndian.Uint32(b), Addr: binary.BigEndian.Uint64(b[4:])}
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
