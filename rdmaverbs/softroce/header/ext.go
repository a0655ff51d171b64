// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
	"fmt"
	"time"
)

// RETH is an RDMA extended transport header: 16 bytes (InfiniBand
// Architecture Specification, section 9.3.3).
type RETH []byte

// RETHFields are the fields of a RETH to encode.
type RETHFields struct {
	VA     uint64 // remote virtual address
	RKey   uint32
	DMALen uint32 // length of the whole RDMA operation, bytes
}

// Encode writes f into the 16 bytes of b.
func (b RETH) Encode(f *RETHFields) {
	_ = b[RETHLen-1]
	binary.BigEndian.PutUint64(b, f.VA)
	binary.BigEndian.PutUint32(b[8:], f.RKey)
	binary.BigEndian.PutUint32(b[12:], f.DMALen)
}

// VA returns the remote virtual address.
func (b RETH) VA() uint64 { return binary.BigEndian.Uint64(b) }

// RKey returns the remote key.
func (b RETH) RKey() uint32 { return binary.BigEndian.Uint32(b[8:]) }

// DMALen returns the length of the RDMA operation in bytes.
func (b RETH) DMALen() uint32 { return binary.BigEndian.Uint32(b[12:]) }

// ImmDt is the immediate data header: 4 bytes (InfiniBand Architecture
// Specification, section 9.3.6).
type ImmDt []byte

// Imm returns the immediate data.
func (b ImmDt) Imm() uint32 { return binary.BigEndian.Uint32(b) }

// SetImm sets the immediate data.
func (b ImmDt) SetImm(v uint32) { binary.BigEndian.PutUint32(b, v) }

// AETH is an ACK extended transport header: 4 bytes (InfiniBand Architecture
// Specification, section 9.3.5).
type AETH []byte

// Encode writes the syndrome and the message sequence number (24 bits).
func (b AETH) Encode(s Syndrome, msn uint32) {
	binary.BigEndian.PutUint32(b, uint32(s)<<24|msn&PSNMask)
}

// Syndrome returns the syndrome.
func (b AETH) Syndrome() Syndrome { return Syndrome(b[0]) }

// MSN returns the message sequence number, 24 bits.
func (b AETH) MSN() uint32 { return binary.BigEndian.Uint32(b) & PSNMask }

// Syndrome is the first byte of an AETH. The upper three bits are the kind of
// answer. The low five bits are a credit count, an RNR timer code or a NAK code
// (InfiniBand Architecture Specification, section 9.7.5.2.1, table 43).
type Syndrome uint8

// NAK syndromes. The comments name the NAK code.
const (
	NAKSequence      Syndrome = 0x60 // PSN sequence error
	NAKInvalid       Syndrome = 0x61 // invalid request
	NAKRemoteAccess  Syndrome = 0x62 // remote access error
	NAKRemoteOp      Syndrome = 0x63 // remote operational error
	NAKInvalidRDReqt Syndrome = 0x64 // invalid RD request, not used in RC
)

// ACKNoCredits is a positive acknowledgement without end-to-end flow control:
// its credit count is the invalid code.
const ACKNoCredits Syndrome = 0x1f

// ACK returns the syndrome of a positive acknowledgement with a credit code, 0
// to 31.
func ACK(credits uint8) Syndrome { return Syndrome(credits & 0x1f) }

// RNR returns the syndrome of a receiver-not-ready NAK with a timer code, 0 to
// 31.
func RNR(code uint8) Syndrome { return 0x20 | Syndrome(code&0x1f) }

// IsACK reports whether s is a positive acknowledgement.
func (s Syndrome) IsACK() bool { return s>>5 == 0 }

// IsRNR reports whether s is a receiver-not-ready NAK.
func (s Syndrome) IsRNR() bool { return s>>5 == 1 }

// IsNAK reports whether s is a NAK other than receiver-not-ready. The code may
// be reserved.
func (s Syndrome) IsNAK() bool { return s>>5 == 3 }

// Code returns the credit code, the timer code or the NAK code.
func (s Syndrome) Code() uint8 { return uint8(s & 0x1f) }

// String returns a description of s.
func (s Syndrome) String() string {
	switch {
	case s.IsACK():
		return fmt.Sprintf("ACK, credit code %d", s.Code())
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK, %v", RNRDelay(s.Code()))
	case s == NAKSequence:
		return "NAK, PSN sequence error"
	case s == NAKInvalid:
		return "NAK, invalid request"
	case s == NAKRemoteAccess:
		return "NAK, remote access error"
	case s == NAKRemoteOp:
		return "NAK, remote operational error"
	}
	return fmt.Sprintf("syndrome 0x%02x", uint8(s))
}

// rnrDelays holds the RNR NAK timer values in units of 10 microseconds
// (InfiniBand Architecture Specification, section 9.7.5.2.8, table 45).
var rnrDelays = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay returns how long a requester must wait after an RNR NAK with this
// timer code, 0 to 31.
func RNRDelay(code uint8) time.Duration {
	return time.Duration(rnrDelays[code&0x1f]) * 10 * time.Microsecond
}
