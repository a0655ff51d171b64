// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/smctools/smcrd"
	"smcr/internal/smctools/tool"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newStats(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "stats",
		Short:   "Show the counters of SMC-R",
		Example: "  smcr stats show -d\n  smcr stats reset",
	})
	cmd.AddCommand(newStatsShow(f), newStatsReset(f), newStatsWatch(f))
	return cmd
}

func newStatsShow(f *cmdutil.Factory) *cobra.Command {
	var details, absolute bool
	return list[counters, statsJSON]{
		source: func(ctx context.Context, f *cmdutil.Factory) ([]nl.Row[counters], error) {
			rows, err := values(readCounters)(ctx, f)
			if err == nil && !absolute {
				err = sinceReset(f, rows)
			}
			if err != nil {
				return nil, err
			}
			// A reset does not concern the stacks that have handed over: they began to
			// count when they did that.
			err = f.EachEnding(ctx, func(ctx context.Context, m nl.Multi) error {
				more, err := nl.Each(ctx, m, readCounters)
				rows = append(rows, more...)
				return err
			})
			return rows, err
		},
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVarP(&details, "details", "d", false, "split by side, version and reason")
			cmd.Flags().BoolVarP(&absolute, "absolute", "a", false, "count since the stack was started, ignoring resets")
		},
		report: func(b *strings.Builder, rows []nl.Row[counters]) {
			for i, r := range rows {
				if i > 0 {
					b.WriteString("\n")
				}
				if len(rows) > 1 {
					printable.Fprintf(b, "Stack: %s\n", r.Stack)
				}
				statsReport{b, details}.print(&r.Value)
			}
		},
		hint: func(rows []nl.Row[counters]) string {
			var why []uint32
			for _, r := range rows {
				f := r.Value.fallbacks
				for _, x := range slices.Concat(f.Reasons, f.PeerReasons) {
					if x.Count > 0 {
						why = append(why, x.Reason)
					}
				}
			}
			return reasonHint(why)
		},
		json: newStatsJSON,
	}.command(f, &cobra.Command{
		Use:     "show",
		Aliases: []string{"list"},
		Short:   "Show the counters since the stack was started, or since a reset",
		Long: "Show the SMC-R counters of this network namespace: connections, fallbacks to TCP\n" +
			"and their reasons, and requests and buffers by size. They count since the stack\n" +
			"was started, or since your last 'smcr stats reset'. A counter that the stack does\n" +
			"not have is shown as '-', and as null in JSON. With --details, the user-space stack\n" +
			"also shows the reasons that peers gave when they declined.\n\n" +
			"The user-space stack sees the bytes of programs under 'smcr run', but not their\n" +
			"calls. A request is then one transfer between the stack's end of the program's\n" +
			"connection and the buffers of SMC-R.\n\n" +
			"'smcr explain CODE' says more about the reason of a fallback, and what to do.",
		Example: "  smcr stats show -d --watch\n  smcr stats show -o json",
		Args:    cmdutil.NoArgs,
	})
}

// counters are all counters of one stack.
type counters struct {
	stats     nl.Stats
	fallbacks nl.Fallbacks
	resent    *nl.Resent // of all devices in use; nil if none counts it
}

func readCounters(c nl.Control, ctx context.Context) (counters, error) {
	s, err := c.Stats(ctx)
	if err != nil {
		return counters{}, err
	}
	f, err := c.Fallbacks(ctx)
	if err != nil {
		return counters{}, err
	}
	devices, err := c.Devices(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		err = nil
	}
	return counters{s, f, nl.SumResent(devices)}, err
}

func newStatsReset(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "reset",
		Short:   "Reset the counters for this user",
		Example: "  smcr stats reset",
		Long: "Set the counters that 'smcr stats show' prints for this user to zero, in all forms\n" +
			"of output. The counters of the stack itself do not change: --absolute shows them.",
		Args: cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return resetStats(cmd.Context(), f) },
	}
}

func resetStats(ctx context.Context, f *cmdutil.Factory) error {
	return f.With(ctx, func(ctx context.Context, m nl.Multi) error {
		rows, err := nl.Each(ctx, m, readCounters)
		if err != nil {
			return err
		}
		e := tool.NewEnv(f, "smcr")
		for _, r := range rows {
			if err := smcrd.Reset(e, r.Stack, r.Value.stats, r.Value.fallbacks); err != nil {
				return err
			}
		}
		return nil
	})
}

// sinceReset changes the counters to what was counted since the last reset, by smcr
// stats reset or by a program of smc-tools.
func sinceReset(f *cmdutil.Factory, rows []nl.Row[counters]) (err error) {
	e := tool.NewEnv(f, "smcr")
	for i := range rows {
		v := &rows[i].Value
		if v.stats, v.fallbacks, err = smcrd.SinceReset(e, rows[i].Stack, v.stats, v.fallbacks); err != nil {
			return err
		}
	}
	return nil
}
