// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// A Table is what came of the jobs of a suite in all modes.
type Table struct {
	Suite, Version string

	rows  []string
	modes []string
	cells map[[2]string]string
	lines []string
	bad   int
}

// Add adds the outcome of a job in a mode, and its differences from TCP.
func (t *Table) Add(j *Job, m Mode, o *Outcome, differences []Difference) {
	if t.cells == nil {
		t.cells = map[[2]string]string{}
	}
	t.rows, t.modes = appendNew(t.rows, j.Name), appendNew(t.modes, m.Name)
	cell := fmt.Sprintf("%d ok", o.Tests.count(OK))
	for _, s := range []Status{Failed, Skipped} {
		if n := o.Tests.count(s); n > 0 {
			cell += fmt.Sprintf(", %d %s", n, s)
		}
	}
	if over, _, ok := strings.Cut(o.Over, " connection"); ok {
		cell += fmt.Sprintf(", %s over SMC-R", over)
	}
	if len(o.Tests) == 0 {
		cell = "NO TESTS"
		t.bad++
	}
	always, once, known := 0, 0, 0
	for _, d := range differences {
		if d.Reason != "" {
			known++
			t.lines = append(t.lines, fmt.Sprintf("%s, %s: %s", m.Name, j.Name, &d))
		} else if d.Always() {
			always++
			t.lines = append(t.lines, fmt.Sprintf("%s, %s: %s", m.Name, j.Name, &d))
		} else {
			once++
		}
	}
	if always > 0 {
		cell += fmt.Sprintf(", %d DIFFER", always)
	}
	if known > 0 {
		cell += fmt.Sprintf(", %d with a reason", known)
	}
	if once > 0 {
		cell += fmt.Sprintf(", %d differed once", once)
	}
	t.bad += always
	t.cells[[2]string{j.Name, m.Name}] = cell
}

func appendNew(list []string, s string) []string {
	for _, o := range list {
		if o == s {
			return list
		}
	}
	return append(list, s)
}

// Good reports whether no test differs from TCP in all of its runs.
func (t *Table) Good() bool { return t.bad == 0 }

// String returns the table, a line a job and a column a mode, and then the tests that differ.
func (t *Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", t.Suite, t.Version)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "job\t%s\n", strings.Join(t.modes, "\t"))
	for _, row := range t.rows {
		line := []string{row}
		for _, m := range t.modes {
			c := t.cells[[2]string{row, m}]
			if c == "" {
				c = "-"
			}
			line = append(line, c)
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush() // to memory
	for _, l := range t.lines {
		fmt.Fprintf(&b, "    %s\n", l)
	}
	return b.String()
}
