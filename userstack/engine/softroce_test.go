// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
	"smcr/userstack/engine"
)

// pair returns a function that opens a device in each namespace, each with some
// loops of its own.
func pair(p *netnstest.Pair, typ rdmaverbs.GIDType, loops int) verbstest.Open {
	return pairSpin(p, typ, loops, engine.DefaultSpin)
}

func pairSpin(p *netnstest.Pair, typ rdmaverbs.GIDType, loops int, spin time.Duration) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		open := func(h *netnstest.Host) rdmaverbs.Device {
			var ls []softroce.Poller
			for range loops {
				l, err := engine.New(spin)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := l.Close(); err != nil {
						t.Error(err)
					}
				})
				ls = append(ls, l)
			}
			var dev rdmaverbs.Device
			if err := h.Do(func() (err error) {
				dev, err = softroce.New(softroce.WithPoller(ls...), softroce.WithWriteOnly()).Open(context.Background(), "soft-eth0")
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
	mtus := []int{1500, 9000}
	if testing.Short() {
		mtus = mtus[:1]
	}
	for _, mtu := range mtus {
		p := netnstest.New(t, netnstest.Options{MTU: mtu})
		for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
			t.Run(fmt.Sprintf("v%d/%d", typ, mtu), func(t *testing.T) { verbstest.Run(t, pair(p, typ, 1)) })
		}
	}
	p := netnstest.New(t, netnstest.Options{MTU: 1500})
	t.Run("shards", func(t *testing.T) { verbstest.Run(t, pair(p, rdmaverbs.RoCEv2, 3)) })
}

// TestShards: each packet of a queue pair is taken by the loop that its
// protection domain belongs to, whatever their order.
func TestShards(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 1500})
	const shards, conns, messages = 3, 12, 20
	devs := pair(p, rdmaverbs.RoCEv2, shards)(t)
	var mu sync.Mutex
	threads := make([]map[int]bool, conns) // that told of what came, for each connection
	for i := range conns {
		threads[i] = map[int]bool{}
		got := make(chan struct{}, messages)
		a, b := verbstest.Connect(t, devs, verbstest.Config{Notify: func() {
			mu.Lock()
			threads[i][unix.Gettid()] = true
			mu.Unlock()
			got <- struct{}{}
		}})
		mr, _ := b.MR(64, rdmaverbs.AccessLocalWrite)
		for n := range uint64(messages) {
			b.Recv(rdmaverbs.RecvWR{ID: n, SG: rdmaverbs.SGE{MR: mr, Len: 64}})
			a.Send(rdmaverbs.SendWR{ID: n, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Inline, InlineData: []byte("message")})
			<-got
			b.OKRecv(n, 1)
		}
	}
	all := map[int]int{}
	for i, of := range threads {
		if len(of) != 1 {
			t.Errorf("connection %d was served by %d threads", i, len(of))
		}
		for tid := range of {
			all[tid]++
		}
	}
	if len(all) != shards {
		t.Errorf("%d threads served %d connections, want %d: %v", len(all), conns, shards, all)
	}
}

// TestStress posts thousands of work requests of all kinds and sizes in both
// directions at once.
func TestStress(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
		t.Run(fmt.Sprintf("v%d", typ), func(t *testing.T) {
			a, b := verbstest.Connect(t, pair(p, typ, 1+int(typ))(t), verbstest.Config{MTU: smc.MTU1024, Reads: 4})
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
			s := verbstest.NewStream(t, pairSpin(p, typ, 1, 0), 64<<10)
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
				verbstest.Bench(b, pair(p, typ, 1))
			})
		}
	}
}
