// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/sample"
	"smcr/internal/sysfs"
	"smcr/internal/watch"

	"github.com/spf13/cobra"
)

// watchOptions are the options of smcr stats watch.
type watchOptions struct {
	factory  *cmdutil.Factory
	format   string
	interval time.Duration
	count    int
}

func newStatsWatch(f *cmdutil.Factory) *cobra.Command {
	o := &watchOptions{factory: f, interval: time.Second}
	cmd := &cobra.Command{
		Use:   "watch [INTERVAL [COUNT]]",
		Short: "Print rates as lines, for scripts",
		Long: "Print one line for each stack in each interval: what there is now, and the rates per\n" +
			"second since the line before. The first line comes after one interval. A dash, in\n" +
			"JSON null, is what the stack does not count. On a terminal, the header is repeated\n" +
			"every 20 lines. If the stack ends, the reason goes to standard error, and the lines\n" +
			"continue when it is back. 'smcr top' shows the same and more on a terminal. INTERVAL and\n" +
			"COUNT are --interval and --count, as with vmstat.",
		Example: "  smcr stats watch\n  smcr stats watch 5 12\n" +
			"  smcr stats watch -o json | jq -c '.rows[] | [.stack, .rates.rx_bytes]'\n" +
			"  smcr --backend user stats watch --count 1 | awk 'NR > 1 {print $7}'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return cmdutil.CommandError(cmd, "unexpected argument %q", args[2])
			}
			for i, name := range []string{"interval", "count"}[:len(args)] {
				if cmd.Flags().Changed(name) {
					return cmdutil.CommandError(cmd, "unexpected argument %q: there is --%s", args[i], name)
				}
			}
			if len(args) > 0 {
				if err := watch.SetInterval(&o.interval, args[0]); err != nil {
					return cmdutil.CommandError(cmd, "invalid interval %q: %v", args[0], err)
				}
			}
			if len(args) > 1 {
				n, err := strconv.Atoi(args[1])
				if err != nil || n < 0 {
					return cmdutil.CommandError(cmd, "invalid count %q: must be 1 or more, or 0 for no end", args[1])
				}
				o.count = n
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.count < 0 {
				return cmdutil.CommandError(cmd, "invalid --count %d: must be 1 or more, or 0 for no end", o.count)
			}
			return watchStats(cmd.Context(), o)
		},
	}
	cmdutil.AddFormatFlag(cmd, &o.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	watch.AddInterval(cmd, &o.interval, "time from one line to the next")
	cmd.Flags().IntVarP(&o.count, "count", "c", 0, "end after so many `lines` of each stack; 0: when interrupted")
	return cmd
}

// A rateColumn is a column of smcr stats watch.
type rateColumn struct {
	name  string
	width int
	cell  func(*ratesJSON) any
}

// rateColumns are the columns after the time and the stack.
var rateColumns = []rateColumn{
	{"groups", 6, func(r *ratesJSON) any { return r.Groups }},
	{"links", 6, func(r *ratesJSON) any { return r.Links }},
	{"conns", 7, func(r *ratesJSON) any { return r.Conns }},
	{"new/s", 8, rateCell(func(r *perSecondJSON) *float64 { return &r.Connections })},
	{"rx_B/s", 12, rateCell(func(r *perSecondJSON) *float64 { return &r.RXBytes })},
	{"tx_B/s", 12, rateCell(func(r *perSecondJSON) *float64 { return &r.TXBytes })},
	{"rx_calls/s", 10, rateCell(func(r *perSecondJSON) *float64 { return &r.RXCalls })},
	{"tx_calls/s", 10, rateCell(func(r *perSecondJSON) *float64 { return &r.TXCalls })},
	{"fallbacks/s", 11, rateCell(func(r *perSecondJSON) *float64 { return &r.Fallbacks })},
	{"errors/s", 8, rateCell(func(r *perSecondJSON) *float64 { return &r.HandshakeErrors })},
	{"retrans/s", 9, rateCell(func(r *perSecondJSON) *float64 { return r.Retransmits })},
}

// rateCell returns a cell of a rate. It is "-" if the rate is not known.
func rateCell(of func(*perSecondJSON) *float64) func(*ratesJSON) any {
	return func(r *ratesJSON) any {
		if r.Rates == nil || of(r.Rates) == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f", *of(r.Rates))
	}
}

// A ratesJSON is a line of smcr stats watch in JSON.
type ratesJSON struct {
	Stack    string  `json:"stack"`
	Interval float64 `json:"interval_seconds"`
	Groups   int     `json:"linkgroups"`
	Links    int     `json:"links"`
	Conns    uint64  `json:"conns"`
	// Rates is null if the stack was not there in the sample before.
	Rates *perSecondJSON `json:"rates"`
}

// A perSecondJSON is the rates of a stack per second.
type perSecondJSON struct {
	Connections     float64  `json:"conns"`
	RXBytes         float64  `json:"rx_bytes"`
	TXBytes         float64  `json:"tx_bytes"`
	RXCalls         float64  `json:"rx_calls"`
	TXCalls         float64  `json:"tx_calls"`
	Fallbacks       float64  `json:"fallbacks"`
	HandshakeErrors float64  `json:"handshake_errors"`
	Retransmits     *float64 `json:"retransmits"` // null: not counted
}

// newRatesJSON returns the line of a stack.
func newRatesJSON(before, now *sample.Stack, elapsed time.Duration) ratesJSON {
	round := func(v float64) float64 { return math.Round(v*1000) / 1000 }
	j := ratesJSON{Stack: now.Name, Interval: round(elapsed.Seconds()), Groups: len(now.Groups), Links: len(now.Links)}
	for i := range now.Groups {
		j.Conns += uint64(now.Groups[i].Conns)
	}
	r, ok := sample.Between(before, now, elapsed)
	if !ok {
		return j
	}
	j.Rates = &perSecondJSON{
		Connections: round(r.Connections), RXBytes: round(r.RXBytes), TXBytes: round(r.TXBytes), RXCalls: round(r.RXCalls), TXCalls: round(r.TXCalls),
		Fallbacks: round(r.Fallbacks), HandshakeErrors: round(r.HandshakeErrors),
	}
	if r.Retransmits != nil {
		j.Rates.Retransmits = new(round(*r.Retransmits))
	}
	return j
}

// rateHeader returns the names of the columns.
func rateHeader() string {
	s := fmt.Sprintf("%-20s %-10s", "time", "stack")
	for _, c := range rateColumns {
		s += fmt.Sprintf(" %*s", c.width, c.name)
	}
	return s + "\n"
}

// watchStats prints lines until ctx ends.
func watchStats(ctx context.Context, o *watchOptions) error {
	r := &sample.Reader{Factory: o.factory, Sysfs: sysfs.New(sysfs.DefaultRoot)}
	var before []*sample.Stack
	var at time.Time
	read := func(ctx context.Context) (v watch.View[ratesJSON], err error) {
		stacks, err := r.Read(ctx, nil)
		now := time.Now()
		if err != nil {
			before = nil // the stacks may be others when they are back
			return v, err
		}
		for _, s := range stacks {
			v.Rows = append(v.Rows, newRatesJSON(named(before, s.Name), s, now.Sub(at)))
		}
		before, at = stacks, now
		rows := v.Rows
		v.Text = func(w io.Writer) error { return printRates(w, now, rows) }
		return v, nil
	}
	return watch.Lines(ctx, o.factory.IO, watch.LineOptions{Interval: o.interval, Count: o.count, Format: o.format, Header: rateHeader()}, read)
}

// named returns the stack with a name, or nil.
func named(stacks []*sample.Stack, name string) *sample.Stack {
	for _, s := range stacks {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// printRates prints the lines of one moment.
func printRates(w io.Writer, now time.Time, rows []ratesJSON) error {
	out := bufio.NewWriter(w)
	for i := range rows {
		printable.Fprintf(out, "%-20s %-10s", now.UTC().Format(time.RFC3339), rows[i].Stack)
		for _, c := range rateColumns {
			printable.Fprintf(out, " %*s", c.width, fmt.Sprint(c.cell(&rows[i])))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}
