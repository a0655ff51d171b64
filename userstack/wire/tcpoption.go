// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// The TCP option by which a SYN, and its SYN-ACK, announce SMC-R (RFC 7609, section
// 3.1 and appendix A.1). Its kind is that of RFC 6994 for experiments, which share it
// and are told apart by an identifier (ExID).
const (
	TCPOptionKind        = 254            // kind, the first byte
	TCPOptionLen         = 6              // length of the whole option in bytes, the second byte
	TCPOptionExID uint32 = EyecatcherSMCR // ExID, in network byte order
)

// The kinds of TCP options that have no length.
const (
	tcpOptEnd = 0
	tcpOptNop = 1
)

// AppendTCPOption appends the TCPOptionLen bytes of the option to b. It does not pad
// the options to a multiple of four bytes.
func AppendTCPOption(b []byte) []byte {
	b = append(b, TCPOptionKind, TCPOptionLen)
	return binary.BigEndian.AppendUint32(b, TCPOptionExID)
}

// HasTCPOption reports whether the option area of a TCP header (what follows its
// first 20 bytes) contains the option. It skips other experiments of the same kind.
// It stops at the end-of-options byte, and at an option whose length is not possible.
//
// An option with the ExID and another length is not the option: RFC 7609 gives it 6
// bytes, and the program of package tcpopt ignores others.
func HasTCPOption(opts []byte) bool {
	for len(opts) > 0 && opts[0] != tcpOptEnd {
		if opts[0] == tcpOptNop {
			opts = opts[1:]
			continue
		}
		if len(opts) < 2 {
			return false
		}
		n := int(opts[1])
		if n < 2 || n > len(opts) {
			return false
		}
		if opts[0] == TCPOptionKind && n == TCPOptionLen && binary.BigEndian.Uint32(opts[2:]) == TCPOptionExID {
			return true
		}
		opts = opts[n:]
	}
	return false
}
