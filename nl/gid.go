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
	var b strings.Builder
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// IsZero reports whether the GID is unset.
func (g GID) IsZero() bool { return g == GID{} }

// ParseGID is the inverse of [GID.String].
func ParseGID(s string) (GID, error) {
	var g GID
	groups := strings.Split(s, ":")
	if len(groups) != len(g)/2 {
		return GID{}, fmt.Errorf("nl: GID %q has %d groups, not 8", s, len(groups))
	}
	for i, group := range groups {
		if len(group) != 4 {
			return GID{}, fmt.Errorf("nl: GID %q: group %q has not 4 digits", s, group)
		}
		if _, err := hex.Decode(g[2*i:], []byte(group)); err != nil {
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
