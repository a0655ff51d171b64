// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs/verbstest"
)

// TestVerbsSim runs the verbs suite over the simulated network, without and
// with faults.
func TestVerbsSim(t *testing.T) {
	for name, faults := range map[string]simFaults{
		"clean": {delay: 5 * time.Microsecond},
		"lossy": {delay: 20 * time.Microsecond, loss: 0.03, dup: 0.02, reorder: 0.02, jitter: 100 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range verbstest.Cases() {
				if c.Once && faults.loss > 0 {
					continue
				}
				t.Run(c.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c.Run(t, func(t testing.TB) verbstest.Pair { return newSimNetwork(7, faults).pair(t) })
					})
				})
			}
		})
	}
}
