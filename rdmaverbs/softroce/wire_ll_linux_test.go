// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"net/netip"
	"slices"
	"testing"

	"smcr/internal/netnstest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
)

// llPair returns a function that opens a device in each namespace, both with
// their default GID as version 2 and without word of the peer's MAC.
func llPair(p *netnstest.Pair) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		end := func(h *netnstest.Host) verbstest.End {
			d := openIn(t, h, "eth0")
			gids, err := d.GIDs(1)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.Index(gids, rdmaverbs.GIDEntry{GID: defaultGID([6]byte(d.Attr().HWAddr)), Type: rdmaverbs.RoCEv2, NetDev: "eth0"})
			if i != 1 {
				t.Fatalf("the default GID of version 2 is entry %d", i)
			}
			return verbstest.End{Dev: d, SGIDIndex: i}
		}
		return verbstest.Pair{A: end(p.A), B: end(p.B)}
	}
}

// TestLinkLocal: RoCE version 2 between default GIDs goes on whether or not
// the netdevs have these addresses, and while they come and go.
func TestLinkLocal(t *testing.T) {
	netnstest.Require(t, "ethtool", "sysctl")
	noIPv6 := func(t *testing.T, h *netnstest.Host, off string) {
		t.Helper()
		if out, err := h.Command(t.Context(), "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6="+off).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	// The kernel is to compute checksums, which veth would leave out.
	for _, h := range []*netnstest.Host{p.A, p.B} {
		if out, err := h.Command(t.Context(), "ethtool", "-K", "eth0", "tx", "off").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, tt := range []struct{ name, a, b string }{{"Both", "0", "0"}, {"One", "1", "0"}, {"None", "1", "1"}} {
		t.Run(tt.name, func(t *testing.T) {
			noIPv6(t, p.A, tt.a)
			noIPv6(t, p.B, tt.b)
			verbstest.Run(t, llPair(p))
		})
	}
	t.Run("Changing", func(t *testing.T) {
		noIPv6(t, p.A, "0")
		pair := llPair(p)(t)
		a, b := verbstest.Connect(t, pair, verbstest.Config{MTU: rdmaverbs.MTU1024, Reads: 4})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 10 {
				ip := []string{"addr", "del", "dev", "eth0", netip.AddrFrom16(defaultGID([6]byte(p.A.Links[0].MAC))).String() + "/64"}
				if i%2 == 1 {
					ip[1] = "add"
					ip = append(ip, "nodad")
				}
				_ = p.A.Command(t.Context(), "ip", ip...).Run()
			}
		}()
		verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: 1, Ops: 400, MaxSize: 20000})
		<-done
		if c := pair.A.Dev.(*Device).Counters(); c.WrongICRC != 0 || c.Overruns != 0 {
			t.Errorf("%+v", c)
		}
	})
}
