// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"

	"smcr/smc"
)

// Errors of the encoders and decoders; test for them with errors.Is.
var (
	// ErrShort means that bytes are missing. After ParseHeader the caller must read
	// more; for every other parser the message is incomplete.
	ErrShort = errors.New("wire: message is truncated")
	// ErrLength means that the length field, or the number of bytes, is not one that
	// the type of the message has.
	ErrLength = errors.New("wire: wrong message length")
	// ErrEyecatcher means that there is no CLC message, or that its trailer is wrong.
	// In a byte stream the peer does not use SMC, or bytes were lost.
	ErrEyecatcher = errors.New("wire: no SMC eyecatcher")
	// ErrType means that the message has a type that is not defined, or another type
	// than the function parses.
	ErrType = errors.New("wire: unexpected message type")
	// ErrVersion means that the message has an SMC version that the function does not
	// support.
	ErrVersion = errors.New("wire: unsupported SMC version")
	// ErrMode means that the message is for SMC-D.
	ErrMode = errors.New("wire: message is not for SMC-R")
	// ErrRange means that the value of a field does not fit into the message.
	ErrRange = errors.New("wire: field out of range")
	// ErrOpcode means that an LLC message has an opcode that this package does not
	// know. The error is an *[OpcodeError], which says what the receiver must do.
	ErrOpcode = errors.New("wire: unsupported LLC opcode")
)

// OpcodeError says that an LLC message has an opcode that this package does
// not implement. It matches ErrOpcode.
type OpcodeError struct {
	Opcode LLCType
}

// Error returns the opcode and what RFC 7609 requires of the receiver.
func (e *OpcodeError) Error() string {
	if e.Discard() {
		return fmt.Sprintf("%v 0x%02x: optional, discard it", ErrOpcode, uint8(e.Opcode))
	}
	return fmt.Sprintf("%v 0x%02x: protocol error", ErrOpcode, uint8(e.Opcode))
}

// Is reports whether target is [ErrOpcode].
func (e *OpcodeError) Is(target error) bool { return target == ErrOpcode }

// Discard reports whether the receiver must ignore the message: the two high-order bits
// of the opcode are 10. Otherwise the message is a protocol error (RFC 7609, appendix
// A.3).
func (e *OpcodeError) Discard() bool { return e.Opcode.Optional() }

func rangeErr(field string, v any) error {
	return fmt.Errorf("%w: %s %v", ErrRange, field, v)
}

func check24(qpn smc.QPN, psn smc.PSN) error {
	if qpn > smc.Max24 {
		return rangeErr("queue pair number", qpn)
	}
	if psn > smc.Max24 {
		return rangeErr("packet sequence number", psn)
	}
	return nil
}
