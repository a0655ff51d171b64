// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
	"net/netip"
)

// Lengths of headers in bytes, and the numbers of protocols.
const (
	EthernetLen = 14 // without VLAN tag
	VLANTagLen  = 4  // tag of IEEE 802.1Q
	GRHLen      = 40 // global route header
	IPv4Len     = 20 // without options
	IPv6Len     = 40 // without extension headers
	UDPLen      = 8  // UDP header

	EtherTypeRoCE = 0x8915 // annex A16, A16.3.2
	EtherTypeVLAN = 0x8100 // IEEE 802.1Q
	EtherTypeIPv4 = 0x0800 // RFC 894
	EtherTypeIPv6 = 0x86dd // RFC 2464

	NextHeaderIBA = 0x1b // GRH: a BTH follows
	ProtocolUDP   = 17   // IPv4 protocol and IPv6 next header
	UDPPortRoCE   = 4791 // annex A17
)

// Ethernet is an Ethernet header, 14 bytes, or 18 with an 802.1Q tag.
type Ethernet []byte

// EthernetFields are the fields of an Ethernet header to encode.
type EthernetFields struct {
	Dst, Src [6]byte
	Tagged   bool
	PCP      uint8  // 802.1Q priority, 3 bits
	VID      uint16 // 802.1Q VLAN id, 12 bits
	Type     uint16 // Ethertype
}

// Encode writes f into b and returns its length, 14 or 18 bytes.
func (b Ethernet) Encode(f *EthernetFields) int {
	copy(b[0:6], f.Dst[:])
	copy(b[6:12], f.Src[:])
	if !f.Tagged {
		binary.BigEndian.PutUint16(b[12:], f.Type)
		return EthernetLen
	}
	binary.BigEndian.PutUint16(b[12:], EtherTypeVLAN)
	binary.BigEndian.PutUint16(b[14:], uint16(f.PCP&7)<<13|f.VID&0x0fff)
	binary.BigEndian.PutUint16(b[16:], f.Type)
	return EthernetLen + VLANTagLen
}

// ParseEthernet returns the Ethernet header at the start of b, with one 802.1Q
// tag if there is one, and the bytes after it. It returns ErrShort if b is too
// short.
func ParseEthernet(b []byte) (h Ethernet, rest []byte, err error) {
	n := EthernetLen
	if len(b) < n {
		return nil, nil, ErrShort
	}
	if binary.BigEndian.Uint16(b[12:]) == EtherTypeVLAN {
		n += VLANTagLen
	}
	if len(b) < n {
		return nil, nil, ErrShort
	}
	return Ethernet(b[:n:n]), b[n:], nil
}

// Dst returns the destination address.
func (b Ethernet) Dst() [6]byte { return [6]byte(b[0:6]) }

// Src returns the source address.
func (b Ethernet) Src() [6]byte { return [6]byte(b[6:12]) }

// Tagged reports whether b has an 802.1Q tag.
func (b Ethernet) Tagged() bool { return binary.BigEndian.Uint16(b[12:]) == EtherTypeVLAN }

// PCP returns the 802.1Q priority, 0 without tag.
func (b Ethernet) PCP() uint8 {
	if !b.Tagged() {
		return 0
	}
	return b[14] >> 5
}

// VID returns the VLAN id, 0 without tag.
func (b Ethernet) VID() uint16 {
	if !b.Tagged() {
		return 0
	}
	return binary.BigEndian.Uint16(b[14:]) & 0x0fff
}

// Type returns the Ethertype after the tag, if there is one.
func (b Ethernet) Type() uint16 {
	if b.Tagged() {
		return binary.BigEndian.Uint16(b[16:])
	}
	return binary.BigEndian.Uint16(b[12:])
}

// GRH is a global routing header: 40 bytes, laid out as an IPv6 header
// (InfiniBand Architecture Specification, section 8.3).
type GRH []byte

// GRHFields are the fields of a GRH to encode. The version is always 6, the
// next header always NextHeaderIBA.
type GRHFields struct {
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	PayloadLen   uint16 // bytes from the BTH to the end of the ICRC
	HopLimit     uint8
	SGID, DGID   [16]byte
}

// Encode writes f into b, all of its 40 bytes.
func (b GRH) Encode(f *GRHFields) {
	encodeV6(b, f.TrafficClass, f.FlowLabel, f.PayloadLen, NextHeaderIBA, f.HopLimit)
	copy(b[8:24], f.SGID[:])
	copy(b[24:40], f.DGID[:])
}

func encodeV6(b []byte, class uint8, flow uint32, n uint16, next, hops uint8) {
	_ = b[IPv6Len-1]
	binary.BigEndian.PutUint32(b, 6<<28|uint32(class)<<20|flow&0xfffff)
	binary.BigEndian.PutUint16(b[4:], n)
	b[6], b[7] = next, hops
}

// Version returns the IP version field, 6.
func (b GRH) Version() uint8 { return b[0] >> 4 }

// PayloadLen returns the bytes from the BTH to the end of the ICRC.
func (b GRH) PayloadLen() uint16 { return binary.BigEndian.Uint16(b[4:]) }

// NextHeader returns the number of the protocol after the header.
func (b GRH) NextHeader() uint8 { return b[6] }

// SGID returns the source GID.
func (b GRH) SGID() [16]byte { return [16]byte(b[8:24]) }

// DGID returns the destination GID.
func (b GRH) DGID() [16]byte { return [16]byte(b[24:40]) }

// SetPayloadLen sets the bytes from the BTH to the end of the ICRC.
func (b GRH) SetPayloadLen(n uint16) { binary.BigEndian.PutUint16(b[4:], n) }

// IPv4 is an IPv4 header without options: 20 bytes.
type IPv4 []byte

// IPv4Fields are the fields of an IPv4 header to encode. The protocol is
// always UDP, Don't Fragment is set (annex A17, A17.3.1.2) and the header
// has no options.
type IPv4Fields struct {
	TOS      uint8
	TotalLen uint16 // bytes of header and payload
	ID       uint16
	TTL      uint8
	Src, Dst [4]byte
}

// Encode writes f into b, all of its 20 bytes, with the header checksum.
func (b IPv4) Encode(f *IPv4Fields) {
	_ = b[IPv4Len-1]
	b[0], b[1] = 0x45, f.TOS
	binary.BigEndian.PutUint16(b[2:], f.TotalLen)
	binary.BigEndian.PutUint16(b[4:], f.ID)
	b[6], b[7] = 0x40, 0
	b[8], b[9] = f.TTL, ProtocolUDP
	b[10], b[11] = 0, 0
	copy(b[12:16], f.Src[:])
	copy(b[16:20], f.Dst[:])
	var sum uint32
	for i := 0; i < IPv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	sum += sum >> 16
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
}

// HeaderLen returns the header length in bytes, options included.
func (b IPv4) HeaderLen() int { return int(b[0]&0x0f) * 4 }

// TotalLen returns the bytes of header and payload.
func (b IPv4) TotalLen() uint16 { return binary.BigEndian.Uint16(b[2:]) }

// ID returns the identification.
func (b IPv4) ID() uint16 { return binary.BigEndian.Uint16(b[4:]) }

// Protocol returns the number of the protocol after the header.
func (b IPv4) Protocol() uint8 { return b[9] }

// Src returns the source address.
func (b IPv4) Src() netip.Addr { return netip.AddrFrom4([4]byte(b[12:16])) }

// Dst returns the destination address.
func (b IPv4) Dst() netip.Addr { return netip.AddrFrom4([4]byte(b[16:20])) }

// IPv6 is an IPv6 header without extensions: 40 bytes.
type IPv6 []byte

// IPv6Fields are the fields of an IPv6 header to encode. The next header is
// always UDP.
type IPv6Fields struct {
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	PayloadLen   uint16 // bytes after the IPv6 header
	HopLimit     uint8
	Src, Dst     [16]byte
}

// Encode writes f into b, all of its 40 bytes.
func (b IPv6) Encode(f *IPv6Fields) {
	encodeV6(b, f.TrafficClass, f.FlowLabel, f.PayloadLen, ProtocolUDP, f.HopLimit)
	copy(b[8:24], f.Src[:])
	copy(b[24:40], f.Dst[:])
}

// PayloadLen returns the bytes after the IPv6 header.
func (b IPv6) PayloadLen() uint16 { return binary.BigEndian.Uint16(b[4:]) }

// SetPayloadLen sets the bytes after the IPv6 header.
func (b IPv6) SetPayloadLen(n uint16) { binary.BigEndian.PutUint16(b[4:], n) }

// NextHeader returns the number of the protocol after the header.
func (b IPv6) NextHeader() uint8 { return b[6] }

// Src returns the source address.
func (b IPv6) Src() netip.Addr { return netip.AddrFrom16([16]byte(b[8:24])) }

// Dst returns the destination address.
func (b IPv6) Dst() netip.Addr { return netip.AddrFrom16([16]byte(b[24:40])) }

// UDP is a UDP header: 8 bytes.
type UDP []byte

// UDPFields are the fields of a UDP header to encode.
type UDPFields struct {
	SrcPort, DstPort uint16
	Len              uint16 // bytes of header and payload
	Checksum         uint16
}

// Encode writes f into b, all of its 8 bytes.
func (b UDP) Encode(f *UDPFields) {
	_ = b[UDPLen-1]
	binary.BigEndian.PutUint16(b, f.SrcPort)
	binary.BigEndian.PutUint16(b[2:], f.DstPort)
	binary.BigEndian.PutUint16(b[4:], f.Len)
	binary.BigEndian.PutUint16(b[6:], f.Checksum)
}

// SrcPort returns the source port.
func (b UDP) SrcPort() uint16 { return binary.BigEndian.Uint16(b) }

// DstPort returns the destination port.
func (b UDP) DstPort() uint16 { return binary.BigEndian.Uint16(b[2:]) }

// Len returns the bytes of header and payload.
func (b UDP) Len() uint16 { return binary.BigEndian.Uint16(b[4:]) }

// SetLen sets the bytes of header and payload.
func (b UDP) SetLen(n uint16) { binary.BigEndian.PutUint16(b[4:], n) }

// SetChecksum sets the checksum.
func (b UDP) SetChecksum(sum uint16) { binary.BigEndian.PutUint16(b[6:], sum) }
