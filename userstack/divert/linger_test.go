// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"slices"
	"testing"
	"time"
)

// TestLingered: flows are forgotten in the order in which they came to their end, after their time, and not again if they were before.
func TestLingered(t *testing.T) {
	begin := time.Now()
	a, b, c, e := &Flow{}, &Flow{}, &Flow{}, &Flow{}
	d := &Diverter{lingers: []lingering{{a, begin}, {b, begin}, {c, begin.Add(linger / 2)}, {e, begin.Add(linger)}}}
	b.forgotten, e.forgotten = true, true // for new connections of their tuples
	for _, at := range []struct {
		after time.Duration
		want  []*Flow
		left  int
	}{{linger - 1, nil, 4}, {linger, []*Flow{a}, 2}, {linger, nil, 2}, {2 * linger, []*Flow{c}, 0}} {
		if got := d.lingered(begin.Add(at.after)); !slices.Equal(got, at.want) || len(d.lingers) != at.left {
			t.Errorf("after %v: %d flows, %d left", at.after, len(got), len(d.lingers))
		}
	}
}
