// SPDX-License-Identifier: Apache-2.0

package smc

import "fmt"

// QPN is the number of a queue pair: 24 bits on the wire.
type QPN uint32

// PSN is a packet sequence number: 24 bits on the wire.
type PSN uint32

// Max24 is the largest QPN and the largest PSN.
const Max24 = 1<<24 - 1

// String returns the number as six hexadecimal digits after 0x, as RDMA tools
// print it.
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

// String returns the number as six hexadecimal digits after 0x.
func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// RKey is the key that a peer presents to write into a memory region.
type RKey uint32

// String returns the key as eight hexadecimal digits after 0x.
func (k RKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// RToken is what a peer needs to write into an RMB over one link (RFC 7609,
// section 2.2.2).
type RToken struct {
	RKey RKey
	// Addr is the virtual address of the RMB's first byte.
	Addr uint64
}

// MTU is a path MTU in the code of the InfiniBand specification, 4 bits on the
// wire: 1 is 256 bytes, 5 is 4096 (RFC 7609, appendix A.2.3). Code 0 and the codes
// above 5 are reserved.
type MTU uint8

// MTU256 is a path MTU of 256 bytes, the smallest.
const MTU256 MTU = 1

// MTU512 is a path MTU of 512 bytes.
const MTU512 MTU = 2

// MTU1024 is a path MTU of 1024 bytes, the largest that fits an Ethernet frame of
// 1500 bytes.
const MTU1024 MTU = 3

// MTU2048 is a path MTU of 2048 bytes.
const MTU2048 MTU = 4

// MTU4096 is a path MTU of 4096 bytes, the largest.
const MTU4096 MTU = 5

// MTUFor returns the largest path MTU whose payload and overhead bytes of headers
// fit into netdevMTU bytes, or 0 if not even 256 bytes fit.
func MTUFor(netdevMTU, overhead int) MTU {
	for m := MTU4096; m >= MTU256; m-- {
		if m.Bytes()+overhead <= netdevMTU {
			return m
		}
	}
	return 0
}

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

// SizeCode is the compressed size of an RMB element, 4 bits on the wire: 16 KiB
// shifted left by the code (RFC 7609, appendix A.2.3).
type SizeCode uint8

// SizeCode16K is the smallest size, 16 KiB.
const SizeCode16K SizeCode = 0

// MaxSizeCodeRFC is the largest code of RFC 7609, 512 KiB.
const MaxSizeCodeRFC SizeCode = 5

// MaxSizeCode is the largest code that 4 bits hold, 512 MiB. Linux allows it.
const MaxSizeCode SizeCode = 15

// SizeCodeFor returns the code of the smallest element that holds n bytes, or
// MaxSizeCode if none does.
func SizeCodeFor(n int) SizeCode {
	s := SizeCode16K
	for s < MaxSizeCode && s.Bytes() < n {
		s++
	}
	return s
}

// Bytes returns the size in bytes. The code is taken modulo 16.
func (s SizeCode) Bytes() int { return 16 << 10 << (s & 15) }

// String returns the size in KiB.
func (s SizeCode) String() string { return fmt.Sprintf("%d KiB", s.Bytes()>>10) }
