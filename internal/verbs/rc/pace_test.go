// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"testing"
	"time"
)

// TestPaceCrowd checks when the driver takes the host for crowded: two long yields
// in a row make it so, for a while, and after that a single one does again.
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
	rest(long, false) // the first in a row again
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
