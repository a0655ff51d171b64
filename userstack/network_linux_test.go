// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"smcr/internal/netnstest"
)

// TestRouteTwoNetDevs: after the first of two netdevs in a subnet was down the
// route takes the second one, also from the address of the first. Either may
// serve, and the prefix of the address is known.
func TestRouteTwoNetDevs(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	err := p.A.Do(func() error {
		for _, c := range []string{
			"link add eth7 type veth peer name eth8",
			"addr add 10.77.0.70/24 dev eth7",
			"link set eth8 up",
			"link set eth7 up",
			"link set eth0 down",
			"link set eth0 up",
		} {
			if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", c, err, out)
			}
		}
		n, err := newHostNetwork()
		if err != nil {
			return err
		}
		defer n.close()
		own, remote := p.A.Links[0].IPv4, p.B.Links[0].IPv4
		rt, err := n.Route(own, remote)
		if err != nil {
			return err
		}
		if rt.NetDev != "eth7" || !slices.Equal(rt.Peers, []string{"eth0"}) {
			t.Errorf("route over %s, peers %q; want eth7, eth0", rt.NetDev, rt.Peers)
		}
		for _, local := range []netip.Addr{own, netip.MustParseAddr("10.77.0.70")} {
			if got, ok := rt.prefixOf(local); !ok || got != netip.PrefixFrom(local, 24) {
				t.Errorf("prefix of %s: %v, %v", local, got, ok)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
