// SPDX-License-Identifier: Apache-2.0

package field

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Good reports whether nothing differs from TCP.
func (r *Result) Good() bool { return len(r.Differences) == 0 }

// Carrier says what carried the connections: smc, tcp, or both.
func (r *Result) Carrier() string {
	var names []string
	for _, n := range []string{"smc", "tcp"} {
		if r.Over[n] > 0 {
			names = append(names, n)
		}
	}
	return strings.Join(names, "+")
}

// Table returns the results as a table, a line a variant and a column a mode, and then what
// differs. Cells say what carried the connections if that is not what the mode is about.
func Table(results []*Result) string {
	var modes, rows []string
	cells := map[[2]string]*Result{}
	for _, r := range results {
		row := r.Case.Name + ": " + r.Variant
		if cells[[2]string{"", r.Mode.Name}] == nil {
			modes = append(modes, r.Mode.Name)
			cells[[2]string{"", r.Mode.Name}] = r
		}
		if cells[[2]string{row, ""}] == nil {
			rows = append(rows, row)
			cells[[2]string{row, ""}] = r
		}
		cells[[2]string{row, r.Mode.Name}] = r
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "case\t%s\n", strings.Join(modes, "\t"))
	for _, row := range rows {
		line := []string{row}
		for _, m := range modes {
			line = append(line, cell(cells[[2]string{row, m}]))
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush() // to memory
	bad := 0
	for _, r := range results {
		if r.Good() {
			continue
		}
		bad++
		fmt.Fprintf(&b, "\n%s, %s, %s: %s\n", r.Mode.Name, r.Case.Name, r.Variant, r.Case.Rule)
		for _, d := range r.Differences {
			fmt.Fprintf(&b, "    %s\n", d)
		}
	}
	fmt.Fprintf(&b, "\n%d results, %d not as over TCP\n", len(results), bad)
	return b.String()
}

func cell(r *Result) string {
	switch {
	case r == nil:
		return "-"
	case !r.Good():
		return strings.TrimSpace("BAD " + r.Carrier())
	default:
		return strings.TrimSpace("OK " + r.Carrier())
	}
}
