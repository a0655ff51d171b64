// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"encoding/binary"
	"fmt"

	"smcr/smc"
)

// LLCLen is the length in bytes of every LLC message of version 1, and the least length
// of one of version 2. A CDC message is as long, so that version 1 needs receive buffers
// of one size.
const LLCLen = 44

// MaxLLCLenV2 is the largest length in bytes of an LLC message of version 2, and so the
// size of a receive buffer of a link of version 2.
const MaxLLCLenV2 = 8192

// LLCType is the opcode of an LLC message: the first byte in version 1. A message of
// version 2 has the same type, and also llcV2Bit in its first byte. Its LLCLayout says
// which version it is.
type LLCType uint8

// llcV2Bit is set in the first byte of a message of version 2.
const llcV2Bit = 0x20

// The LLC messages (RFC 7609, appendix A.3). Only version 2 has LLCReqAddLink, only
// version 1 has the two continuations.
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

// Optional reports whether a receiver that does not know the opcode must ignore the
// message: the two high-order bits are 10 (RFC 7609, appendix A.3).
func (t LLCType) Optional() bool { return t>>6 == 0b10 }

// IsCDC reports whether a received message is a CDC message and not an LLC message:
// the two high-order bits of its first byte are 11.
func IsCDC(b []byte) bool { return len(b) > 0 && b[0]>>6 == 0b11 }

// The flags of LLC messages, in byte 3. The meaning of a bit depends on the message.
const (
	llcReply    = 0x80
	llcRejected = 0x40 // ADD LINK
	llcAll      = 0x40 // DELETE LINK
	llcOrderly  = 0x20 // DELETE LINK
	llcNegative = 0x20 // CONFIRM RKEY, its continuation, DELETE RKEY
	llcRetry    = 0x10 // CONFIRM RKEY
	llcNoEyec   = 0x03 // CONFIRM LINK
)

// LLCLayout is the layout of the header of an LLC message.
type LLCLayout uint8

// The layouts. The specification has the length in a header of version 2 in big-endian
// order. Linux sends it, and the number of RKeys in ADD LINK, in the byte order of the
// host. Parsers accept both. The layout of the first message of a peer is the layout
// for the messages to this peer.
const (
	// LLCV1 is version 1.
	LLCV1 LLCLayout = iota
	// LLCV2 is version 2 as specified, and of Linux on big-endian hosts.
	LLCV2
	// LLCV2Little is version 2 of Linux on little-endian hosts.
	LLCV2Little
)

// LLCLayoutFor returns the layout for the first message to a peer: version is the SMC
// version of the link group, os the operating system in the peer's FirstContactExt. The
// byte order of a Linux host is not known before it has sent a message. LLCV2Little is
// right until then, because Linux accepts the length of the first message in both byte
// orders.
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
	// Type is the first byte, without llcV2Bit if version 2 defines the message.
	Type   LLCType
	Layout LLCLayout // of the message
	Reply  bool      // the R flag
}

// ParseLLCHeader decodes the header of an LLC message, so that the caller can choose
// the parser. The opcode may be unknown. It returns ErrShort or ErrLength if the length
// of b is wrong or differs from the length in the header, and ErrType if b is a CDC
// message.
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
	// A message with an unknown opcode may have its length somewhere else. That the
	// opcode is unknown is the more important error.
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

// LLC is an LLC message: a ConfirmLink, AddLink, AddLinkCont, ReqAddLink, DeleteLink,
// ConfirmRKey, ConfirmRKeyCont, DeleteRKey, DeleteRKeyV2 or TestLink, not a pointer to
// one. AppendBinary appends LLCLen bytes in version 1. Messages that both versions have
// have a field Layout, whose zero value is version 1.
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

// ParseLLC decodes an LLC message of any type and version. The field Layout of the
// message has the version. For an unknown opcode the error is an *[OpcodeError]. ParseLLC
// allocates the interface value. The Parse functions of the messages do not allocate,
// except those of version 2 that have a list.
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

// AppendLLC appends m in the layout l; m.Layout is ignored. So a link group can keep
// one layout for all messages. It returns ErrVersion if the version of l does not have
// the message, otherwise the error of m.AppendBinary.
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

// checkLLC checks the header of a message, which must be of type want and version 1,
// and returns its flags.
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

// appendLLC appends a message of n bytes, or LLCLen if n is less, that is zero except
// for its header. It returns all of b, and the message as a part of it. In version 1
// the length must be LLCLen.
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
