// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/testing/testkind"
)

// TestQuiet: Quiet is called once after many connections, when no more come,
// and after few ones no more than once a minute.
func TestQuiet(t *testing.T) {
	testkind.System(t)
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		q := quiet{f: func() { calls.Add(1) }}
		defer q.close()
		expect := func(want int, what string) {
			t.Helper()
			synctest.Wait()
			if got := int(calls.Load()); got != want {
				t.Errorf("%s: %d calls, want %d", what, got, want)
			}
		}
		q.count()
		time.Sleep(quietAfter + time.Millisecond)
		expect(1, "the first connection")
		for range 10 { // they come for longer than quietAfter
			for range 10 {
				q.count()
			}
			time.Sleep(quietAfter / 2)
		}
		expect(1, "while connections come")
		time.Sleep(2 * quietAfter)
		expect(2, "then none come")
		time.Sleep(time.Hour)
		expect(2, "idle")
		for range quietConns {
			q.count()
		}
		time.Sleep(2 * quietAfter)
		expect(3, "many again")
		q.count()
		time.Sleep(quietWait / 2)
		expect(3, "a single one")
		time.Sleep(quietWait)
		expect(4, "the minute after")
	})
}
