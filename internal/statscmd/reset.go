// SPDX-License-Identifier: Apache-2.0

package statscmd

import (
	"context"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/face"
	"smcr/internal/smctools/smcrd"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newCmdReset(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "reset",
		Short: "Reset the counters for this user",
		Long: "Set the counters that 'smcr stats show' prints for this user to zero, in all forms\n" +
			"of output. The counters of the stack itself do not change: --absolute shows them.",
		Args: cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return resetRun(cmd.Context(), f) },
	}
}

func resetRun(ctx context.Context, f *cmdutil.Factory) error {
	return f.With(ctx, func(ctx context.Context, m nl.Multi) error {
		rows, err := nl.Each(ctx, m, read)
		if err != nil {
			return err
		}
		e := face.NewEnv(f, "smcr")
		for _, r := range rows {
			if err := smcrd.Reset(e, r.Stack, r.Value.stats, r.Value.fallbacks); err != nil {
				return err
			}
		}
		return nil
	})
}

// sinceReset makes the counters those since the last reset, be it ours or that
// of smc-tools' grammar.
func sinceReset(f *cmdutil.Factory, rows []nl.Row[snapshot]) (err error) {
	e := face.NewEnv(f, "smcr")
	for i := range rows {
		v := &rows[i].Value
		if v.stats, v.fallbacks, err = smcrd.SinceReset(e, rows[i].Stack, v.stats, v.fallbacks); err != nil {
			return err
		}
	}
	return nil
}
