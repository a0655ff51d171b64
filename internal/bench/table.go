// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Measure is one quantity that is measured over both transports.
type Measure struct {
	// Name says what is measured, Unit in what.
	Name, Unit string
	// LessIsBetter tells latencies and costs from rates.
	LessIsBetter bool
	// TCP and SMC hold one value for each round.
	TCP, SMC []float64
}

// Ratio returns the median over SMC-R as a multiple of the one over TCP; 0
// without values.
func (m *Measure) Ratio() float64 {
	tcp := Median(m.TCP)
	if tcp == 0 {
		return 0
	}
	return Median(m.SMC) / tcp
}

// Median returns the middle of the values, the mean of the two in the middle
// where their number is even, 0 where there is none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// Print writes the measures as a table of medians with the spread of the
// rounds and the ratio of SMC-R to TCP.
func Print(w io.Writer, measures []*Measure) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "measure\tkernel TCP\t(min-max)\tSMC-R\t(min-max)\tunit\tratio\tbetter is\t")
	for _, m := range measures {
		better := "more"
		if m.LessIsBetter {
			better = "less"
		}
		ratio := "-"
		if m.Ratio() > 0 {
			ratio = fmt.Sprintf("%.2f", m.Ratio())
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", m.Name, format(Median(m.TCP)), spread(m.TCP), format(Median(m.SMC)), spread(m.SMC), m.Unit, ratio, better)
	}
	return tw.Flush()
}

func spread(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return format(slices.Min(values)) + "-" + format(slices.Max(values))
}

// format prints three significant digits, or all of a larger number.
func format(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
