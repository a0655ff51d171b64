// SPDX-License-Identifier: Apache-2.0

package statscmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/watch"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr stats.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "stats",
		Short: "Show the counters of SMC-R",
	})
	cmd.AddCommand(newCmdShow(f, nil), newCmdReset(f))
	return cmd
}

type showOptions struct {
	watch.ListOptions
	details  bool
	absolute bool
}

func newCmdShow(f *cmdutil.Factory, runF func(*showOptions) error) *cobra.Command {
	opts := &showOptions{ListOptions: watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:     "show",
		Aliases: []string{"list"},
		Short:   "Show the counters since the stack was started, or since a reset",
		Long: "Show the SMC-R counters of this network namespace: connections, fallbacks to TCP\n" +
			"and their reasons, and requests and buffers by size. They count since the stack\n" +
			"was started, or since your last 'smcr stats reset'. A counter that the stack does\n" +
			"not have is shown as '-', and as null in JSON.\n\n" +
			"A program under 'smcr run' with the user-space stack reads and writes a unix\n" +
			"socket, and the stack sees the bytes but not the calls. A request is then one\n" +
			"transfer between this socket and the stack's buffers.",
		Example: "  smcr stats show -d --watch\n  smcr stats show -o json",
		Args:    cmdutil.NoArgs,
		RunE:    cmdutil.RunE(opts, runF, showRun),
	}
	cmd.Flags().BoolVarP(&opts.details, "details", "d", false, "split by side, version and reason")
	cmd.Flags().BoolVarP(&opts.absolute, "absolute", "a", false, "count since the stack was started, ignoring resets")
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatJSON)
	return cmd
}

// A snapshot is all counters of one stack.
type snapshot struct {
	stats     nl.Stats
	fallbacks nl.Fallbacks
}

func read(c nl.Control, ctx context.Context) (snapshot, error) {
	s, err := c.Stats(ctx)
	if err != nil {
		return snapshot{}, err
	}
	f, err := c.Fallbacks(ctx)
	return snapshot{s, f}, err
}

func showRun(ctx context.Context, opts *showOptions) error {
	return watch.Show(ctx, &opts.ListOptions, func(ctx context.Context, m nl.Multi) (v watch.View[statsJSON], err error) {
		rows, err := nl.Each(ctx, m, read)
		if err != nil {
			return v, err
		}
		if !opts.absolute {
			if err := sinceReset(opts.Factory, rows); err != nil {
				return v, err
			}
		}
		for _, r := range rows {
			v.Rows = append(v.Rows, toJSON(r))
		}
		v.Text = func(w io.Writer) error {
			var b strings.Builder
			for i, r := range rows {
				if i > 0 {
					b.WriteString("\n")
				}
				if len(rows) > 1 {
					fmt.Fprintf(&b, "Stack: %s\n", r.Stack)
				}
				report{&b, opts.details}.print(&r.Value)
			}
			_, err := io.WriteString(w, b.String())
			return err
		}
		return v, nil
	})
}

// A report prints counters in the layout of smc-tools.
type report struct {
	b       *strings.Builder
	details bool
}

func (r report) line(name string, format string, args ...any) {
	fmt.Fprintf(r.b, "  %-28s %12s\n", name, fmt.Sprintf(format, args...))
}

// optional is number for a counter that a stack may not have.
func (r report) optional(counted bool, name string, v uint64, remark string) {
	if !counted {
		r.line(name, "-")
		return
	}
	r.number(name, v, remark)
}

// number prints a value with a remark after it.
func (r report) number(name string, v uint64, remark string) {
	fmt.Fprintf(r.b, "  %-28s %12d", name, v)
	if remark != "" {
		fmt.Fprintf(r.b, " (%s)", remark)
	}
	r.b.WriteString("\n")
}

func (r report) sides(name string, client, server uint64) {
	remark := ""
	if r.details {
		remark = fmt.Sprintf("client %d, server %d", client, server)
	}
	r.number(name, client+server, remark)
}

func (r report) print(s *snapshot) {
	t := &s.stats.SMCR
	conns := t.Connections()
	hsErrors := s.stats.ClientHandshakeErrors + s.stats.ServerHandshakeErrors
	fallbacks := s.fallbacks.ClientTotal + s.fallbacks.ServerTotal

	r.b.WriteString("SMC-R Connections Summary\n")
	r.number("Total connections handled", conns+hsErrors+fallbacks, "")
	r.sides("SMC connections", t.ClientV1+t.ClientV2, t.ServerV1+t.ServerV2)
	if r.details {
		r.number("  v1", t.ClientV1+t.ServerV1, "")
		r.number("  v2", t.ClientV2+t.ServerV2, "")
	}
	r.sides("Handshake errors", s.stats.ClientHandshakeErrors, s.stats.ServerHandshakeErrors)
	if s.stats.ClientLocal+s.stats.ServerLocal > 0 { // not of a kernel, as the next
		r.sides("Local connections", s.stats.ClientLocal, s.stats.ServerLocal)
	}
	if s.stats.Panics > 0 {
		r.number("Panics survived", s.stats.Panics, "")
	}
	avg := 0.0
	if conns > 0 {
		avg = float64(t.RXCalls+t.TXCalls) / float64(conns)
	}
	r.line("Avg requests per SMC conn", "%.1f", avg)
	r.sides("TCP fallback", s.fallbacks.ClientTotal, s.fallbacks.ServerTotal)
	if r.details {
		r.reasons(s.fallbacks, smc.Server, "Server")
		r.reasons(s.fallbacks, smc.Client, "Client")
	}

	r.b.WriteString("\nRX Stats\n")
	r.number("Data transmitted (Bytes)", t.RXBytes, abbreviate(t.RXBytes))
	r.number("Total requests", t.RXCalls, "")
	r.optional(t.Counts(stats.CountRXUsage), "Buffer usage (Bytes)", t.RXUsage, abbreviate(t.RXUsage))
	r.number("Buffer full", t.RXBufs.Full, percent(t.RXBufs.Full, t.RXCalls))
	r.pool(&t.RXBufs)
	r.histogram(t.RXBufSizes, t.RXSizes)

	r.b.WriteString("\nTX Stats\n")
	r.number("Data transmitted (Bytes)", t.TXBytes, abbreviate(t.TXBytes))
	r.number("Total requests", t.TXCalls, "")
	r.optional(t.Counts(stats.CountTXUsage), "Buffer usage (Bytes)", t.TXUsage, abbreviate(t.TXUsage))
	r.number("Buffer full", t.TXBufs.Full, percent(t.TXBufs.Full, t.TXCalls))
	r.number("Buffer full (remote)", t.TXBufs.FullPeer, percent(t.TXBufs.FullPeer, t.TXCalls))
	r.optional(t.Counts(stats.CountTXSmall), "Buffer too small", t.TXBufs.Small, percent(t.TXBufs.Small, t.TXCalls))
	r.optional(t.Counts(stats.CountTXSmallPeer), "Buffer too small (remote)", t.TXBufs.SmallPeer, percent(t.TXBufs.SmallPeer, t.TXCalls))
	r.pool(&t.TXBufs)
	r.histogram(t.TXBufSizes, t.TXSizes)

	r.b.WriteString("\nExtras\n")
	r.number("Special socket calls", t.Cork+t.NoDelay+t.Sendpage+t.Splice+t.Urgent, "")
	if r.details {
		for _, c := range []struct {
			name    string
			n       uint64
			counted bool
		}{
			{"cork", t.Cork, true},
			{"nodelay", t.NoDelay, true},
			{"sendpage", t.Sendpage, t.Counts(stats.CountSendpage)},
			{"splice", t.Splice, t.Counts(stats.CountSplice)},
			{"urgent data", t.Urgent, true},
		} {
			r.optional(c.counted, "  "+c.name, c.n, "")
		}
	}
}

// reasons prints the fallback reasons of one side, the most frequent first.
func (r report) reasons(f nl.Fallbacks, side smc.Role, title string) {
	var list []nl.Fallback
	for _, x := range f.Reasons {
		if x.Side == side {
			list = append(list, x)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortStableFunc(list, func(a, b nl.Fallback) int {
		switch {
		case a.Count > b.Count:
			return -1
		case a.Count < b.Count:
			return 1
		}
		return 0
	})
	fmt.Fprintf(r.b, "    %s\n", title)
	for _, x := range list {
		fmt.Fprintf(r.b, "    %12d  %s\n", x.Count, smc.Diagnosis(x.Reason))
	}
}

func (r report) pool(b *stats.Buffers) {
	if r.details {
		r.number("Buffer allocations", b.Alloc, "")
		r.number("Buffer reuses", b.Reuse, "")
		r.number("Buffer downgrades", b.Downgrade, "")
	}
}

// histogram prints two rows under one header: buffers and requests by size.
func (r report) histogram(bufs, reqs stats.Histogram) {
	r.b.WriteString("      ")
	for i := range stats.Buckets {
		name := ">1024KB"
		if limit := stats.BucketLimit(i); limit > 0 {
			name = fmt.Sprintf("%dKB", limit/1024)
		}
		fmt.Fprintf(r.b, " %8s", name)
	}
	for _, row := range []struct {
		name string
		h    stats.Histogram
	}{{"Bufs", bufs}, {"Reqs", reqs}} {
		fmt.Fprintf(r.b, "\n  %s", row.name)
		for _, v := range row.h {
			fmt.Fprintf(r.b, " %8s", abbreviate(v))
		}
	}
	r.b.WriteString("\n")
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return "0.00%"
	}
	return fmt.Sprintf("%.2f%%", 100*float64(part)/float64(whole))
}

// abbreviate writes a number in at most six characters.
func abbreviate(v uint64) string {
	if v < 100000 {
		return fmt.Sprint(v)
	}
	f := float64(v)
	for _, unit := range []string{"K", "M", "G", "T", "P", "E"} {
		f /= 1000
		if f >= 999.95 && unit != "E" {
			continue
		}
		digits := 1
		if f < 99.995 {
			digits = 2
		}
		if f < 9.9995 {
			digits = 3
		}
		return fmt.Sprintf("%.*f%s", digits, f, unit)
	}
	return fmt.Sprint(v)
}
