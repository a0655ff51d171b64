// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"testing"
	"time"
)

// TestPaceCrowd checks when the driver considers the host crowded: after two long yields
// in a row, and then for some time after a single one.
func TestPaceCrowd(t *testing.T) {
	var p pace
	var now time.Duration
	rest := func(d time.Duration, want bool) {
		t.Helper()
		if p.crowded() != want {
			t.Fatalf("at %v: crowded is %v", now, p.crowded())
		}
		now += d
		p.took(now)
	}
	const short, long = yieldLong, yieldLong + 1
	rest(long, false)
	rest(short, false)
	rest(long, false) // again the first in a row
	rest(long, false)
	for end := now + crowdTime; now < end; {
		rest(crowdSleep*time.Millisecond, true)
	}
	rest(long, false) // still the same row
	for end := now + crowdTime; now < end; {
		rest(crowdSleep*time.Millisecond, true)
	}
	rest(short, false)
	rest(long, false)
	rest(short, false)
}
