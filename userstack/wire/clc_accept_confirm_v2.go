// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// Lengths of ACCEPT and CONFIRM of SMC-R version 2 in bytes. In a first
// contact a CONFIRM also has a list of GIDs: ConfirmFirstLenV2 and 16 for each.
const (
	AcceptConfirmLenV2 = 108 // of a subsequent contact
	AcceptFirstLenV2   = 160 // ACCEPT of a first contact
	ConfirmFirstLenV2  = 164 // CONFIRM of a first contact, without the list
)

const (
	firstContactExtAt  = 104
	firstContactExtLen = 52
	gidListAt          = firstContactExtAt + firstContactExtLen
	gidListHeaderLen   = 4
	// maxConfirmGIDs is what fits both its count and MaxCLCLen.
	maxConfirmGIDs = (MaxCLCLen - ConfirmFirstLenV2) / 16
)

// AcceptV2 is the server's answer to a Proposal, in version 2.
//
//	0    as Endpoint
//	64   negotiated EID (32)
//	96   reserved (8)
//	104  FirstContactExt (52), in a first contact
//	..   trailer (4)
type AcceptV2 struct {
	Endpoint
	// EID is the one that the server chose from the proposal.
	EID EID
	// FirstContact is not nil if for the server this is the first connection of a new
	// link group: the F bit of the header.
	FirstContact *FirstContactExt
}

// ConfirmV2 is the client's answer to an AcceptV2. In a first contact there is
// a list behind FirstContactExt:
//
//	156  number of GIDs
//	157  reserved (3)
//	160  GIDs (16 each)
//	..   trailer (4)
type ConfirmV2 struct {
	Endpoint
	// EID is that of the ACCEPT.
	EID EID
	// FirstContact has the same Release, MaxConns and MaxLinks as the ACCEPT; otherwise
	// Linux declines. It is nil if the ACCEPT had none.
	FirstContact *FirstContactExt
	// GIDs has the GIDs of the client's RNICs; the first one is that of the link. Linux
	// sends one or two. Only a first contact has the list.
	GIDs []smc.GID
}

// FirstContactExt is what the two ends of a new link group of version 2 send to each
// other in addition.
//
//	0   direct (highest bit)
//	1   operating system (high nibble), release (low nibble)
//	2   reserved (2)
//	4   host name (32)
//	36  most connections in the link group
//	37  most links in the link group
//	38  features (2)
//	40  vendor's options (4)
//	44  reserved (8)
type FirstContactExt struct {
	// Direct says that there is no router between the RNICs, according to the routes of
	// the sender. A Linux client declines (smc.DiagIndirect) if the server says that
	// there is one and its own route is direct.
	Direct bool
	// OS is the operating system of the sender; four bits.
	OS smc.OS
	// Release is the lower one of the releases of both ends; four bits.
	Release  uint8
	Hostname Hostname
	// MaxConns and MaxLinks are the negotiated values. These two, Features and Vendor
	// exist from release 1 on.
	MaxConns uint8
	MaxLinks uint8
	Features uint16
	Vendor   uint32
}

// CLCType returns TypeAccept.
func (AcceptV2) CLCType() CLCType { return TypeAccept }

// CLCType returns TypeConfirm.
func (ConfirmV2) CLCType() CLCType { return TypeConfirm }

// AppendBinary appends the message to b: AcceptConfirmLenV2 bytes, or
// AcceptFirstLenV2 in a first contact. It returns ErrRange if a number does not
// fit its field.
func (a AcceptV2) AppendBinary(b []byte) ([]byte, error) {
	n := AcceptConfirmLenV2
	if a.FirstContact != nil {
		n = AcceptFirstLenV2
	}
	b, _, err := appendV2(b, TypeAccept, n, &a.Endpoint, &a.EID, a.FirstContact)
	return b, err
}

// AppendBinary appends the message to b: AcceptConfirmLenV2 bytes, or
// ConfirmFirstLenV2 and 16 for each GID in a first contact. It returns ErrRange
// if a number does not fit its field, or if there are GIDs without a first
// contact.
func (c ConfirmV2) AppendBinary(b []byte) ([]byte, error) {
	if len(c.GIDs) > maxConfirmGIDs || c.FirstContact == nil && len(c.GIDs) > 0 {
		return b, rangeErr("number of GIDs", len(c.GIDs))
	}
	n := AcceptConfirmLenV2
	if c.FirstContact != nil {
		n = ConfirmFirstLenV2 + len(smc.GID{})*len(c.GIDs)
	}
	b, m, err := appendV2(b, TypeConfirm, n, &c.Endpoint, &c.EID, c.FirstContact)
	if err != nil || c.FirstContact == nil {
		return b, err
	}
	m[gidListAt] = byte(len(c.GIDs))
	for i, g := range c.GIDs {
		copy(m[gidListAt+gidListHeaderLen+len(g)*i:], g[:])
	}
	return b, nil
}

func appendV2(b []byte, t CLCType, n int, e *Endpoint, eid *EID, x *FirstContactExt) (whole, msg []byte, err error) {
	if x != nil && (x.OS > 15 || x.Release > 15) {
		return b, nil, rangeErr("operating system or release", [2]uint8{uint8(x.OS), x.Release})
	}
	whole, err = e.append(b, t, Version2, n, x != nil)
	if err != nil {
		return whole, nil, err
	}
	m := whole[len(b):]
	copy(m[64:], eid[:])
	if x != nil {
		x.put(m[firstContactExtAt:])
	}
	return whole, m, nil
}

func (x *FirstContactExt) put(b []byte) {
	if x.Direct {
		b[0] = 0x80
	}
	b[1] = uint8(x.OS)<<4 | x.Release
	copy(b[4:], x.Hostname[:])
	if x.Release >= ReleaseV21 {
		b[36], b[37] = x.MaxConns, x.MaxLinks
		binary.BigEndian.PutUint16(b[38:], x.Features)
		binary.BigEndian.PutUint32(b[40:], x.Vendor)
	}
}

func getFirstContactExt(b []byte) *FirstContactExt {
	x := &FirstContactExt{
		Direct:   b[0]&0x80 != 0,
		OS:       smc.OS(b[1] >> 4),
		Release:  b[1] & 15,
		Hostname: Hostname(b[4:]),
	}
	if x.Release >= ReleaseV21 {
		x.MaxConns, x.MaxLinks = b[36], b[37]
		x.Features = binary.BigEndian.Uint16(b[38:])
		x.Vendor = binary.BigEndian.Uint32(b[40:])
	}
	return x
}

// ParseAcceptV2 decodes an ACCEPT of SMC-R version 2. It returns ErrVersion for another
// version, and ErrMode for SMC-D. As in Linux, a message may be longer than what is
// known; the rest is ignored.
func ParseAcceptV2(b []byte) (AcceptV2, error) {
	first, err := parseV2(b, TypeAccept, AcceptFirstLenV2)
	if err != nil {
		return AcceptV2{}, err
	}
	a := AcceptV2{Endpoint: getEndpoint(b), EID: EID(b[64:])}
	if first {
		a.FirstContact = getFirstContactExt(b[firstContactExtAt:])
	}
	return a, nil
}

// ParseConfirmV2 decodes a CONFIRM of SMC-R version 2. It returns ErrVersion for another
// version, and ErrMode for SMC-D. As in Linux, a message may be longer than what is
// known; the rest is ignored.
func ParseConfirmV2(b []byte) (ConfirmV2, error) {
	first, err := parseV2(b, TypeConfirm, ConfirmFirstLenV2)
	if err != nil {
		return ConfirmV2{}, err
	}
	c := ConfirmV2{Endpoint: getEndpoint(b), EID: EID(b[64:])}
	if !first {
		return c, nil
	}
	n := int(b[gidListAt])
	if want := ConfirmFirstLenV2 + len(smc.GID{})*n; len(b) < want {
		return ConfirmV2{}, fmt.Errorf("%w: CONFIRM of %d bytes with %d GIDs", ErrLength, len(b), n)
	}
	c.FirstContact = getFirstContactExt(b[firstContactExtAt:])
	if n > 0 {
		c.GIDs = make([]smc.GID, n)
	}
	for i := range c.GIDs {
		c.GIDs[i] = smc.GID(b[gidListAt+gidListHeaderLen+len(smc.GID{})*i:])
	}
	return c, nil
}

// parseV2 checks that b is a message of version 2 that is long enough for its fixed
// part.
func parseV2(b []byte, t CLCType, firstLen int) (first bool, err error) {
	h, err := parseAcceptConfirm(b, t, Version2)
	if err != nil {
		return false, err
	}
	first = h.Flags&headerFlag != 0
	if h.Length < AcceptConfirmLenV2 || first && h.Length < firstLen {
		return false, fmt.Errorf("%w: %s of version 2 with %d bytes, first contact %t", ErrLength, t, h.Length, first)
	}
	return first, nil
}
