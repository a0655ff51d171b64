// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestRecorded checks the comparisons in guests with the recordings alone: numbers are
// read and abbreviated in the form of smc-tools. The shape of statistics is the same for
// all numbers, but not for other names or columns.
func TestRecorded(t *testing.T) {
	testkind.System(t)
	live := readRecorded(t, "p3live")
	texts, numbers := 0, 0
	for command, p := range live {
		if !strings.Contains(p.out, " Connections Summary\n") || strings.HasPrefix(command, "smc_dbg") {
			continue
		}
		texts++
		for key, value := range statsValues(p.out) {
			number, behind, _ := strings.Cut(value, " ")
			if !strings.HasSuffix(key, "(Bytes)") {
				continue
			}
			n, err := strconv.ParseUint(number, 10, 64)
			if want := "(" + abbreviated(n) + ")"; err != nil || behind != want {
				t.Errorf("%s: %s: %q, %v, want %s", command, key, value, err, want)
			}
			numbers++
		}
		if got, want := shape(strings.ReplaceAll(p.out, "       0       0", "   1.23K     456")), shape(p.out); got != want {
			t.Errorf("%s: the shape changes with a number:\n%s\n%s", command, want, got)
		}
		for _, change := range [][2]string{{"Total requests", "All requests  "}, {"  Bufs ", "  Bufs  "}, {"       0       0", "      0        0"}, {"(Bytes) ", "(Bytes)"}, {" (0.00%)", ""}} {
			if shape(strings.Replace(p.out, change[0], change[1], 1)) == shape(p.out) {
				t.Errorf("%s: the shape does not change when %q becomes %q", command, change[0], change[1])
			}
		}
	}
	if texts < 10 || numbers < 4*texts {
		t.Errorf("only %d texts, %d numbers", texts, numbers)
	}
}
