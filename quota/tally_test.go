// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestTally: whatever is added and removed, the sums are those of what is there.
func TestTally(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var x Tally[string]
	want, all := map[string]int{}, 0
	for range 2000 {
		k := string(rune('a' + r.IntN(8)))
		if want[k] > 0 && r.IntN(2) == 0 {
			x.Remove(k)
			want[k]--
			all--
		} else {
			x.Add(k)
			want[k]++
			all++
		}
		if x.Of(k) != want[k] || x.Total() != all {
			t.Fatalf("%s has %d, %d in all; want %d, %d", k, x.Of(k), x.Total(), want[k], all)
		}
		if got := x.Fair(k, 40, 200); got != Fair(want[k], 1, 40, all, 200) {
			t.Fatalf("fair: %t", got)
		}
		most, n := x.Most(func(a, b string) bool { return a < b })
		for k, has := range want {
			if has > n || has == n && has > 0 && k < most {
				t.Fatalf("%s has the most, %d; %v", most, n, want)
			}
		}
	}
	for k, n := range want {
		for range n {
			x.Remove(k)
		}
	}
	if x.Total() != 0 || !maps.Equal(x.has, map[string]int{}) {
		t.Errorf("%d are left: %v", x.Total(), x.has)
	}
	defer func() {
		if recover() == nil {
			t.Error("Remove without Add")
		}
	}()
	x.Remove("a")
}
