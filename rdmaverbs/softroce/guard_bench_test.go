// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"testing"

	"smcr/guard"
	"smcr/rdmaverbs/softroce/header"
)

// guardings are the hot calls of a device with a guard and without one. Each function makes
// one call.
func guardings(tb testing.TB, g *guard.Guard) map[string]func() {
	c := trainCore(tb)
	q := &qp{dev: &Device{guard: g}}
	data := c.write(header.WriteOnly, 0, 0, 1<<10, make([]byte, 1<<10)).bytes()
	at := psn(coreRQPSN)
	receive := func() {
		header.BTH(data).SetPSN(uint32(at))
		t, err := header.ParseTransport(data)
		if err != nil {
			tb.Fatal(err)
		}
		c.e.receive(c.now, &t)
		at = at.add(1)
	}
	packets := 0
	take := guardReader(g, func() bool { packets++; return false }, func() {})
	return map[string]func(){
		// A packet of 1 KiB that a queue pair executes, see shard.deliver.
		"receive": func() {
			if !q.guarded(receive) {
				tb.Fatal("a panic")
			}
		},
		// The guard alone, as it is around each call of a queue pair.
		"empty": func() {
			if !q.guarded(func() { packets++ }) {
				tb.Fatal("a panic")
			}
		},
		// The guard around the packets that were read at once.
		"reader": func() { take() },
	}
}

// guardedAndNot are the two cases that the tests of this file compare.
var guardedAndNot = []struct {
	name  string
	guard *guard.Guard
}{{"without", nil}, {"with", new(guard.Guard)}}

// BenchmarkGuard shows what the guard costs where packets are handled.
func BenchmarkGuard(b *testing.B) {
	for _, name := range []string{"receive", "empty", "reader"} {
		for _, who := range guardedAndNot {
			b.Run(name+"/"+who.name, func(b *testing.B) {
				call := guardings(b, who.guard)[name]
				b.ReportAllocs()
				for b.Loop() {
					call()
				}
			})
		}
	}
}

// TestGuardNoAllocs: the guard does not allocate where packets are handled.
func TestGuardNoAllocs(t *testing.T) {
	for _, who := range guardedAndNot {
		for name, call := range guardings(t, who.guard) {
			if n := testing.AllocsPerRun(100, call); n != 0 {
				t.Errorf("%s %s a guard: %v allocations", name, who.name, n)
			}
		}
	}
}
