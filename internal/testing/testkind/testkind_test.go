// SPDX-License-Identifier: Apache-2.0

package testkind

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: f is called again until it is content, and what it saw last is in the error.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		count := func() (any, bool) { calls++; return calls, calls == 5 }
		if err := wait(count, Patience); err != nil || calls != 5 {
			t.Errorf("%d calls, %v", calls, err)
		}
		begun := time.Now()
		err := wait(func() (any, bool) { return "a closed door", false }, Patience)
		if err == nil || !strings.Contains(err.Error(), "a closed door") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begun); took < Patience || took > Patience+time.Second {
			t.Errorf("gave up after %v", took)
		}
	})
}

// TestSkipped: without `make timing`, a timing test does nothing.
func TestSkipped(t *testing.T) {
	t.Setenv(TimingVariable, "")
	t.Run("measures", func(t *testing.T) {
		Timing(t)
		t.Error("goes on")
	})
}
