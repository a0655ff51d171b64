// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"fmt"
	"syscall"
	"testing"
)

// TestInterrupted: what a signal interrupts is called again, and another error is returned.
func TestInterrupted(t *testing.T) {
	for _, want := range []error{nil, syscall.EPERM} {
		calls := 0
		err := Interrupted(func() error {
			if calls++; calls < 3 {
				return fmt.Errorf("interrupted: %w", syscall.EINTR)
			}
			return want
		})
		if calls != 3 || err != want {
			t.Errorf("%d calls, %v, want 3 and %v", calls, err, want)
		}
	}
}
