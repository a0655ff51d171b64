// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"fmt"
)

// LLCLen is the length of every LLC message of version 1 in bytes. It is also
// the length of a CDC message, so that one size of receive buffer does.
const LLCLen = 44

// LLCType is the opcode of an LLC message, its first byte.
type LLCType uint8

// The LLC messages of version 1 (RFC 7609, appendix A.3).
const (
	LLCConfirmLink     LLCType = 1
	LLCAddLink         LLCType = 2
	LLCAddLinkCont     LLCType = 3
	LLCDeleteLink      LLCType = 4
	LLCConfirmRKey     LLCType = 6
	LLCTestLink        LLCType = 7
	LLCConfirmRKeyCont LLCType = 8
	LLCDeleteRKey      LLCType = 9
)

// String returns the name of the message.
func (t LLCType) String() string {
	switch t {
	case LLCConfirmLink:
		return "CONFIRM LINK"
	case LLCAddLink:
		return "ADD LINK"
	case LLCAddLinkCont:
		return "ADD LINK CONTINUATION"
	case LLCDeleteLink:
		return "DELETE LINK"
	case LLCConfirmRKey:
		return "CONFIRM RKEY"
	case LLCTestLink:
		return "TEST LINK"
	case LLCConfirmRKeyCont:
		return "CONFIRM RKEY CONTINUATION"
	case LLCDeleteRKey:
		return "DELETE RKEY"
	}
	return fmt.Sprintf("LLC opcode 0x%02x", uint8(t))
}

// Optional reports whether a peer that does not know the opcode has to
// discard the message silently: the two high-order bits are b'10'.
func (t LLCType) Optional() bool { return t>>6 == 0b10 }

// IsCDC reports whether a received message is a CDC message and no LLC
// message: the two high-order bits of its first byte are b'11'.
func IsCDC(b []byte) bool { return len(b) > 0 && b[0]>>6 == 0b11 }

// Flags of LLC messages, in byte 3. A bit means what its message says.
const (
	llcReply    = 0x80
	llcRejected = 0x40 // ADD LINK
	llcAll      = 0x40 // DELETE LINK
	llcOrderly  = 0x20 // DELETE LINK
	llcNegative = 0x20 // CONFIRM RKEY, its continuation, DELETE RKEY
	llcRetry    = 0x10 // CONFIRM RKEY
	llcNoEyec   = 0x03 // CONFIRM LINK
)

// LLCHeader is the beginning of an LLC message.
//
//	0  opcode
//	1  length, 44
//	2  reserved; low nibble the reason in a rejected ADD LINK
//	3  flags; 0x80 reply
type LLCHeader struct {
	Type  LLCType
	Reply bool
}

// ParseLLCHeader checks that b has the length of an LLC message and says so
// in its header, and returns the header. It serves to choose the parser; the
// opcode may be an unknown one.
func ParseLLCHeader(b []byte) (LLCHeader, error) {
	if len(b) < LLCLen {
		return LLCHeader{}, ErrShort
	}
	if IsCDC(b) {
		return LLCHeader{}, fmt.Errorf("%w: a CDC message, not LLC", ErrType)
	}
	t := LLCType(b[0])
	// An opcode of a later version has its length elsewhere: what it is
	// matters more than how long it is.
	if !t.known() {
		return LLCHeader{Type: t, Reply: b[3]&llcReply != 0}, nil
	}
	if len(b) != LLCLen || b[1] != LLCLen {
		return LLCHeader{}, fmt.Errorf("%w: %s says %d bytes, has %d", ErrLength, t, b[1], len(b))
	}
	return LLCHeader{Type: t, Reply: b[3]&llcReply != 0}, nil
}

func (t LLCType) known() bool {
	return t >= LLCConfirmLink && t <= LLCDeleteLink || t >= LLCConfirmRKey && t <= LLCDeleteRKey
}

// LLC is any LLC message: ConfirmLink, AddLink, AddLinkCont, DeleteLink,
// ConfirmRKey, ConfirmRKeyCont, DeleteRKey, TestLink, as values. AppendBinary
// appends LLCLen bytes.
type LLC interface {
	encoding.BinaryAppender
	// LLCType returns the opcode.
	LLCType() LLCType
	// IsReply returns the R flag.
	IsReply() bool
}

var (
	_ LLC = ConfirmLink{}
	_ LLC = AddLink{}
	_ LLC = AddLinkCont{}
	_ LLC = DeleteLink{}
	_ LLC = ConfirmRKey{}
	_ LLC = ConfirmRKeyCont{}
	_ LLC = DeleteRKey{}
	_ LLC = TestLink{}
)

// ParseLLC decodes an LLC message of any type. An unknown opcode gives an
// *OpcodeError. The one allocation is that of the interface value; the Parse
// function of each message does without.
func ParseLLC(b []byte) (LLC, error) {
	h, err := ParseLLCHeader(b)
	if err != nil {
		return nil, err
	}
	switch h.Type {
	case LLCConfirmLink:
		return llcOrNil(ParseConfirmLink(b))
	case LLCAddLink:
		return llcOrNil(ParseAddLink(b))
	case LLCAddLinkCont:
		return llcOrNil(ParseAddLinkCont(b))
	case LLCDeleteLink:
		return llcOrNil(ParseDeleteLink(b))
	case LLCConfirmRKey:
		return llcOrNil(ParseConfirmRKey(b))
	case LLCTestLink:
		return llcOrNil(ParseTestLink(b))
	case LLCConfirmRKeyCont:
		return llcOrNil(ParseConfirmRKeyCont(b))
	case LLCDeleteRKey:
		return llcOrNil(ParseDeleteRKey(b))
	}
	return nil, &OpcodeError{Opcode: h.Type}
}

func llcOrNil[T LLC](m T, err error) (LLC, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// checkLLC checks the header of a message that has to be of type want, and
// returns its flags.
func checkLLC(b []byte, want LLCType) (flags byte, err error) {
	h, err := ParseLLCHeader(b)
	if err != nil {
		return 0, err
	}
	if h.Type != want {
		return 0, fmt.Errorf("%w: %s, want %s", ErrType, h.Type, want)
	}
	return b[3], nil
}

// appendLLC appends a message that is zero but for its header, and returns
// the whole and the message.
func appendLLC(b []byte, t LLCType, reply bool) (whole, msg []byte) {
	whole, msg = extend(b, LLCLen)
	msg[0], msg[1] = byte(t), LLCLen
	if reply {
		msg[3] = llcReply
	}
	return whole, msg
}
