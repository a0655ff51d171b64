// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Cost is the CPU time of one unit of work, on both hosts, one value for each round.
type Cost struct {
	// Programs is that of client and server, with an embedded stack. Stacks is that of the stacks beside them.
	Programs []float64 `json:"programs"`
	Stacks   []float64 `json:"stacks,omitempty"`
}

// Used is the CPU time of a measurement.
type Used struct{ Programs, Stacks time.Duration }

// UsedBetween returns what the descendants of process me used between two snapshots. stacks are the stacks of the
// measurement; all other descendants count as programs, and process me not at all. Some of the programs may have ended
// meanwhile, if they were waited for.
func UsedBetween(before, after Snapshot, me int, stacks ...int) (u Used) {
	own := func(s Snapshot) time.Duration { return s.Procs[me].User + s.Procs[me].System }
	u.Stacks = after.Time(stacks...) - before.Time(stacks...)
	u.Programs = after.Time(me) - own(after) - (before.Time(me) - own(before)) - u.Stacks
	return u
}

// Each adds what a measurement of some work used, for each unit of it: seconds for each GiB, else microseconds.
func (c *Cost) Each(u Used, work float64, unit string) *Cost {
	if work <= 0 {
		return c
	}
	if c == nil {
		c = &Cost{}
	}
	factor := 1e6
	if unit == "s/GiB" {
		factor = 1
	}
	c.Programs = append(c.Programs, Round(u.Programs.Seconds()*factor/work))
	c.Stacks = append(c.Stacks, Round(u.Stacks.Seconds()*factor/work))
	return c
}

// printCosts writes the costs of the rows that have some as a table of medians.
func (r *Result) printCosts(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	other := ""
	if r.Against != "" {
		other = "\tother: programs\tstacks"
	}
	any := false
	for _, row := range r.Rows {
		if row.CostSMC == nil || row.CostTCP == nil {
			continue
		}
		if !any {
			fmt.Fprintf(tw, "CPU time of\tTCP: programs\tSMC-R: programs\tstacks%s\tunit\t\n", other)
			any = true
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s", row.ID, format(Median(row.CostTCP.Programs)), format(Median(row.CostSMC.Programs)), format(Median(row.CostSMC.Stacks)))
		switch {
		case row.CostAgainst != nil:
			fmt.Fprintf(tw, "\t%s\t%s", format(Median(row.CostAgainst.Programs)), format(Median(row.CostAgainst.Stacks)))
		case other != "":
			fmt.Fprint(tw, "\t-\t-")
		}
		fmt.Fprintf(tw, "\t%s\t\n", row.CostUnit)
	}
	return tw.Flush()
}
