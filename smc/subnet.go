// SPDX-License-Identifier: Apache-2.0

package smc

import "net/netip"

// SamePrefix reports whether a and b, each an address with its prefix length, are
// in the same subnet by the rule of RFC 7609, section 3.5.1.2: the same subnet number
// and the same prefix length.
func SamePrefix(a, b netip.Prefix) bool {
	return a.IsValid() && b.IsValid() && a.Bits() == b.Bits() && a.Masked() == b.Masked()
}
