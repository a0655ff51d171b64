// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"

	cases "smcr/internal/testing/field"
	"smcr/internal/testing/netnstest"
)

// TestField runs the short form of the cases from the field: what both programs see is what
// they see over TCP. `make field` runs all.
func TestField(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, "nsenter", "python3")
	f, err := cases.New(bin("smcr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	over := map[string]int{}
	for i := range cases.Cases {
		c := &cases.Cases[i]
		for _, m := range cases.Modes {
			if !slices.Contains([]string{"smc", "bare"}, m.Name) && (c.Name != "interfaces" || m.Name != "netns") {
				continue
			}
			for _, v := range c.Quick {
				r, err := f.Run(t.Context(), c, v, m)
				if err != nil {
					t.Fatal(err)
				}
				for carrier, n := range r.Over {
					over[m.Name+" "+carrier] += n
				}
				if !r.Good() {
					t.Errorf("%s, %s/%s: %s\n%q\n%s", m.Name, c.Name, v, c.Rule, r.Differences, r.Log)
				}
			}
		}
	}
	// Otherwise the cases would have tried TCP alone.
	if over["smc smc"] == 0 || over["bare smc"] == 0 {
		t.Errorf("no connection was SMC-R: %v", over)
	}
}
