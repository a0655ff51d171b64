// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"smcr/guard"
)

// guardedAndNot are the two cases that the tests of this file compare.
var guardedAndNot = []struct {
	name  string
	guard *guard.Guard
}{{"without", nil}, {"with", new(guard.Guard)}}

// BenchmarkGuard shows what the guard costs in a part of a round with so many events. An
// operation is a part of a round.
func BenchmarkGuard(b *testing.B) {
	for _, events := range []int{1, 16} {
		for _, who := range guardedAndNot {
			b.Run(fmt.Sprint(events, " events/", who.name), func(b *testing.B) {
				var x faults
				x.guard.Store(who.guard)
				handled := 0
				handle := func(int) { handled++ }
				b.ReportAllocs()
				for b.Loop() {
					x.each(eventTask, events, handle)
				}
			})
		}
	}
}

// TestGuardNoAllocs: the guard does not allocate in a round.
func TestGuardNoAllocs(t *testing.T) {
	for _, who := range guardedAndNot {
		var x faults
		x.guard.Store(who.guard)
		handled := 0
		if n := testing.AllocsPerRun(100, func() { x.each(eventTask, 4, func(int) { handled++ }) }); n != 0 {
			t.Errorf("%s a guard: %v allocations", who.name, n)
		}
		if handled < 100*4 {
			t.Errorf("%s a guard: %d events", who.name, handled)
		}
	}
}
