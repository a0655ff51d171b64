// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"net/netip"
	"testing"
)

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1:80", "[::ffff:10.0.0.1]:80": "10.0.0.1:80", "[fe80::1%eth0]:80": "[fe80::1]:80", "[fd00::1]:0": "[fd00::1]:0",
	} {
		if got := Plain(netip.MustParseAddrPort(in)); got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
	if got := Plain(netip.AddrPortFrom(netip.Addr{}, 80)); got != (netip.AddrPort{}) {
		t.Errorf("an invalid one: %v", got)
	}
}
