// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"net/netip"
	"testing"
)

// TestLimitAddresses: which addresses count as one host.
func TestLimitAddresses(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "::ffff:10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"fd00::1:2:3:4", "fd00::5:6:7:8", true},
		{"fd00:0:0:1::1", "fd00:0:0:2::1", false},
		{"fe80::1%eth0", "fe80::1%eth0", true},
		{"fe80::1%eth0", "fe80::2%eth0", false},
		{"fe80::1%eth0", "fe80::1%eth1", false},
	} {
		a, b := netip.MustParseAddr(tt.a), netip.MustParseAddr(tt.b)
		if same := Host(a) == Host(b); same != tt.same {
			t.Errorf("%s and %s count as one host: %v, want %v", a, b, same, tt.same)
		}
	}
}
