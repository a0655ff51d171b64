// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestRemember checks that a name is looked up once, and again after its lifetime.
func TestRemember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		name := remember(func(index uint32) string {
			calls++
			return fmt.Sprintf("eth%d.%d", index, calls)
		})
		for range 3 {
			if a, b := name(1), name(2); a != "eth1.1" || b != "eth2.2" {
				t.Errorf("%s, %s", a, b)
			}
		}
		time.Sleep(nameLifetime + 1)
		if got := name(1); got != "eth1.3" {
			t.Errorf("later: %s", got)
		}
	})
}
