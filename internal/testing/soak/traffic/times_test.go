// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"
	"time"
)

// TestTimes: what is said of times is so, up to a step.
func TestTimes(t *testing.T) {
	var all times
	for i := range 100 {
		all.took(time.Duration(i+1) * time.Millisecond)
	}
	before := all.load()
	for share, want := range map[float64]time.Duration{0.5: 50 * time.Millisecond, 0.99: 99 * time.Millisecond, 1: 100 * time.Millisecond} {
		if got := before.Within(share); got < want || got > want*110/100 {
			t.Errorf("%v of them within %v, want %v", share, got, want)
		}
	}
	if n := before.Count(); n != 100 {
		t.Errorf("%d times, want 100", n)
	}
	all.took(time.Hour)
	all.took(0)
	now := all.load().Since(before)
	if n := now.Count(); n != 2 || now.Above(time.Second) != 1 || now.Above(100*time.Hour) != 0 {
		t.Errorf("%d since then, %d above a second", n, now.Above(time.Second))
	}
	var sum Times
	sum.add(before)
	sum.add(now)
	if n := sum.Count(); n != 102 {
		t.Errorf("%d in all, want 102", n)
	}
	if Times(nil).Within(1) != 0 {
		t.Error("a time of nothing")
	}
}
