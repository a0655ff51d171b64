// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// TestIPsecPolicies asks the kernel about connections from 10.9.0.1:5000 to
// 10.9.0.2:80, and the same by IPv6, with policies that ip(8) has set.
func TestIPsecPolicies(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	const tmpl = " tmpl proto esp mode transport"
	for _, tt := range []struct {
		name     string
		policies []string
		v4, v6   bool
	}{
		{"None", nil, false, false},
		{"Out", []string{"src 10.9.0.0/24 dst 10.9.0.2 dir out" + tmpl}, true, false},
		{"In", []string{"src 10.9.0.2 dst 10.9.0.1 dir in" + tmpl}, true, false},
		{"Forwarded", []string{"src 10.9.0.1 dst 10.9.0.2 dir fwd" + tmpl}, false, false},
		{"All", []string{"src 0.0.0.0/0 dst 0.0.0.0/0 dir out" + tmpl}, true, false},
		{"IPv6", []string{"src fd00:9::/64 dst ::/0 dir out" + tmpl}, false, true},
		{"OtherHost", []string{"src 10.9.0.1 dst 10.9.0.3 dir out" + tmpl}, false, false},
		{"UDP", []string{"src 10.9.0.1 dst 10.9.0.2 proto udp dir out" + tmpl}, false, false},
		{"Port", []string{"src 10.9.0.1 dst 10.9.0.2 proto tcp dport 80 dir out" + tmpl}, true, false},
		{"OtherPort", []string{"src 10.9.0.1 dst 10.9.0.2 proto tcp dport 81 dir out" + tmpl}, false, false},
		{"Blocked", []string{"src 10.9.0.1 dst 10.9.0.2 dir out action block"}, true, false},
		{"Exempt", []string{"src 10.9.0.0/24 dst 10.9.0.0/24 dir out priority 20" + tmpl, "src 10.9.0.1 dst 10.9.0.2 dir out priority 10"}, false, false},
		{"NotExempt", []string{"src 10.9.0.0/24 dst 10.9.0.0/24 dir out priority 10" + tmpl, "src 10.9.0.1 dst 10.9.0.2 dir out priority 20"}, true, false},
		{"Mark", []string{"src 10.9.0.1 dst 10.9.0.2 dir out mark 7" + tmpl}, true, false},
		{"MarkExempt", []string{"src 10.9.0.1 dst 10.9.0.2 dir out priority 20" + tmpl, "src 10.9.0.0/24 dst 10.9.0.2 dir out priority 10 mark 7"}, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := p.A.Do(func() error {
				for _, policy := range append([]string{"flush"}, tt.policies...) {
					args := []string{"xfrm", "policy", "flush"}
					if policy != "flush" {
						args = append([]string{"xfrm", "policy", "add"}, strings.Fields(policy)...)
					}
					if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
						return fmt.Errorf("ip %v: %w: %s", args, err, out)
					}
				}
				n, err := Open()
				if err != nil {
					return err
				}
				defer n.Close()
				for _, c := range []struct {
					local, remote string
					want          bool
				}{
					{"10.9.0.1:5000", "10.9.0.2:80", tt.v4},
					{"[::ffff:10.9.0.1]:5000", "[::ffff:10.9.0.2]:80", tt.v4},
					{"[fd00:9::1]:5000", "[fd00:9::2]:80", tt.v6},
				} {
					got, err := n.Secured(netip.MustParseAddrPort(c.local), netip.MustParseAddrPort(c.remote))
					if err != nil || got != c.want {
						t.Errorf("%s to %s: %v, %v; want %v", c.local, c.remote, got, err, c.want)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
