// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the rows as a table: medians with the spread of the rounds, the ratio to
// kernel TCP, and the target.
func (r *Result) Print(w io.Writer) error {
	fmt.Fprintln(w, r.origin())
	if len(r.Rows) > 0 {
		if err := r.printRows(w); err != nil {
			return err
		}
		if err := r.printCosts(w); err != nil {
			return err
		}
	}
	if len(r.Connections) > 0 {
		if err := r.printConnections(w); err != nil {
			return err
		}
	}
	for _, note := range r.notes() {
		fmt.Fprintln(w, note)
	}
	return nil
}

func (r *Result) printRows(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	other, blank := "", ""
	if r.Against != "" {
		other, blank = "\tother\t(min-max)\tSMC-R/other", "\t-\t\t-"
	}
	fmt.Fprintf(tw, "row\tMTU\tkernel TCP\t(min-max)\tSMC-R\t(min-max)\tunit\tratio\tat least\taim\tmet%s\t\n", other)
	for _, row := range r.Rows {
		other := blank
		if len(row.Against) > 0 {
			other = fmt.Sprintf("\t%s\t%s\t%s", format(Median(row.Against)), spread(row.Against), format(row.ToOther))
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s\t\n", row.ID, row.MTU,
			format(Median(row.TCP)), spread(row.TCP), format(Median(row.SMC)), spread(row.SMC), row.Unit,
			row.value(), row.mark(row.Target), row.mark(row.Aim), row.met(), other)
	}
	return tw.Flush()
}

// Markdown returns this table in Markdown, with the names of the rows.
func (r *Result) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.origin())
	b.WriteString("| row | what | MTU | kernel TCP | SMC-R | unit | ratio | at least | aim | met |\n")
	b.WriteString("|---|---|--:|--:|--:|---|--:|--:|--:|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %d | %s (%s) | %s (%s) | %s | %s | %s | %s | %s |\n", row.ID, row.Name, row.MTU,
			format(Median(row.TCP)), spread(row.TCP), format(Median(row.SMC)), spread(row.SMC), row.Unit,
			row.value(), row.mark(row.Target), row.mark(row.Aim), row.met())
	}
	r.markdownConnections(&b)
	for _, note := range r.notes() {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

// origin returns a line with the origin of the values.
func (r *Result) origin() string {
	flags := ""
	if r.ServeFlags != "" {
		flags = ", smcr serve " + r.ServeFlags
	}
	if r.Against != "" {
		flags += ", beside another build: " + r.Against
	}
	return fmt.Sprintf("%s, commit %s; %d cores of %s, Linux %s, %s, %s; %d rounds of %g s%s; medians (min-max).",
		r.Date.UTC().Format("2006-01-02"), r.Commit, r.Machine.Cores, r.Machine.CPU, r.Machine.Kernel, r.Machine.Arch, r.Machine.Go,
		r.Rounds, r.Seconds, flags)
}

// notes returns remarks about the values.
func (r *Result) notes() []string {
	var notes []string
	if r.Forced {
		notes = append(notes, fmt.Sprintf("Measured with -force while others used up to %.0f %% of the CPU: these figures prove nothing.", 100*r.OthersMax))
	}
	var restless []string
	for _, row := range Restless(r.Rows) {
		restless = append(restless, fmt.Sprintf("%s (by a factor of %s)", row.ID, format(row.TCPScatter)))
	}
	for _, p := range r.Connections {
		if p.Pairs > 1 {
			notes = append(notes, fmt.Sprintf("%d connections are spread over %d pairs of hosts: the limit of open files allows a stack no more.", p.Connections, p.Pairs))
		}
		if p.Skipped != "" {
			notes = append(notes, fmt.Sprintf("%d connections were left out: %s.", p.Connections, p.Skipped))
		}
	}
	if len(restless) > 0 {
		notes = append(notes, "Kernel TCP itself scatters between the rounds, so these ratios are uncertain: "+strings.Join(restless, ", ")+".")
	}
	return notes
}

// value returns the ratio, or the value of an absolute row.
func (r *Row) value() string {
	switch {
	case len(r.SMC) == 0:
		return "-"
	case r.Absolute:
		return format(r.Value) + " " + r.Unit
	}
	return format(r.Value)
}

func (r *Row) mark(v float64) string {
	switch {
	case v == 0:
		return "-"
	case r.Absolute:
		return fmt.Sprintf("%g %s", v, r.Unit)
	case r.LessIsBetter:
		return fmt.Sprintf("≤ %g", v)
	}
	return fmt.Sprintf("%g", v)
}

func (r *Row) met() string {
	if r.Met == "" {
		return "-"
	}
	return r.Met
}

// The generated part of a document is between these lines.
const (
	markBegin = "<!-- begin: make bench-plots -->"
	markEnd   = "<!-- end: make bench-plots -->"
)

// ErrNoMarks means that a document has no place for the table.
var ErrNoMarks = errors.New("bench: the document lacks the lines " + markBegin + " and " + markEnd)

// Replace returns the document with text between the marks.
func Replace(document []byte, text string) ([]byte, error) {
	head, rest, ok := bytes.Cut(document, []byte(markBegin+"\n"))
	if !ok {
		return nil, ErrNoMarks
	}
	_, tail, ok := bytes.Cut(rest, []byte(markEnd+"\n"))
	if !ok {
		return nil, ErrNoMarks
	}
	return fmt.Appendf(nil, "%s%s\n%s%s\n%s", head, markBegin, text, markEnd, tail), nil
}
