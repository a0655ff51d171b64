// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/sdnotify"
)

// TestWatchdog checks that the service manager hears of a stack only while it works.
// TestAlive of package engine checks what that means.
func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var stuck atomic.Bool
		var heard atomic.Int32
		w := &watchdog{
			alive: func(ctx context.Context) error {
				if !stuck.Load() {
					return nil
				}
				<-ctx.Done()
				return context.Cause(ctx)
			},
			send: func(m ...string) error {
				if len(m) != 1 || m[0] != sdnotify.Alive {
					t.Errorf("%q", m)
				}
				heard.Add(1)
				return nil
			},
			every: 60 * time.Second,
			log:   slog.New(slog.NewTextHandler(&log, nil)),
		}
		// hears has some time pass, and returns how often the service manager has heard.
		hears := func(d time.Duration) int32 {
			before := heard.Load()
			time.Sleep(d)
			synctest.Wait()
			return heard.Load() - before
		}
		stop := w.start(t.Context())
		if n := hears(w.every / 6); n != 1 { // at once
			t.Errorf("heard %d times, want once", n)
		}
		if n := hears(3 * w.every); n != 9 {
			t.Errorf("heard %d times, want 9 times", n)
		}
		stuck.Store(true)
		if n := hears(3 * w.every); n != 0 {
			t.Errorf("heard %d times of a stack that does not work", n)
		}
		stuck.Store(false)
		if n := hears(3 * w.every); n < 7 {
			t.Errorf("heard %d times of a stack that works again", n)
		}
		stop()
		if n := hears(3 * w.every); n != 0 {
			t.Errorf("heard %d times after the end", n)
		}
		if text := log.String(); strings.Count(text, "does not work") != 1 || strings.Count(text, "works again") != 1 {
			t.Errorf("log:\n%s", text)
		}
		(&watchdog{}).start(t.Context())() // no service manager
	})
}
