// SPDX-License-Identifier: Apache-2.0

package testkind

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Key and SystemValue are the attribute that `go test -json` reports of a system test.
const Key, SystemValue = "kind", "system"

// TimingVariable is set in the environment by `make timing`.
const TimingVariable = "SMCR_TIMING"

// System says that t is a system test.
func System(t testing.TB) {
	t.Helper()
	t.Attr(Key, SystemValue)
}

// Timing says that t is a timing test. It is skipped but in `make timing`.
func Timing(t testing.TB) {
	t.Helper()
	if os.Getenv(TimingVariable) == "" {
		t.Skip("measures time: run `sudo make timing`")
	}
	System(t)
}

// Patience is how long a system test waits for an event. A machine that is busy with other work
// is slow, and a test that fails for that says nothing of the program.
const Patience = time.Minute

// Eventually waits until f reports that what the test waits for is there. Otherwise the test fails
// after [Patience] with what f saw last. f is called every few milliseconds.
func Eventually(t testing.TB, what string, f func() (saw any, ok bool)) {
	t.Helper()
	if err := wait(f, Patience); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wait calls f until it reports true or the limit has passed.
func wait(f func() (saw any, ok bool), limit time.Duration) error {
	var saw any
	if Poll(limit, func() (ok bool) { saw, ok = f(); return ok }) {
		return nil
	}
	return fmt.Errorf("not within %v; seen last: %v", limit, saw)
}

// Poll calls f every few milliseconds, until f reports true or the limit has passed, and reports
// the last answer of f.
func Poll(limit time.Duration, f func() bool) bool {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
}
