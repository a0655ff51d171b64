// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

// The TCP option by which a SYN, and its SYN-ACK, announce SMC-R
// (RFC 7609, appendix A.1; RFC 6994 for shared experimental options).
const (
	// TCPOptionKind is the shared experimental option kind.
	TCPOptionKind = 254
	// TCPOptionLen is the length of the option in bytes.
	TCPOptionLen = 6
	// TCPOptionExID is "SMCR" in EBCDIC.
	TCPOptionExID uint32 = 0xE2D4C3D9
)

const (
	tcpOptEnd = 0
	tcpOptNop = 1
)

// AppendTCPOption appends the six bytes of the option to b. Padding to a
// multiple of four bytes is left to the caller.
func AppendTCPOption(b []byte) []byte {
	b = append(b, TCPOptionKind, TCPOptionLen)
	return binary.BigEndian.AppendUint32(b, TCPOptionExID)
}

// ParseTCPOptions reports whether the option area of a TCP header (what
// follows its first 20 bytes) holds the SMC-R option. Other experiments under
// the same kind are skipped, as is whatever follows the end-of-options byte.
// An option whose length does not fit is ErrLength; an SMC-R option in front
// of it is still reported.
//
// An option longer than TCPOptionLen is taken too, since RFC 6994 lets an
// experiment put data behind its ExID.
func ParseTCPOptions(opts []byte) (bool, error) {
	for len(opts) > 0 {
		switch opts[0] {
		case tcpOptEnd:
			return false, nil
		case tcpOptNop:
			opts = opts[1:]
			continue
		}
		if len(opts) < 2 {
			return false, fmt.Errorf("%w: TCP option %d has no length byte", ErrLength, opts[0])
		}
		n := int(opts[1])
		if n < 2 || n > len(opts) {
			return false, fmt.Errorf("%w: TCP option %d says %d bytes of %d", ErrLength, opts[0], n, len(opts))
		}
		if opts[0] == TCPOptionKind && n >= TCPOptionLen && binary.BigEndian.Uint32(opts[2:]) == TCPOptionExID {
			return true, nil
		}
		opts = opts[n:]
	}
	return false, nil
}
