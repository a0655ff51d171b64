// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"smcr/internal/netnstest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
	"smcr/rdmaverbs/verbstest"
	"smcr/userstack/engine"
)

// pair returns a function that opens a device in each namespace, each with a
// loop of its own.
func pair(p *netnstest.Pair, typ rdmaverbs.GIDType) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		open := func(h *netnstest.Host) rdmaverbs.Device {
			l, err := engine.New(engine.DefaultSpin)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
			var dev rdmaverbs.Device
			if err := h.Do(func() (err error) {
				dev, err = softroce.New(softroce.WithPoller(l), softroce.WithWriteOnly()).Open(context.Background(), "soft-eth0")
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = dev.Close() })
			return dev
		}
		end := func(d, peer rdmaverbs.Device) verbstest.End {
			gids, err := d.GIDs(1)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(gids, func(g rdmaverbs.GIDEntry) bool {
				return g.Type == typ && (typ == rdmaverbs.RoCEv1 || g.GID.Addr().Is4())
			})
			if i < 0 {
				t.Fatalf("no GID of type %v: %v", typ, gids)
			}
			port, err := peer.Port(1)
			if err != nil {
				t.Fatal(err)
			}
			return verbstest.End{Dev: d, SGIDIndex: i, DMAC: port.HWAddr}
		}
		a, b := open(p.A), open(p.B)
		return verbstest.Pair{A: end(a, b), B: end(b, a)}
	}
}

// TestVerbs runs the verbs suite on software RoCE that a loop drives.
func TestVerbs(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		p := netnstest.New(t, netnstest.Options{MTU: mtu})
		for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
			t.Run(fmt.Sprintf("v%d/%d", typ, mtu), func(t *testing.T) { verbstest.Run(t, pair(p, typ)) })
		}
	}
}

// TestStress posts thousands of work requests of all kinds and sizes in both
// directions at once.
func TestStress(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
		t.Run(fmt.Sprintf("v%d", typ), func(t *testing.T) {
			a, b := verbstest.Connect(t, pair(p, typ)(t), verbstest.Config{MTU: rdmaverbs.MTU1024, Reads: 4})
			verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: uint64(typ), Ops: 2000, MaxSize: 100000})
		})
	}
}

// BenchmarkVerbs runs the benchmarks of the verbs suite between two devices, each
// with a loop of its own.
func BenchmarkVerbs(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
			b.Run(fmt.Sprintf("v%d/mtu=%d", typ, mtu), func(b *testing.B) {
				p := netnstest.New(b, netnstest.Options{MTU: mtu})
				verbstest.Bench(b, pair(p, typ))
			})
		}
	}
}
