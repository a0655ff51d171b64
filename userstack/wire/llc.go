// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// LLCLen is the length of every LLC message of version 1 in bytes, and the
// shortest of version 2. It is also the length of a CDC message, so that one
// size of receive buffer does for version 1.
const LLCLen = 44

// MaxLLCLenV2 bounds the length of an LLC message of version 2 in bytes, and
// so the receive buffer of a link of version 2.
const MaxLLCLenV2 = 8192

// LLCType is the opcode of an LLC message: the first byte of version 1. A
// message of version 2 has the same type here, and llcV2Bit in its first byte;
// which of them it is, its LLCLayout tells.
type LLCType uint8

// llcV2Bit makes the first byte of version 2 out of a type.
const llcV2Bit = 0x20

// The LLC messages (RFC 7609, appendix A.3). LLCReqAddLink is defined in
// version 2 alone, the two continuations in version 1 alone.
const (
	LLCConfirmLink     LLCType = 1 // CONFIRM LINK: the link works
	LLCAddLink         LLCType = 2 // ADD LINK: a second link
	LLCAddLinkCont     LLCType = 3 // ADD LINK CONTINUATION: the RTokens on the new link
	LLCDeleteLink      LLCType = 4 // DELETE LINK: a link, or all, ends
	LLCReqAddLink      LLCType = 5 // REQUEST ADD LINK: the client asks for a link
	LLCConfirmRKey     LLCType = 6 // CONFIRM RKEY: a new RMB
	LLCTestLink        LLCType = 7 // TEST LINK: whether the peer answers
	LLCConfirmRKeyCont LLCType = 8 // CONFIRM RKEY CONTINUATION: the RMB on further links
	LLCDeleteRKey      LLCType = 9 // DELETE RKEY: RMBs that are not used any more
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
	case LLCReqAddLink:
		return "REQUEST ADD LINK"
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

// LLCLayout says how the header of an LLC message is laid out.
type LLCLayout uint8

// The layouts. The length in a header of version 2 ought to be big-endian, but
// Linux has it, and the number of RKeys in ADD LINK, in the byte order of the
// host. Parsers take both; what they say of the first message of a peer is the
// layout for the answers to it.
const (
	// LLCV1 is version 1.
	LLCV1 LLCLayout = iota
	// LLCV2 is version 2 as specified, and as a big-endian Linux has it.
	LLCV2
	// LLCV2Little is version 2 of Linux on little-endian hosts.
	LLCV2Little
)

// LLCLayoutFor returns the layout to begin with, given the SMC version of the
// link group and the operating system in the peer's FirstContactExt. Of a Linux
// the byte order is not known until it sent a message; until then
// LLCV2Little does, since the length of the first message passes either way.
func LLCLayoutFor(version uint8, os smc.OS) LLCLayout {
	switch {
	case version < Version2:
		return LLCV1
	case os == smc.OSLinux:
		return LLCV2Little
	}
	return LLCV2
}

// V2 reports whether the layout is one of version 2.
func (l LLCLayout) V2() bool { return l == LLCV2 || l == LLCV2Little }

// String returns a short name.
func (l LLCLayout) String() string {
	switch l {
	case LLCV1:
		return "version 1"
	case LLCV2:
		return "version 2"
	case LLCV2Little:
		return "version 2, little-endian"
	}
	return fmt.Sprintf("LLC layout %d", uint8(l))
}

func (l LLCLayout) putUint16(b []byte, v uint16) {
	if l == LLCV2Little {
		binary.LittleEndian.PutUint16(b, v)
		return
	}
	binary.BigEndian.PutUint16(b, v)
}

// LLCHeader is the beginning of an LLC message.
//
//	version 1             version 2
//	0  opcode             0  opcode with 0x20
//	1  length, 44         1  length (2)
//	2  reserved; low nibble the reason in a rejected ADD LINK
//	3  flags; 0x80 reply  3  flags; 0x80 reply
type LLCHeader struct {
	// Type is the first byte, without the bit of version 2 in a message
	// that version 2 defines.
	Type   LLCType
	Layout LLCLayout
	Reply  bool
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
	h := LLCHeader{Type: LLCType(b[0]), Reply: b[3]&llcReply != 0}
	if t := h.Type &^ llcV2Bit; h.Type&llcV2Bit != 0 && t.knownV2() {
		var err error
		h.Type = t
		h.Layout, err = llcV2Layout(b)
		return h, err
	}
	// An unknown opcode may have its length elsewhere: what it is matters
	// more than how long it is.
	if h.Type.known() && (len(b) != LLCLen || b[1] != LLCLen) {
		return LLCHeader{}, fmt.Errorf("%w: %s says %d bytes, has %d", ErrLength, h.Type, b[1], len(b))
	}
	return h, nil
}

// llcV2Layout finds the byte order of the length in a header of version 2.
func llcV2Layout(b []byte) (LLCLayout, error) {
	big, little := int(binary.BigEndian.Uint16(b[1:])), int(binary.LittleEndian.Uint16(b[1:]))
	switch {
	case len(b) > MaxLLCLenV2:
	case little == len(b):
		return LLCV2Little, nil
	case big == len(b):
		return LLCV2, nil
	case min(big, little) > len(b):
		return 0, fmt.Errorf("%w: LLC message of %d bytes, have %d", ErrShort, min(big, little), len(b))
	}
	return 0, fmt.Errorf("%w: LLC opcode 0x%02x says %d or %d bytes, has %d", ErrLength, b[0], big, little, len(b))
}

func (t LLCType) known() bool {
	return t >= LLCConfirmLink && t <= LLCDeleteLink || t >= LLCConfirmRKey && t <= LLCDeleteRKey
}

func (t LLCType) knownV2() bool {
	return t == LLCReqAddLink || t.known() && t != LLCAddLinkCont && t != LLCConfirmRKeyCont
}

// LLC is any LLC message: ConfirmLink, AddLink, AddLinkCont, ReqAddLink,
// DeleteLink, ConfirmRKey, ConfirmRKeyCont, DeleteRKey, DeleteRKeyV2, TestLink,
// as values. AppendBinary appends LLCLen bytes in version 1. Messages that both
// versions have in common have a field Layout, whose zero value is version 1.
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
	_ LLC = ReqAddLink{}
	_ LLC = DeleteLink{}
	_ LLC = ConfirmRKey{}
	_ LLC = ConfirmRKeyCont{}
	_ LLC = DeleteRKey{}
	_ LLC = DeleteRKeyV2{}
	_ LLC = TestLink{}
)

// ParseLLC decodes an LLC message of any type and version; the version, if it
// matters, is in the Layout of the message. An unknown opcode gives an
// *OpcodeError. The one allocation is that of the interface value; the Parse
// function of each message does without, but for the messages of version 2
// that have a list.
func ParseLLC(b []byte) (LLC, error) {
	h, err := ParseLLCHeader(b)
	if err != nil {
		return nil, err
	}
	if h.Layout.V2() {
		switch h.Type {
		case LLCReqAddLink:
			return llcOrNil(ParseReqAddLink(b))
		case LLCDeleteRKey:
			return llcOrNil(ParseDeleteRKeyV2(b))
		}
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

// AppendLLC appends m in the given layout, whatever m.Layout says, so that one
// layout may be kept for a link group. It returns ErrVersion for a message that
// the version does not have, and what m.AppendBinary returns.
func AppendLLC(b []byte, l LLCLayout, m LLC) ([]byte, error) {
	switch m := m.(type) {
	case ConfirmLink:
		m.Layout = l
		return m.AppendBinary(b)
	case AddLink:
		m.Layout = l
		return m.AppendBinary(b)
	case DeleteLink:
		m.Layout = l
		return m.AppendBinary(b)
	case ConfirmRKey:
		m.Layout = l
		return m.AppendBinary(b)
	case TestLink:
		m.Layout = l
		return m.AppendBinary(b)
	case ReqAddLink:
		m.Layout = l
		return m.AppendBinary(b)
	case DeleteRKeyV2:
		m.Layout = l
		return m.AppendBinary(b)
	}
	if l != LLCV1 {
		return b, fmt.Errorf("%w: no %s in %s", ErrVersion, m.LLCType(), l)
	}
	return m.AppendBinary(b)
}

// checkLLC checks the header of a message that has to be of type want and
// version 1, and returns its flags.
func checkLLC(b []byte, want LLCType) (flags byte, err error) {
	flags, l, err := checkLLCAny(b, want)
	if err == nil && l != LLCV1 {
		return 0, fmt.Errorf("%w: %s of %s", ErrVersion, want, l)
	}
	return flags, err
}

// checkLLCAny is checkLLC for both versions.
func checkLLCAny(b []byte, want LLCType) (flags byte, l LLCLayout, err error) {
	h, err := ParseLLCHeader(b)
	if err != nil {
		return 0, 0, err
	}
	if h.Type != want {
		return 0, 0, fmt.Errorf("%w: %s, want %s", ErrType, h.Type, want)
	}
	return b[3], h.Layout, nil
}

// checkLLCV2 is checkLLC for version 2.
func checkLLCV2(b []byte, want LLCType) (flags byte, l LLCLayout, err error) {
	flags, l, err = checkLLCAny(b, want)
	if err == nil && !l.V2() {
		return 0, 0, fmt.Errorf("%w: %s of %s", ErrVersion, want, l)
	}
	return flags, l, err
}

// appendLLC appends a message of n bytes, LLCLen if n is less, that is zero
// but for its header, and returns the whole and the message. In version 1 n is
// LLCLen.
func appendLLC(b []byte, l LLCLayout, t LLCType, n int, reply bool) (whole, msg []byte, err error) {
	if l > LLCV2Little {
		return b, nil, rangeErr("layout", l)
	}
	n = max(n, LLCLen)
	whole, msg = extend(b, n)
	msg[0] = byte(t)
	if l == LLCV1 {
		msg[1] = LLCLen
	} else {
		msg[0] |= llcV2Bit
		l.putUint16(msg[1:], uint16(n))
	}
	if reply {
		msg[3] = llcReply
	}
	return whole, msg, nil
}
