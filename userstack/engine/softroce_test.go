// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"smcr/internal/netnstest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
	"smcr/rdmaverbs/verbstest"
	"smcr/userstack/engine"
)

// pair returns a function that opens a device in each namespace, each with a
// loop of its own.
func pair(p *netnstest.Pair, typ rdmaverbs.GIDType) verbstest.Open {
	return pairSpin(p, typ, engine.DefaultSpin)
}

func pairSpin(p *netnstest.Pair, typ rdmaverbs.GIDType, spin time.Duration) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		open := func(h *netnstest.Host) rdmaverbs.Device {
			l, err := engine.New(spin)
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

// TestNoAllocs holds that neither packets nor messages cost an allocation, at the
// sender and the receiver together. What is kept in a sync.Pool is made anew after
// a garbage collection, hence the few that are allowed.
func TestNoAllocs(t *testing.T) {
	const messages, few = 100, 10
	p := netnstest.New(t, netnstest.Options{})
	for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
		t.Run(fmt.Sprintf("v%d", typ), func(t *testing.T) {
			// A loop that spins holds a processor, and AllocsPerRun leaves one.
			s := verbstest.NewStream(t, pairSpin(p, typ, 0), 64<<10)
			s.Run(messages)
			if n := testing.AllocsPerRun(5, func() { s.Run(messages) }); n > few && !raceDetector {
				t.Errorf("%v allocations for %d messages of 64 packets", n, messages)
			}
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
