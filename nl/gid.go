// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// A GID is the global identifier of a RoCE port: 16 bytes in network order.
type GID [16]byte

// String returns eight groups of four hexadecimal digits, uncompressed, as the
// kernel and the RDMA tools write a GID.
func (g GID) String() string {
	b := make([]byte, 0, 39)
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			b = append(b, ':')
		}
		b = hex.AppendEncode(b, g[i:i+2])
	}
	return string(b)
}

// IsZero reports whether the GID is unset.
func (g GID) IsZero() bool { return g == GID{} }

// ParseGID is the inverse of [GID.String].
func ParseGID(s string) (GID, error) {
	var g GID
	if n := strings.Count(s, ":") + 1; n != len(g)/2 {
		return GID{}, fmt.Errorf("nl: GID %q has %d groups, not 8", s, n)
	}
	rest := s
	for i := 0; i < len(g); i += 2 {
		var group string
		if group, rest, _ = strings.Cut(rest, ":"); len(group) != 4 {
			return GID{}, fmt.Errorf("nl: GID %q: group %q has not 4 digits", s, group)
		}
		var digits [4]byte
		copy(digits[:], group)
		if _, err := hex.Decode(g[i:], digits[:]); err != nil {
			return GID{}, fmt.Errorf("nl: GID %q: %w", s, err)
		}
	}
	return g, nil
}

// lenientGID parses a GID the kernel sent. A link that is not set up yet has
// none, which is no reason to refuse the whole table.
func lenientGID(s string) GID {
	g, err := ParseGID(s)
	if err != nil {
		return GID{}
	}
	return g
}
