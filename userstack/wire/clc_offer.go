// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	"smcr/smc"
)

// Limits of what version 2 adds to a proposal.
const (
	MaxUEIDs      = 8 // user EIDs in an offer
	MaxISMDevices = 8 // entries of SMCDOffer.Devices
)

// ReleaseV21 is the release of SMC version 2 that negotiates the numbers of connections
// and links (version 2.1; Linux since 6.7). In release 0 these fields are reserved: a
// link group has at most 255 connections and 2 links.
const ReleaseV21 uint8 = 1

// FeatureEmulatedISM is the bit of a feature mask that says that the sender knows the
// identifiers of emulated ISM devices. Linux always sets it.
const FeatureEmulatedISM uint16 = 0x0001

// Parts of the extension, and the places from which its offsets count.
const (
	growthV2OffsetAt = 50 - ProposalFixedLen // in the area for future growth
	growthV2Base     = 52 - ProposalFixedLen
	offerFixedLen    = 40
	offerSMCDBase    = 8
	smcdOfferLen     = 48
	ismDeviceLen     = 10
)

// Offer is what a proposal offers under version 2. It is in two parts of a Proposal.
// Growth begins with the identifiers of SMC-D version 1, the place of the extension and
// the bytes of the vendor,
//
//	40  ISM GID (8), ISM CHID (2)
//	50  offset to the extension, counted from 52 (2)
//	52  vendor's identifier (3), vendor's options (5)
//	60  reserved (20)
//
// and the extension follows the prefixes, if there are any:
//
//	0   number of user EIDs
//	1   number of ISM devices
//	2   reserved
//	3   release (high nibble), system EID present (lowest bit)
//	4   reserved (2)
//	6   offset to the SMC-D extension, counted from 8 (2)
//	8   RoCE version 2 GID (16)
//	24  most connections in a link group
//	25  most links in a link group
//	26  features (2)
//	28  reserved (12)
//	40  user EIDs (32 each)
//	..  SMC-D extension: system EID (32), reserved (16), ISM devices: GID (8),
//	    CHID (2)
type Offer struct {
	// Mode is the TypeV2 of the proposal. With HasD, SMCD is present.
	Mode Mode
	// EIDs are the user EIDs in order of preference, at most MaxUEIDs.
	EIDs []EID
	// GID is that of an RNIC, in a form that smc.GID.IPv4 accepts. It differs from
	// Proposal.GID if version 1 is offered too.
	GID smc.GID
	// Release is ReleaseV21 or 0; four bits.
	Release uint8
	// MaxConns and MaxLinks are the largest numbers in a link group. These two and
	// Features exist from release 1 on.
	MaxConns uint8
	MaxLinks uint8
	Features uint16
	// HasSEID says that SMCD.SEID is present.
	HasSEID bool
	// SMCD is what is offered for SMC-D, for programs that log or forward a proposal.
	// This module does not use SMC-D.
	SMCD *SMCDOffer
	// VendorOUI and VendorOptions are for extensions of vendors.
	VendorOUI     [3]byte
	VendorOptions [5]byte
}

// SMCDOffer is the part of an Offer for SMC-D version 2.
type SMCDOffer struct {
	SEID    EID
	Devices []ISMDevice // at most MaxISMDevices
}

// ISMDevice identifies an ISM device. An emulated device has two entries with the same
// CHID; the second one has the high half of its GID.
type ISMDevice struct {
	GID  uint64
	CHID uint16
}

// len is the length of the extension in bytes.
func (o *Offer) len() int {
	n := offerFixedLen + EIDLen*len(o.EIDs)
	if o.SMCD != nil {
		n += smcdOfferLen + ismDeviceLen*len(o.SMCD.Devices)
	}
	return n
}

func (o *Offer) check() error {
	switch {
	case o.Mode > ModeBoth || o.Mode == ModeNone:
		return rangeErr("version 2 mode of an offer", o.Mode)
	case len(o.EIDs) > MaxUEIDs:
		return rangeErr("number of user EIDs", len(o.EIDs))
	case o.Release > 15:
		return rangeErr("release", o.Release)
	case o.Mode.HasD() != (o.SMCD != nil):
		return rangeErr("SMC-D part in an offer of mode", o.Mode)
	case o.SMCD != nil && len(o.SMCD.Devices) > MaxISMDevices:
		return rangeErr("number of ISM devices", len(o.SMCD.Devices))
	}
	return nil
}

// WithOffer returns p as a proposal of version 2 with the offer o: it sets Version,
// TypeV2, Growth and Extension. TypeV1 and the prefixes stay as they are, so one proposal
// can offer both versions. The part of p.Growth for SMC-D version 1 (the first 10 bytes)
// stays too. WithOffer returns ErrRange if a number of o does not fit, or if o has a part
// for SMC-D and its Mode does not.
//
// PeerID and MAC must be set even if TypeV1 is ModeNone: a Linux server uses them as the
// address of its peer. A Linux client sends zeros in this case.
func (p Proposal) WithOffer(o Offer) (Proposal, error) {
	if err := o.check(); err != nil {
		return Proposal{}, err
	}
	p.Version, p.TypeV2 = Version2, o.Mode
	offset := ProposalGrowthLinux - growthV2Base
	if p.TypeV1 != ModeNone {
		offset += ipAreaLen + ipv6PrefixLen*len(p.IPv6)
	}
	growth := make([]byte, ProposalGrowthLinux, ProposalGrowthLinux+o.len())
	copy(growth[:growthV2OffsetAt], p.Growth)
	binary.BigEndian.PutUint16(growth[growthV2OffsetAt:], uint16(offset))
	copy(growth[growthV2Base:], o.VendorOUI[:])
	copy(growth[growthV2Base+3:], o.VendorOptions[:])
	if p.TypeV1 == ModeNone {
		p.Growth = o.append(growth)
		p.Extension = nil
		return p, nil
	}
	p.Growth, p.Extension = growth, o.append(nil)
	return p, nil
}

func (o *Offer) append(b []byte) []byte {
	b, x := extend(b, o.len())
	x[0] = byte(len(o.EIDs))
	x[3] = o.Release << 4
	if o.HasSEID {
		x[3] |= 1
	}
	copy(x[8:], o.GID[:])
	if o.Release >= ReleaseV21 {
		x[24], x[25] = o.MaxConns, o.MaxLinks
		binary.BigEndian.PutUint16(x[26:], o.Features)
	}
	d := x[offerFixedLen:]
	for _, e := range o.EIDs {
		copy(d, e[:])
		d = d[EIDLen:]
	}
	if o.SMCD == nil {
		return b
	}
	x[1] = byte(len(o.SMCD.Devices))
	binary.BigEndian.PutUint16(x[6:], uint16(len(x)-len(d)-offerSMCDBase))
	copy(d, o.SMCD.SEID[:])
	d = d[smcdOfferLen:]
	for _, dev := range o.SMCD.Devices {
		binary.BigEndian.PutUint64(d, dev.GID)
		binary.BigEndian.PutUint16(d[8:], dev.CHID)
		d = d[ismDeviceLen:]
	}
	return b
}

// Offer decodes what the proposal offers under version 2. It returns ErrMode if the
// proposal offers nothing or has no extension; version 1 may still be possible, and
// otherwise Linux declines with smc.DiagNoV2Ext. It returns ErrLength or ErrRange if the
// extension is not valid; as in Linux, the lengths must be exact.
func (p Proposal) Offer() (Offer, error) {
	if p.Version < Version2 || p.TypeV2 == ModeNone {
		return Offer{}, fmt.Errorf("%w: proposal without an offer of version 2", ErrMode)
	}
	if len(p.Growth) < ProposalGrowthLinux || p.TypeV1 != ModeNone && len(p.Growth) > ProposalGrowthLinux {
		return Offer{}, fmt.Errorf("%w: proposal of version 2 with %d bytes for growth", ErrLength, len(p.Growth))
	}
	offset := int(binary.BigEndian.Uint16(p.Growth[growthV2OffsetAt:]))
	if offset == 0 {
		return Offer{}, fmt.Errorf("%w: proposal without an extension of version 2", ErrMode)
	}
	// begin is the first place that the extension can have, and x what is there.
	begin, x := ProposalGrowthLinux-growthV2Base, p.Growth[ProposalGrowthLinux:]
	if p.TypeV1 != ModeNone {
		begin += ipAreaLen + ipv6PrefixLen*len(p.IPv6)
		x = p.Extension
	}
	if offset != begin || len(x) < offerFixedLen {
		return Offer{}, fmt.Errorf("%w: extension of version 2 at %d, want %d; %d bytes", ErrLength, offset, begin, len(x))
	}
	o := Offer{
		Mode:          p.TypeV2,
		GID:           smc.GID(x[8:24]),
		Release:       x[3] >> 4,
		HasSEID:       x[3]&1 != 0,
		VendorOUI:     [3]byte(p.Growth[growthV2Base:]),
		VendorOptions: [5]byte(p.Growth[growthV2Base+3:]),
	}
	if o.Release >= ReleaseV21 {
		o.MaxConns, o.MaxLinks, o.Features = x[24], x[25], binary.BigEndian.Uint16(x[26:])
	}
	eids, devices := int(x[0]), int(x[1])
	if eids > MaxUEIDs {
		return Offer{}, rangeErr("number of user EIDs", eids)
	}
	if devices > MaxISMDevices {
		return Offer{}, rangeErr("number of ISM devices", devices)
	}
	want := offerFixedLen + EIDLen*eids
	if o.Mode.HasD() {
		want += smcdOfferLen + ismDeviceLen*devices
	}
	if len(x) != want {
		return Offer{}, fmt.Errorf("%w: extension of version 2 has %d bytes, want %d", ErrLength, len(x), want)
	}
	smcd := int(binary.BigEndian.Uint16(x[6:])) + offerSMCDBase
	d := x[offerFixedLen:]
	for range eids {
		o.EIDs = append(o.EIDs, EID(d))
		d = d[EIDLen:]
	}
	if !o.Mode.HasD() {
		return o, nil
	}
	if smcd != len(x)-len(d) {
		return Offer{}, fmt.Errorf("%w: SMC-D extension at %d, want %d", ErrLength, smcd, len(x)-len(d))
	}
	o.SMCD = &SMCDOffer{SEID: EID(d)}
	for dev := range slices.Chunk(d[smcdOfferLen:], ismDeviceLen) {
		o.SMCD.Devices = append(o.SMCD.Devices, ISMDevice{binary.BigEndian.Uint64(dev), binary.BigEndian.Uint16(dev[8:])})
	}
	return o, nil
}
