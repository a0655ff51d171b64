// SPDX-License-Identifier: Apache-2.0

package smc

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// GID is the global identifier of a RoCE port: 16 bytes in network byte order,
// with the form of an IPv6 address (InfiniBand specification, section 4.1.1).
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

// IsZero reports whether g is the reserved GID, all zero, which means that there
// is none.
func (g GID) IsZero() bool { return g == GID{} }

// Addr returns g as an IP address. A GID that maps an IPv4 address
// (::ffff:a.b.c.d) gives the IPv4 address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IPv4 returns the IPv4 address in the GID of a port that SMC-R version 2 can
// use: ::ffff:a.b.c.d, or ::a.b.c.d, which Linux takes too. For any other GID ok
// is false.
func (g GID) IPv4() (a netip.Addr, ok bool) {
	zero := [10]byte(g[:10]) == [10]byte{}
	low := [4]byte(g[12:])
	mapped := g[10] == 0xff && g[11] == 0xff
	if !zero || low == [4]byte{} || !mapped && (g[10] != 0 || g[11] != 0) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4(low), true
}

// GIDFromIPv4 returns the RoCE version 2 GID of an IPv4 address, the mapped
// form ::ffff:a.b.c.d. For any other address it is zero.
func GIDFromIPv4(a netip.Addr) GID {
	if a = a.Unmap(); !a.Is4() {
		return GID{}
	}
	return a.As16()
}

// ParseGID is the inverse of [GID.String]. It takes no shorter form.
func ParseGID(s string) (GID, error) {
	var g GID
	if n := strings.Count(s, ":") + 1; n != len(g)/2 {
		return GID{}, fmt.Errorf("smc: GID %q has %d groups, not 8", s, n)
	}
	rest := s
	for i := 0; i < len(g); i += 2 {
		var group string
		if group, rest, _ = strings.Cut(rest, ":"); len(group) != 4 {
			return GID{}, fmt.Errorf("smc: GID %q: group %q has not 4 digits", s, group)
		}
		var digits [4]byte
		copy(digits[:], group)
		if _, err := hex.Decode(g[i:], digits[:]); err != nil {
			return GID{}, fmt.Errorf("smc: GID %q: %w", s, err)
		}
	}
	return g, nil
}
