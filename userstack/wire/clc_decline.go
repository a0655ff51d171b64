// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// Lengths of DECLINE in bytes.
const (
	DeclineLen   = 28 // version 1
	DeclineLenV2 = 44 // version 2
)

// Decline refuses SMC: the connection stays TCP. A host can send it in place of any
// other CLC message (RFC 7609, appendix A.2.5, figure 30; rules in C.1 and C.2).
//
//	0   header; flag 0x08 out of sync
//	8   sender's peer ID (8)
//	16  diagnosis (4)
//	20  operating system (high nibble), reserved (3): zero in version 1
//	24  trailer (4); in version 2 four more diagnosis words, then trailer
//
// A Linux host that offers only version 2 declines in version 2, even before a version
// is agreed on. So this package parses and encodes both.
type Decline struct {
	// Version is that of the layout: 1 or 2; 0 means 1.
	Version uint8
	// OutOfSync is the S bit: the receiver must end its side of the link group. Linux
	// sends it only with smc.DiagSync.
	OutOfSync bool
	PeerID    smc.PeerID
	Diagnosis smc.Diagnosis
	// OSType and More belong to version 2: the operating system of the sender, and
	// four more words of diagnosis.
	OSType smc.OS
	More   [4]uint32
}

// CLCType returns TypeDecline.
func (Decline) CLCType() CLCType { return TypeDecline }

// AppendBinary appends the DeclineLen or, for version 2, DeclineLenV2 bytes of
// the message to b. It returns ErrVersion for another version, and ErrRange if a message
// of version 1 has fields of version 2.
func (d Decline) AppendBinary(b []byte) ([]byte, error) {
	version, n := d.Version, DeclineLen
	switch version {
	case 0, Version1:
		version = Version1
		if d.OSType != 0 || d.More != [4]uint32{} {
			return b, rangeErr("version 1 decline with fields of version 2, operating system", d.OSType)
		}
	case Version2:
		n = DeclineLenV2
	default:
		return b, fmt.Errorf("%w: DECLINE of version %d", ErrVersion, version)
	}
	if d.OSType > 15 {
		return b, rangeErr("operating system", d.OSType)
	}
	var flags uint8
	if d.OutOfSync {
		flags = headerFlag
	}
	b, m := appendCLC(b, TypeDecline, n, version, flags)
	copy(m[8:], d.PeerID[:])
	binary.BigEndian.PutUint32(m[16:], uint32(d.Diagnosis))
	if version == Version2 {
		m[20] = uint8(d.OSType) << 4
		for i, v := range d.More {
			binary.BigEndian.PutUint32(m[24+4*i:], v)
		}
	}
	return b, nil
}

// ParseDecline decodes a DECLINE of version 1 or 2.
func ParseDecline(b []byte) (Decline, error) {
	h, err := parseCLC(b, TypeDecline)
	if err != nil {
		return Decline{}, err
	}
	var want int
	switch h.Version {
	case Version1:
		want = DeclineLen
	case Version2:
		want = DeclineLenV2
	default:
		return Decline{}, fmt.Errorf("%w: DECLINE of version %d", ErrVersion, h.Version)
	}
	if h.Length != want {
		return Decline{}, fmt.Errorf("%w: DECLINE of %d bytes", ErrLength, h.Length)
	}
	d := Decline{
		Version:   h.Version,
		OutOfSync: h.Flags&headerFlag != 0,
		PeerID:    smc.PeerID(b[8:16]),
		Diagnosis: smc.Diagnosis(binary.BigEndian.Uint32(b[16:])),
	}
	if h.Version == Version2 {
		d.OSType = smc.OS(b[20] >> 4)
		for i := range d.More {
			d.More[i] = binary.BigEndian.Uint32(b[24+4*i:])
		}
	}
	return d, nil
}
