// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"

	"smcr/smc"
)

// Errors of the encoders and decoders; test for them with errors.Is.
var (
	// ErrShort: more bytes are needed. For ParseHeader it means that the
	// reader has to read on; for every other parser that the message was cut.
	ErrShort = errors.New("wire: message is truncated")
	// ErrLength: the length field, or the number of bytes given, is not what
	// the message type has.
	ErrLength = errors.New("wire: wrong message length")
	// ErrEyecatcher: no CLC message, or one whose trailer is missing. In a
	// byte stream it means that the peer speaks no SMC, or is out of step.
	ErrEyecatcher = errors.New("wire: no SMC eyecatcher")
	// ErrType: the message is of another type than the one asked for, or of
	// a type that is not defined.
	ErrType = errors.New("wire: unexpected message type")
	// ErrVersion: the message is of an SMC version that this package cannot
	// read.
	ErrVersion = errors.New("wire: unsupported SMC version")
	// ErrMode: the message is for SMC-D.
	ErrMode = errors.New("wire: message is not for SMC-R")
	// ErrRange: a field holds a value that its message cannot carry.
	ErrRange = errors.New("wire: field out of range")
	// ErrOpcode: an LLC message of an opcode that this package does not
	// know. The error is an *OpcodeError, which tells what to do.
	ErrOpcode = errors.New("wire: unsupported LLC opcode")
)

// OpcodeError says that an LLC message has an opcode that this package does
// not implement. It matches ErrOpcode.
type OpcodeError struct {
	Opcode LLCType
}

// Error names the opcode and how RFC 7609 wants it handled.
func (e *OpcodeError) Error() string {
	if e.Discard() {
		return fmt.Sprintf("%v 0x%02x: optional, discard it", ErrOpcode, uint8(e.Opcode))
	}
	return fmt.Sprintf("%v 0x%02x: protocol error", ErrOpcode, uint8(e.Opcode))
}

// Is makes errors.Is(err, ErrOpcode) true.
func (e *OpcodeError) Is(target error) bool { return target == ErrOpcode }

// Discard reports whether the message has to be dropped without a word
// (opcodes b'10xxxxxx'); otherwise it is a protocol error (RFC 7609,
// appendix A.3).
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
