// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/userstack/wire"
)

// eyeCatcherLen is the size in bytes of the eye catcher at the start of an
// RMBE (RFC 7609, section 4.2).
const eyeCatcherLen = 4

// eyeCatcher is "SMCR" in EBCDIC. Its content matters to the owner of the element only.
var eyeCatcher = [eyeCatcherLen]byte{0xE2, 0xD4, 0xC3, 0xD9}

// EyeCatcher says whether an RMB element begins with an eye catcher (RFC 7609, section
// 4.2).
type EyeCatcher uint8

const (
	// EyeNone: the data begins at the first byte.
	EyeNone EyeCatcher = iota
	// EyeUnsettled: the first contact has yet to settle it. The element gets an eye
	// catcher, because nothing may be written to it later, and [Protocol.LayOut] follows.
	EyeUnsettled
	// EyeUsed: the data begins behind the eye catcher.
	EyeUsed
)

// ring maps positions in a byte stream, counted from 0 and never wrapping,
// to the wrapping cursors of one RMBE and back.
type ring struct {
	start int // offset of the first data byte in the element
	size  int // data bytes
}

func newRing(elem int, eye bool) ring {
	if eye {
		return ring{start: eyeCatcherLen, size: elem - eyeCatcherLen}
	}
	return ring{size: elem}
}

// cursor returns pos as it stands in a CDC message.
func (r ring) cursor(pos uint64) wire.Cursor {
	n := uint64(r.size)
	return wire.Cursor{Wrap: uint16(pos / n), Count: uint32(r.start) + uint32(pos%n)}
}

// off returns the offset of pos in the element.
func (r ring) off(pos uint64) int { return r.start + int(pos%uint64(r.size)) }

// ahead returns how far cu is ahead of pos, modulo the 65536 windows that a
// cursor can tell apart: what is behind comes out as a distance beyond any
// window. ok is false for an offset outside the data area. The offset one
// past the last byte is taken as the start of the next round.
func (r ring) ahead(cu wire.Cursor, pos uint64) (n uint64, ok bool) {
	if uint64(cu.Count) < uint64(r.start) || uint64(cu.Count) > uint64(r.start+r.size) {
		return 0, false
	}
	size := uint64(r.size)
	mod := size << 16
	at := uint64(cu.Wrap)*size + uint64(cu.Count) - uint64(r.start)
	return (at%mod + mod - pos%mod) % mod, true
}

// span returns n bytes of the ring buf from position pos.
func span(buf []byte, pos uint64, n int) (a, b []byte) {
	off := int(pos % uint64(len(buf)))
	if m := len(buf) - off; n > m {
		return buf[off:], buf[:n-m]
	}
	return buf[off : off+n], nil
}
