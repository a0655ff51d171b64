// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"smcr/internal/testing/mutants/trial"
)

// summary counts the mutants of a package.
type summary struct {
	pkg        string
	all        int // mutants of the package
	tried      int
	killed     int
	timedOut   int
	equivalent int // known not to change anything that can be seen
	listed     int // known to survive, for another reason
	survived   int
	notCovered int
}

func (s *summary) add(r row) {
	s.tried++
	switch {
	case r.Outcome == trial.Killed:
		s.killed++
	case r.Outcome == trial.Endless:
		s.timedOut++
	case strings.HasPrefix(r.Reason, equivalent):
		s.equivalent++
	case r.Reason != "":
		s.listed++
	case r.Outcome == trial.Survived:
		s.survived++
	default:
		s.notCovered++
	}
}

// share is the share of killed mutants, in percent, of those that can be killed. One that
// no test reaches counts as one that survives, and so does one that is listed.
func (s *summary) share() float64 {
	n := s.tried - s.equivalent
	if n == 0 {
		return 100
	}
	return 100 * float64(s.killed+s.timedOut) / float64(n)
}

func printSummaries(w io.Writer, sums []summary) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "package\tmutants\ttried\tkilled\ttimed out\tequivalent\tlisted\tsurvived\tnot covered\tshare killed\t")
	for _, s := range sums {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f %%\t\n", strings.TrimPrefix(s.pkg, "smcr/"), s.all, s.tried, s.killed, s.timedOut, s.equivalent, s.listed, s.survived, s.notCovered, s.share())
	}
	return t.Flush()
}
