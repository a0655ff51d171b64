// SPDX-License-Identifier: Apache-2.0

package cmd

import "testing"

// TestAbbreviate compares with the output of smc-tools 1.8.5 for the same numbers.
func TestAbbreviate(t *testing.T) {
	for v, want := range map[uint64]string{
		0: "0", 4: "4", 99999: "99999", 196608: "196.6K", 20840708: "20.84M", 21496068: "21.50M", 152000000: "152.0M",
		999949: "999.9K", 999950: "1.000M", 1<<64 - 1: "18.45E",
	} {
		got := abbreviate(v)
		if got != want {
			t.Errorf("abbreviate(%d) = %q, want %q", v, got, want)
		}
		if len(got) > 6 {
			t.Errorf("abbreviate(%d) = %q is longer than 6", v, got)
		}
	}
}

func TestPercent(t *testing.T) {
	for _, test := range []struct {
		part, whole uint64
		want        string
	}{{0, 0, "0.00%"}, {7, 1255, "0.56%"}, {1, 1, "100.00%"}} {
		if got := percent(test.part, test.whole); got != test.want {
			t.Errorf("percent(%d, %d) = %q", test.part, test.whole, got)
		}
	}
}
