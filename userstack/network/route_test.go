// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net/netip"
	"testing"
)

// TestSubnetOverOtherNetDev: a connection to the address of a netdev that is
// down comes over another one in the same subnet, whose prefix then counts (RFC
// 7609, section 3.5.1.2).
func TestSubnetOverOtherNetDev(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	for _, tt := range []struct {
		name  string
		own   []netip.Prefix // of the netdev of the route
		local netip.Addr
		as    netip.Prefix
	}{
		{"Own", []netip.Prefix{prefix("10.7.0.9/16"), prefix("10.7.0.1/16")}, addr("10.7.0.1"), prefix("10.7.0.1/16")},
		{"OfOther", []netip.Prefix{prefix("10.9.0.1/16"), prefix("10.7.1.1/16")}, addr("10.7.0.1"), prefix("10.7.1.1/16")},
		{"OfOtherAddress", []netip.Prefix{prefix("10.9.0.1/16"), prefix("10.7.0.1/16")}, addr("10.9.0.1"), prefix("10.9.0.1/16")},
		{"OtherSubnet", []netip.Prefix{prefix("10.9.0.1/16")}, addr("10.7.0.1"), netip.Prefix{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rt := Route{Local: tt.own}
			if got, ok := rt.PrefixOf(tt.local); got != tt.as || ok != tt.as.IsValid() {
				t.Errorf("prefixOf is %v, %t, want %v", got, ok, tt.as)
			}
		})
	}
}
