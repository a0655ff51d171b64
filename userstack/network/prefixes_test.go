// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"smcr/userstack/wire"
)

// TestProposedPrefixes: a proposal over IPv6 lists the prefixes of the netdev, at
// most eight and no link-local one (RFC 7609, section 3.5.1.2 and appendix A.2.2).
func TestProposedPrefixes(t *testing.T) {
	rt := Route{Local: []netip.Prefix{netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("10.0.0.1/8")}}
	for i := range 12 {
		rt.Local = append(rt.Local, netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::1/64", i)))
	}
	list := rt.IPv6Prefixes(wire.MaxIPv6Prefixes)
	var want []netip.Prefix
	for i := range 8 {
		want = append(want, netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/64", i)))
	}
	if !slices.Equal(list, want) {
		t.Fatalf("lists %v, want %v", list, want)
	}
}
