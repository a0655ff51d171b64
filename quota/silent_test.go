// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestSilent: what is learnt of an origin ages, and has room for so many.
func TestSilent(t *testing.T) {
	now := time.Unix(1e9, 0)
	peer := netip.MustParseAddr("192.0.2.1")
	var all Silents[int]
	const a, b = -1, -2
	times := func(from, n int, every time.Duration) (pause time.Duration) {
		for range n {
			now = now.Add(every)
			pause = max(pause, all.Add(now, from, peer))
		}
		return pause
	}
	if p := times(a, 10*SilentMost, SilentFor); p != 0 {
		t.Errorf("one now and then: no announcement for %v", p)
	}
	for want := MuteFirst; want <= MuteLast; want *= 2 {
		if p := times(a, SilentMost+1, time.Second); p != min(want, MuteLast) {
			t.Errorf("again: no announcement for %v, want %v", p, want)
		}
		mutes := slices.Collect(all.Mutes(now))
		if len(mutes) != 1 || mutes[0].Remote != peer || mutes[0].Left <= 0 || mutes[0].Left > want || !all.Muted(now, a) || all.Muted(now, b) {
			t.Errorf("said to be silent: %v", mutes)
		}
		if p := times(a, 3*SilentMost, 0); p != 0 {
			t.Errorf("those that were announced before: %v", p)
		}
		now = all.of[a].until
	}
	if all.Muted(now, a) || len(slices.Collect(all.Mutes(now))) != 0 {
		t.Error("silent for ever")
	}
	for range 10 {
		times(b, SilentMost, 0)
		all.Spoke(b)
		all.Spoke(b)
		if all.of[b].n > SilentMost/4 {
			t.Fatalf("one that speaks in between has %d", all.of[b].n)
		}
		now = now.Add(time.Second)
		all.of[b].n = 0
	}
	for i := range 2 * MostSilents {
		all.Add(now, i, peer)
	}
	if len(all.of) != MostSilents || all.of[a] == nil {
		t.Errorf("%d are remembered, want %d", len(all.of), MostSilents)
	}
	var over []int
	note := func(from int) { over = append(over, from) }
	all.Forget(now, note)
	if !slices.Equal(over, []int{a}) || len(all.of) != MostSilents {
		t.Errorf("may be announced to again: %d; %d are remembered", over, len(all.of))
	}
	all.Forget(now.Add(3*MuteLast), note)
	if len(all.of) != 0 {
		t.Errorf("%d are remembered for ever", len(all.of))
	}
	all.Spoke(a) // nobody knows it
}
