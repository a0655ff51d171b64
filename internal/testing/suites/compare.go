// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// A Difference is a test that a mode and its judge, TCP, did not end the same way.
type Difference struct {
	Test string
	// TCP and Mode have the status of each run, in order. TCP is the judge of the mode.
	TCP, Mode []Status
	// Reason is why the difference stays, or "".
	Reason string
}

// Always reports whether all runs of the mode differ from all runs of TCP.
func (d *Difference) Always() bool {
	return !slices.ContainsFunc(d.Mode, func(s Status) bool { return slices.Contains(d.TCP, s) })
}

func (d *Difference) String() string {
	s := fmt.Sprintf("%s: %s; TCP: %s", d.Test, words(d.Mode), words(d.TCP))
	if d.Reason != "" {
		s += ": " + d.Reason
	}
	return s
}

func words(all []Status) string {
	var s []string
	for _, w := range all {
		s = append(s, string(w))
	}
	return strings.Join(s, ", ")
}

// status returns the status of a test, Missing if it did not run.
func (t Tests) status(name string) Status {
	if s, ok := t[name]; ok {
		return s
	}
	return Missing
}

// count counts the tests with a status.
func (t Tests) count(s Status) int {
	n := 0
	for _, o := range t {
		if o == s {
			n++
		}
	}
	return n
}

// differing returns the tests that differ between two runs, sorted.
func differing(tcp, mode Tests) []string {
	names := map[string]bool{}
	for _, t := range []Tests{tcp, mode} {
		for n := range t {
			names[n] = tcp.status(n) != mode.status(n)
		}
	}
	var all []string
	for n, differs := range names {
		if differs {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// again is how often tests that differ are run again.
const again = 2

// Compare returns the differences between the outcome of the judge of a mode and that of the mode. The tests that
// differ are run again in both.
func (r *Runner) Compare(ctx context.Context, s *Suite, j *Job, m Mode, tcp, mode *Outcome) ([]Difference, error) {
	var all []Difference
	names := differing(tcp.Tests, mode.Tests)
	for _, n := range names {
		all = append(all, Difference{Test: n, TCP: []Status{tcp.Tests.status(n)}, Mode: []Status{mode.Tests.status(n)}, Reason: reason(s, j, m, n)})
	}
	for range again {
		left := slices.DeleteFunc(slices.Clone(all), func(d Difference) bool { return !d.Always() || d.Reason != "" })
		if len(left) == 0 {
			break
		}
		var only []string
		for _, d := range left {
			only = append(only, d.Test)
		}
		t, err := r.Run(ctx, s, j, m.TheJudge(), only)
		if err != nil {
			return nil, err
		}
		o, err := r.Run(ctx, s, j, m, only)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if d := &all[i]; slices.Contains(only, d.Test) {
				d.TCP = append(d.TCP, t.Tests.status(d.Test))
				d.Mode = append(d.Mode, o.Tests.status(d.Test))
			}
		}
	}
	return all, nil
}
