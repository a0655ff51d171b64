// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"net/netip"
	"testing"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestPlaces has devices and addresses where SMC-R is not possible.
func TestPlaces(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	a, at := b.index(b.A, b.A.Links[0].Name), b.index(b.B, b.B.Links[0].Name)
	net4, net6 := netip.PrefixFrom(b.B.Links[0].IPv4, 24), netip.MustParsePrefix(b.B.Addr6()+"/64")
	all4 := netip.MustParsePrefix("0.0.0.0/0")
	host := netip.PrefixFrom(b.B.Links[0].IPv4, 32)
	const no, routed = smc.DiagNoSMCRDev, smc.DiagNoRoute
	for _, step := range []struct {
		name   string
		d      int // of the client, or of the server
		places []Place
		taken  [2]int64 // over IPv4 and IPv6
	}{
		{"no device", 0, []Place{{Dev: a, Why: no}}, [2]int64{0, 0}},
		{"IPv4 alone", 0, []Place{{Dev: a, Why: routed}, {Dev: a, Prefix: all4}}, [2]int64{1, 0}},
		{"a subnet of IPv6", 0, []Place{{Dev: a, Why: routed}, {Dev: a, Prefix: net6}}, [2]int64{0, 1}},
		{"subnets", 0, []Place{{Dev: a, Why: routed}, {Dev: a, Prefix: net4}, {Dev: a, Prefix: net6}}, [2]int64{1, 1}},
		{"an address less", 0, []Place{{Dev: a, Prefix: net4}, {Dev: a, Prefix: host, Why: no}}, [2]int64{0, 1}},
		{"by any device", 0, []Place{{Dev: a}, {Prefix: host, Why: no}}, [2]int64{0, 1}},
		{"another device", 0, []Place{{Dev: a + 100, Why: no}}, [2]int64{1, 1}},
		{"nothing is known", 0, nil, [2]int64{1, 1}},
		{"no device of the server", 1, []Place{{Dev: at, Why: no}}, [2]int64{0, 0}},
		{"nothing is known of the server", 1, nil, [2]int64{1, 1}},
	} {
		b.must(b.d[step.d].SetPlaces(step.places))
		for i, address := range []string{b.B.Addr(), b.B.Addr6()} {
			before := b.taken[1].Load()
			b.works(b.listen(address))
			if n := b.taken[1].Load() - before; n != step.taken[i] {
				t.Errorf("%s: %d connections to %s were taken, want %d", step.name, n, address, step.taken[i])
			}
		}
	}
	b.wantCount(no, 4)
	b.wantCount(routed, 2)
	b.wantCount(smc.DiagPeerNoSMC, 2)
	all, err := b.d[1].Counts()
	if len(all) != 1 || all[0].Why != no || all[0].Side != smc.Server || all[0].N != 2 {
		t.Errorf("the server counts %+v, %v", all, err)
	}
}
