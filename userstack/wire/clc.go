// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"encoding/binary"
	"fmt"
)

// Sizes of CLC messages in bytes.
const (
	// HeaderLen is the length of the header that every CLC message has.
	HeaderLen = 8
	// TrailerLen is the length of the eyecatcher that ends every message.
	TrailerLen = 4
	// MaxCLCLen is the largest length that ParseHeader accepts, and so the size of
	// the buffer that a reader needs. The longest proposal of version 2 has 652
	// bytes.
	MaxCLCLen = 2048
	// MinCLCLen is the length of a message that has only header and trailer.
	MinCLCLen = HeaderLen + TrailerLen
)

// The eyecatchers, in EBCDIC. Every CLC message begins and ends with one.
const (
	EyecatcherSMCR uint32 = 0xE2D4C3D9 // "SMCR": messages of SMC-R
	EyecatcherSMCD uint32 = 0xE2D4C3C4 // "SMCD": messages of SMC-D
)

// Versions of SMC in a CLC header.
const (
	Version1 uint8 = 1 // SMC-Rv1 (RFC 7609)
	Version2 uint8 = 2 // SMC-Rv2
)

// CLCType is the type of a CLC message.
type CLCType uint8

// The CLC message types (RFC 7609, appendix A.2).
const (
	TypeProposal CLCType = 1 // client: what it can do
	TypeAccept   CLCType = 2 // server: what the connection uses
	TypeConfirm  CLCType = 3 // client: its side of that
	TypeDecline  CLCType = 4 // either: the connection stays TCP
)

// String returns the name of the type.
func (t CLCType) String() string {
	switch t {
	case TypeProposal:
		return "PROPOSAL"
	case TypeAccept:
		return "ACCEPT"
	case TypeConfirm:
		return "CONFIRM"
	case TypeDecline:
		return "DECLINE"
	}
	return fmt.Sprintf("CLC type %d", uint8(t))
}

// Mode is the set of kinds of SMC that a proposal offers, or the kind that was chosen.
// In RFC 7609 these bits are reserved and zero, which is ModeR.
type Mode uint8

// The modes: two bits on the wire.
const (
	ModeR    Mode = 0 // SMC-R
	ModeD    Mode = 1 // SMC-D
	ModeNone Mode = 2 // neither
	ModeBoth Mode = 3 // SMC-R and SMC-D
)

// HasR reports whether SMC-R is among the modes.
func (m Mode) HasR() bool { return m == ModeR || m == ModeBoth }

// HasD reports whether SMC-D is among the modes.
func (m Mode) HasD() bool { return m == ModeD || m == ModeBoth }

// String returns the name of the mode.
func (m Mode) String() string {
	switch m {
	case ModeR:
		return "SMC-R"
	case ModeD:
		return "SMC-D"
	case ModeNone:
		return "none"
	case ModeBoth:
		return "SMC-R and SMC-D"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// The bit that is "first contact" in ACCEPT and CONFIRM and "out of sync" in
// DECLINE.
const headerFlag = 0x08

// Header is the common beginning of the CLC messages.
//
//	0  eyecatcher (4)
//	4  type
//	5  length of the whole message, trailer included (2)
//	7  version (high nibble), flags (low nibble)
type Header struct {
	Eyecatcher uint32
	Type       CLCType
	// Length of the whole message in bytes; MinCLCLen to MaxCLCLen.
	Length  int
	Version uint8
	// Flags is the low nibble of the last byte. Its meaning depends on the type.
	// RFC 7609 defines the F and S bits; the others are reserved.
	Flags uint8
}

// ParseHeader decodes the header at the beginning of b and checks it. The result tells
// a reader of the TCP byte stream how many bytes the message has: Header.Length, with
// the header. ParseHeader needs HeaderLen bytes and returns ErrShort if b has fewer.
// ErrEyecatcher, ErrType, ErrVersion and ErrLength mean that no CLC message begins
// here.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, ErrShort
	}
	h := Header{
		Eyecatcher: binary.BigEndian.Uint32(b),
		Type:       CLCType(b[4]),
		Length:     int(binary.BigEndian.Uint16(b[5:])),
		Version:    b[7] >> 4,
		Flags:      b[7] & 0x0f,
	}
	if !isEyecatcher(h.Eyecatcher) {
		return Header{}, fmt.Errorf("%w: 0x%08x at the beginning", ErrEyecatcher, h.Eyecatcher)
	}
	if h.Type < TypeProposal || h.Type > TypeDecline {
		return Header{}, fmt.Errorf("%w: %s", ErrType, h.Type)
	}
	if h.Version == 0 {
		return Header{}, fmt.Errorf("%w: 0", ErrVersion)
	}
	if h.Length < MinCLCLen || h.Length > MaxCLCLen {
		return Header{}, fmt.Errorf("%w: %s of %d bytes", ErrLength, h.Type, h.Length)
	}
	return h, nil
}

func isEyecatcher(v uint32) bool { return v == EyecatcherSMCR || v == EyecatcherSMCD }

// CLC is a CLC message: a Proposal, Accept, AcceptV2, Confirm, ConfirmV2 or Decline,
// not a pointer to one.
type CLC interface {
	encoding.BinaryAppender
	// CLCType returns the type of the message.
	CLCType() CLCType
}

var (
	_ CLC = Proposal{}
	_ CLC = Accept{}
	_ CLC = AcceptV2{}
	_ CLC = Confirm{}
	_ CLC = ConfirmV2{}
	_ CLC = Decline{}
)

// ParseCLC decodes b, which must be exactly one message of any type. It returns ACCEPT
// and CONFIRM of version 2 as AcceptV2 and ConfirmV2. The other types have a field for
// the version. The errors are those of [ParseHeader] and of the Parse function of the
// type.
func ParseCLC(b []byte) (CLC, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	switch h.Type {
	case TypeProposal:
		return clcOrNil(ParseProposal(b))
	case TypeAccept:
		if h.Version >= Version2 {
			return clcOrNil(ParseAcceptV2(b))
		}
		return clcOrNil(ParseAccept(b))
	case TypeConfirm:
		if h.Version >= Version2 {
			return clcOrNil(ParseConfirmV2(b))
		}
		return clcOrNil(ParseConfirm(b))
	default: // ParseHeader lets no other type pass
		return clcOrNil(ParseDecline(b))
	}
}

func clcOrNil[T CLC](m T, err error) (CLC, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// parseCLC checks what all types have in common: the header, the trailer, and that b
// is exactly one message of type want.
func parseCLC(b []byte, want CLCType) (Header, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Header{}, err
	}
	if h.Type != want {
		return Header{}, fmt.Errorf("%w: %s, want %s", ErrType, h.Type, want)
	}
	if len(b) < h.Length {
		return Header{}, fmt.Errorf("%w: %s of %d bytes, have %d", ErrShort, want, h.Length, len(b))
	}
	if len(b) > h.Length {
		return Header{}, fmt.Errorf("%w: %s of %d bytes, have %d", ErrLength, want, h.Length, len(b))
	}
	// Linux ends SMC-D messages, and some of its declines, with "SMCD".
	if t := binary.BigEndian.Uint32(b[h.Length-TrailerLen:]); !isEyecatcher(t) {
		return Header{}, fmt.Errorf("%w: 0x%08x at the end of %s", ErrEyecatcher, t, want)
	}
	return h, nil
}

// appendCLC appends a message of n bytes that is zero except for header and trailer.
// It returns all of b, and the message as a part of it.
func appendCLC(b []byte, t CLCType, n int, version, flags uint8) (whole, msg []byte) {
	whole, msg = extend(b, n)
	binary.BigEndian.PutUint32(msg, EyecatcherSMCR)
	msg[4] = byte(t)
	binary.BigEndian.PutUint16(msg[5:], uint16(n))
	msg[7] = version<<4 | flags
	binary.BigEndian.PutUint32(msg[n-TrailerLen:], EyecatcherSMCR)
	return whole, msg
}
