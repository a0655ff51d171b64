// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"smcr/userstack/broker"
	"smcr/userstack/launch"
)

// summary tells how many connections used SMC-R, and why each other did not:
// one line a reason, the most frequent first.
func summary(w io.Writer, s launch.Stats) {
	var tcp, failed uint64
	for _, n := range s.TCP {
		tcp += n
	}
	for _, n := range s.Failed {
		failed += n
	}
	fmt.Fprintf(w, "smcr: %d connections over SMC-R, %d over TCP", s.ByMode[broker.ModeSMCR], tcp)
	if failed > 0 {
		fmt.Fprintf(w, ", %d failed", failed)
	}
	fmt.Fprintln(w)
	reasons := func(word string, m map[string]uint64) {
		keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
			return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
		})
		for _, k := range keys {
			fmt.Fprintf(w, "smcr: %d %s: %s\n", m[k], word, k)
		}
	}
	reasons("over TCP", s.TCP)
	reasons("failed", s.Failed)
}
