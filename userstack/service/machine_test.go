// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestAddressesFile(t *testing.T) {
	var addrs []netip.Addr
	for _, a := range []string{"192.0.2.1", "127.0.0.1", "::1", "fe80::1", "2001:db8::1", "::ffff:192.0.2.2", "224.0.0.1", "0.0.0.0"} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	b := appendAddresses(nil, "id", addrs)
	if want := "smcr addresses 1 id\n192.0.2.1\n2001:db8::1\n192.0.2.2\n"; string(b) != want {
		t.Errorf("%q, want %q", b, want)
	}
	got := slices.SortedFunc(maps.Keys(parseAddresses(b, "id")), netip.Addr.Compare)
	if fmt.Sprint(got) != "[192.0.2.1 192.0.2.2 2001:db8::1]" {
		t.Error(got)
	}
	if n := len(parseAddresses(b, "another")); n != 0 {
		t.Errorf("%d addresses of another machine", n)
	}
}

// TestAddressesHostile: what a file says has no effect on addresses that say nothing about a
// namespace, and one file takes only so much memory.
func TestAddressesHostile(t *testing.T) {
	head := "smcr addresses 1 id\n"
	for name, text := range map[string]string{
		"empty": "", "no head": "192.0.2.1\n", "another version": strings.Replace(head, "1", "2", 1) + "192.0.2.1\n",
		"loopback": head + "127.0.0.1\n::1\n::ffff:127.0.0.1\n", "unspecified": head + "0.0.0.0\n::\n::ffff:0.0.0.0\n",
		"link-local": head + "169.254.0.1\nfe80::1\nfe80::1%eth0\n", "multicast": head + "224.0.0.1\nff02::1\n",
		"prefixes": head + "0.0.0.0/0\n10.0.0.0/8\n", "a zone": head + "2001:db8::1%eth0\n",
		"no addresses":  head + "\x00\xff\n \n10.0.0\n" + strings.Repeat("x", 1<<16),
		"two on a line": head + "192.0.2.1 192.0.2.2\n", "CRLF": head + "192.0.2.1\r\n",
	} {
		if got := parseAddresses([]byte(text), "id"); len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
	var many strings.Builder
	many.WriteString(head)
	for a, n := netip.MustParseAddr("10.0.0.1"), 0; n < 2*maxAddrs; a, n = a.Next(), n+1 {
		fmt.Fprintln(&many, a)
	}
	if got := parseAddresses([]byte(many.String()), "id"); len(got) != maxAddrs {
		t.Errorf("%d addresses", len(got))
	}
}

func FuzzAddresses(f *testing.F) {
	f.Add([]byte("smcr addresses 1 id\n192.0.2.1\n::ffff:192.0.2.2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := slices.Collect(maps.Keys(parseAddresses(b, "id")))
		if again := parseAddresses(appendAddresses(nil, "id", got), "id"); len(again) != len(got) {
			t.Errorf("%v becomes %v", got, again)
		}
	})
}
