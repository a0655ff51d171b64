// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: time in which the process runs counts, and other time does not.
func TestWait(t *testing.T) {
	for _, tt := range []struct {
		name   string
		after  time.Duration // of done; 0: never
		want   bool
		passes time.Duration
	}{
		{"in time", 100 * time.Millisecond, true, 100 * time.Millisecond},
		{"too late", time.Second, false, 250 * time.Millisecond},
		{"never", 0, false, 250 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				if tt.after > 0 {
					time.AfterFunc(tt.after, func() { close(done) })
				}
				begin := time.Now()
				if got := Wait(done, 250*time.Millisecond); got != tt.want || time.Since(begin) != tt.passes {
					t.Errorf("%v after %v", got, time.Since(begin))
				}
				time.Sleep(2 * time.Second)
			})
		})
	}
	for between, want := range map[time.Duration]time.Duration{
		tickTime:              tickTime,
		tickTime + tickLate:   tickTime + tickLate,
		30 * time.Millisecond: 0,
		time.Minute:           0,
	} {
		if got := ran(between); got != want {
			t.Errorf("of %v, %v counts, want %v", between, got, want)
		}
	}
}
