// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"smcr/smc"
)

// Sizes of a proposal in bytes.
const (
	// ProposalFixedLen is the length of everything up to the offset field, inclusive.
	ProposalFixedLen = 40
	// ProposalGrowthLinux is the length of the "area for future growth" in proposals
	// of Linux. Linux rejects a longer one.
	ProposalGrowthLinux = 40
	// MaxIPv6Prefixes is the largest number of IPv6 prefixes in a proposal.
	MaxIPv6Prefixes = 8

	ipAreaLen     = 8
	ipv6PrefixLen = 17
)

// Proposal is the client's first CLC message (RFC 7609, appendix A.2.2,
// figures 26 and 27).
//
//	0   header
//	8   client's peer ID (8)
//	16  client's preferred GID (16)
//	32  client's preferred MAC (6)
//	38  offset to the mask/prefix area, counted from 40 (2)
//	40  area for future growth (offset bytes)
//	..  IPv4 subnet (4), its length, reserved (2), number of IPv6 prefixes
//	..  IPv6 prefixes: address (16), length
//	..  what version 2 puts here
//	..  trailer (4)
//
// In RFC 7609 the offset is 0, and a proposal for IPv4 has 52 bytes. In Linux the offset
// is 40, and it has 92 bytes.
type Proposal struct {
	// Version is that of the sender; 0 is sent as 1. Linux sends 2 even if it offers
	// only version 1.
	Version uint8
	// TypeV1 is what is offered under version 1. With ModeNone the message has no
	// mask/prefix area, and only PeerID and Growth are used.
	TypeV1 Mode
	// TypeV2 is what is offered under version 2. A proposal of version 1 is sent with
	// ModeNone, whatever is set here.
	TypeV2 Mode
	PeerID smc.PeerID
	GID    smc.GID
	MAC    smc.MAC
	// Growth is the area for future growth: nil in RFC 7609, 40 bytes in Linux
	// (identifiers of SMC-D and the offset of the extension of version 2; zero if only
	// SMC-R version 1 is offered). If TypeV1 is ModeNone, it is everything from byte 40
	// to the trailer.
	Growth []byte
	// IPv4 is the subnet of the client's interface if the TCP connection is IPv4,
	// otherwise the zero Prefix. RFC 7609 calls the field a mask. Linux sends the masked
	// address; a server compares it and the length with its own.
	IPv4 netip.Prefix
	// IPv6 has the prefixes of the client's interface if the TCP connection is IPv6: at
	// most MaxIPv6Prefixes.
	IPv6 []netip.Prefix
	// Extension is what follows the prefixes: the extension of version 2. Offer decodes
	// it and WithOffer encodes it. It is empty in version 1.
	Extension []byte
}

// CLCType returns TypeProposal.
func (Proposal) CLCType() CLCType { return TypeProposal }

// AppendBinary appends the message to b. It returns ErrRange if an address is
// of the wrong family, if there are too many prefixes, if there is an area that the
// version does not have, or if the message would be longer than MaxCLCLen.
func (p Proposal) AppendBinary(b []byte) ([]byte, error) {
	version := p.Version
	if version == 0 {
		version = Version1
	}
	switch {
	case version > 15:
		return b, rangeErr("version", version)
	case p.TypeV1 > ModeBoth:
		return b, rangeErr("version 1 mode", p.TypeV1)
	case p.TypeV2 > ModeBoth:
		return b, rangeErr("version 2 mode", p.TypeV2)
	case version == Version1 && len(p.Extension) > 0:
		return b, rangeErr("version 1 proposal with an extension of bytes:", len(p.Extension))
	case p.IPv4 != (netip.Prefix{}) && (!p.IPv4.IsValid() || !p.IPv4.Addr().Is4()):
		return b, rangeErr("IPv4 subnet", p.IPv4)
	case len(p.IPv6) > MaxIPv6Prefixes:
		return b, rangeErr("number of IPv6 prefixes", len(p.IPv6))
	}
	for _, pfx := range p.IPv6 {
		if !pfx.IsValid() || !pfx.Addr().Is6() {
			return b, rangeErr("IPv6 prefix", pfx)
		}
	}
	hasIP := p.TypeV1 != ModeNone
	if !hasIP && (p.IPv4.IsValid() || len(p.IPv6) > 0 || len(p.Extension) > 0) {
		return b, rangeErr("prefixes or extension in a proposal of version 1 mode", p.TypeV1)
	}
	n := ProposalFixedLen + len(p.Growth) + TrailerLen
	if hasIP {
		n += ipAreaLen + ipv6PrefixLen*len(p.IPv6) + len(p.Extension)
	}
	if n > MaxCLCLen {
		return b, rangeErr("proposal length", n)
	}

	flags := uint8(p.TypeV1)
	if version > Version1 {
		flags |= uint8(p.TypeV2) << 2
	}
	b, m := appendCLC(b, TypeProposal, n, version, flags)
	copy(m[8:], p.PeerID[:])
	copy(m[16:], p.GID[:])
	copy(m[32:], p.MAC[:])
	copy(m[ProposalFixedLen:], p.Growth)
	if !hasIP {
		return b, nil
	}
	binary.BigEndian.PutUint16(m[38:], uint16(len(p.Growth)))
	m = m[ProposalFixedLen+len(p.Growth):]
	if p.IPv4.IsValid() {
		a := p.IPv4.Addr().As4()
		copy(m, a[:])
		m[4] = byte(p.IPv4.Bits())
	}
	m[7] = byte(len(p.IPv6))
	m = m[ipAreaLen:]
	for _, pfx := range p.IPv6 {
		a := pfx.Addr().As16()
		copy(m, a[:])
		m[16] = byte(pfx.Bits())
		m = m[ipv6PrefixLen:]
	}
	copy(m, p.Extension)
	return b, nil
}

// ParseProposal decodes a proposal of version 1, and the part of a later version that
// offers version 1: see TypeV1.HasR. It does not decode what is offered under version 2;
// the method Offer does.
func ParseProposal(b []byte) (Proposal, error) {
	h, err := parseCLC(b, TypeProposal)
	if err != nil {
		return Proposal{}, err
	}
	if h.Length < ProposalFixedLen+TrailerLen {
		return Proposal{}, fmt.Errorf("%w: proposal of %d bytes", ErrLength, h.Length)
	}
	p := Proposal{
		Version: h.Version,
		TypeV1:  Mode(h.Flags & 3),
		TypeV2:  ModeNone,
		PeerID:  smc.PeerID(b[8:16]),
		GID:     smc.GID(b[16:32]),
		MAC:     smc.MAC(b[32:38]),
	}
	if h.Version > Version1 {
		p.TypeV2 = Mode(h.Flags >> 2)
	}
	rest := b[ProposalFixedLen : h.Length-TrailerLen]
	if p.TypeV1 == ModeNone {
		p.Growth = cloneOrNil(rest)
		return p, nil
	}

	off := int(binary.BigEndian.Uint16(b[38:]))
	if off+ipAreaLen > len(rest) {
		return Proposal{}, fmt.Errorf("%w: proposal of %d bytes with its prefix area at %d", ErrLength, h.Length, ProposalFixedLen+off)
	}
	p.Growth = cloneOrNil(rest[:off])
	rest = rest[off:]
	subnet, bits, count := [4]byte(rest), int(rest[4]), int(rest[7])
	rest = rest[ipAreaLen:]
	if bits > 32 {
		return Proposal{}, rangeErr("IPv4 mask length", bits)
	}
	if subnet != [4]byte{} || bits != 0 {
		p.IPv4 = netip.PrefixFrom(netip.AddrFrom4(subnet), bits)
	}
	if count > MaxIPv6Prefixes {
		return Proposal{}, rangeErr("number of IPv6 prefixes", count)
	}
	if len(rest) < count*ipv6PrefixLen || h.Version == Version1 && len(rest) != count*ipv6PrefixLen {
		return Proposal{}, fmt.Errorf("%w: proposal of %d bytes with %d IPv6 prefixes", ErrLength, h.Length, count)
	}
	for range count {
		bits := int(rest[16])
		if bits > 128 {
			return Proposal{}, rangeErr("IPv6 prefix length", bits)
		}
		p.IPv6 = append(p.IPv6, netip.PrefixFrom(netip.AddrFrom16([16]byte(rest)), bits))
		rest = rest[ipv6PrefixLen:]
	}
	p.Extension = cloneOrNil(rest)
	return p, nil
}

// cloneOrNil returns a copy of b, or nil if b is empty, so that messages can be
// compared.
func cloneOrNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}
