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
			if !slices.Contains([]string{"smc", "wire", "local", "joined"}, m.Name) && (c.Name != "interfaces" || m.Name != "netns") || !f.Has(m) {
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
				known := slices.Contains(fieldKnown, m.Name+" "+c.Name+"/"+v)
				switch {
				case r.Good() && known:
					t.Logf("%s %s/%s is as over TCP, and does not belong into fieldKnown any more", m.Name, c.Name, v)
				case !r.Good() && !known:
					t.Errorf("%s, %s/%s: %s\n%q\n%s", m.Name, c.Name, v, c.Rule, r.Differences, r.Log)
				}
			}
		}
	}
	// Otherwise the cases would have tried TCP alone.
	if over["smc smc"] == 0 || over["wire smc"] == 0 {
		t.Errorf("no connection was SMC-R: %v", over)
	}
}

// fieldKnown are the short forms that are not as over TCP.
var fieldKnown = []string{"smc optionsafter/client", "smc sendto/all"}
