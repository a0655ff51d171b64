// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// AcceptConfirmLen is the length of ACCEPT and CONFIRM of SMC-R version 1 in
// bytes.
const AcceptConfirmLen = 68

// Endpoint is what ACCEPT and CONFIRM of either version tell of the sender's end of the link
// and of its receive buffer (RFC 7609, appendix A.2.3 and A.2.4, figures 28
// and 29). Version 2 goes on at 64; see AcceptV2.
//
//	0   header; flag 0x08 first contact
//	8   peer ID (8)
//	16  GID (16)
//	32  MAC (6)
//	38  queue pair number (3)
//	41  RKey of the RMB (4)
//	45  RMB element index
//	46  RMB element alert token (4)
//	50  element size code (high nibble), MTU code (low nibble)
//	51  reserved
//	52  virtual address of the RMB (8)
//	60  reserved
//	61  initial PSN (3)
//	64  trailer (4)
type Endpoint struct {
	PeerID smc.PeerID
	GID    smc.GID
	MAC    smc.MAC
	QPN    smc.QPN
	// RMB is the RToken of the sender's RMB on this link.
	RMB smc.RToken
	// RMBEIndex is the number of the element in the RMB, from 1. RMBs of Linux have
	// one element each.
	RMBEIndex uint8
	// AlertToken identifies the connection in CDC messages to the sender. Linux never
	// uses 0.
	AlertToken uint32
	// RMBESize is the size of the element.
	RMBESize smc.SizeCode
	// MTU is the path MTU of the sender's queue pair. RFC 7609 has it checked only in a
	// first contact, so the parser accepts reserved codes.
	MTU smc.MTU
	// PSN is the first packet sequence number that the sender will use.
	PSN smc.PSN
}

// Accept is the server's answer to a Proposal, in version 1.
type Accept struct {
	// FirstContact is the F bit: for the server this is the first connection of a new
	// link group.
	FirstContact bool
	Endpoint
}

// Confirm is the client's answer to an Accept, in version 1.
type Confirm struct {
	// FirstContact repeats the F bit of ACCEPT, as in Linux. In RFC 7609 the bit is
	// reserved here.
	FirstContact bool
	Endpoint
}

// CLCType returns TypeAccept.
func (Accept) CLCType() CLCType { return TypeAccept }

// CLCType returns TypeConfirm.
func (Confirm) CLCType() CLCType { return TypeConfirm }

// AppendBinary appends the AcceptConfirmLen bytes of the message to b. It
// returns ErrRange if a number does not fit its field.
func (a Accept) AppendBinary(b []byte) ([]byte, error) {
	return a.append(b, TypeAccept, Version1, AcceptConfirmLen, a.FirstContact)
}

// AppendBinary appends the AcceptConfirmLen bytes of the message to b. It
// returns ErrRange if a number does not fit its field.
func (c Confirm) AppendBinary(b []byte) ([]byte, error) {
	return c.append(b, TypeConfirm, Version1, AcceptConfirmLen, c.FirstContact)
}

// append appends a message of n bytes that is zero behind the Endpoint, except for the
// trailer.
func (e *Endpoint) append(b []byte, t CLCType, version uint8, n int, first bool) ([]byte, error) {
	if err := check24(e.QPN, e.PSN); err != nil {
		return b, err
	}
	if e.RMBESize > smc.MaxSizeCode {
		return b, rangeErr("RMB element size code", uint8(e.RMBESize))
	}
	if e.MTU > 15 {
		return b, rangeErr("MTU code", uint8(e.MTU))
	}
	var flags uint8
	if first {
		flags = headerFlag
	}
	b, m := appendCLC(b, t, n, version, flags)
	copy(m[8:], e.PeerID[:])
	copy(m[16:], e.GID[:])
	copy(m[32:], e.MAC[:])
	put24(m[38:], uint32(e.QPN))
	binary.BigEndian.PutUint32(m[41:], uint32(e.RMB.RKey))
	m[45] = e.RMBEIndex
	binary.BigEndian.PutUint32(m[46:], e.AlertToken)
	m[50] = byte(e.RMBESize)<<4 | byte(e.MTU)
	binary.BigEndian.PutUint64(m[52:], e.RMB.Addr)
	put24(m[61:], uint32(e.PSN))
	return b, nil
}

// ParseAccept decodes an ACCEPT of SMC-R version 1. It returns ErrVersion for a later
// version, and ErrMode for SMC-D.
func ParseAccept(b []byte) (Accept, error) {
	first, e, err := parseEndpoint(b, TypeAccept)
	return Accept{first, e}, err
}

// ParseConfirm decodes a CONFIRM of SMC-R version 1. It returns ErrVersion for a later
// version, and ErrMode for SMC-D.
func ParseConfirm(b []byte) (Confirm, error) {
	first, e, err := parseEndpoint(b, TypeConfirm)
	return Confirm{first, e}, err
}

func parseEndpoint(b []byte, t CLCType) (first bool, e Endpoint, err error) {
	h, err := parseAcceptConfirm(b, t, Version1)
	if err != nil {
		return false, Endpoint{}, err
	}
	if h.Length != AcceptConfirmLen {
		return false, Endpoint{}, fmt.Errorf("%w: %s of %d bytes", ErrLength, t, h.Length)
	}
	return h.Flags&headerFlag != 0, getEndpoint(b), nil
}

// parseAcceptConfirm checks what the messages of both versions have in common.
func parseAcceptConfirm(b []byte, t CLCType, version uint8) (Header, error) {
	h, err := parseCLC(b, t)
	if err != nil {
		return Header{}, err
	}
	if h.Version != version {
		return Header{}, fmt.Errorf("%w: %s of version %d, want %d", ErrVersion, t, h.Version, version)
	}
	if h.Eyecatcher != EyecatcherSMCR {
		return Header{}, fmt.Errorf("%w: %s", ErrMode, t)
	}
	return h, nil
}

// getEndpoint reads a message of AcceptConfirmLen bytes or more.
func getEndpoint(b []byte) Endpoint {
	return Endpoint{
		PeerID:     smc.PeerID(b[8:16]),
		GID:        smc.GID(b[16:32]),
		MAC:        smc.MAC(b[32:38]),
		QPN:        smc.QPN(get24(b[38:])),
		RMB:        smc.RToken{RKey: smc.RKey(binary.BigEndian.Uint32(b[41:])), Addr: binary.BigEndian.Uint64(b[52:])},
		RMBEIndex:  b[45],
		AlertToken: binary.BigEndian.Uint32(b[46:]),
		RMBESize:   smc.SizeCode(b[50] >> 4),
		MTU:        smc.MTU(b[50] & 15),
		PSN:        smc.PSN(get24(b[61:])),
	}
}
