// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"

	"smcr/internal/cmdutil"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newHSLimit(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "hslimit",
		Short: "Limit SMC handshakes under load",
		Long: "Each SMC connection begins with a handshake that costs more than that of TCP.\n" +
			"With the limitation on, a listener with too many pending handshakes accepts new\n" +
			"connections as plain TCP, so that none waits.",
		Example: "  smcr hslimit show\n  smcr hslimit enable",
	})
	cmd.AddCommand(
		newHSLimitShow(f),
		f.Action("hslimit", "enable", "Accept connections as plain TCP under pressure", setHSLimit(true)),
		f.Action("hslimit", "disable", "Make connections wait for their SMC handshake", setHSLimit(false)),
	)
	return cmd
}

// A hsLimitJSON is the state of the limitation in JSON.
type hsLimitJSON struct {
	Stack   string `json:"stack"`
	Enabled bool   `json:"enabled"`
}

func newHSLimitShow(f *cmdutil.Factory) *cobra.Command {
	return list[bool, hsLimitJSON]{
		source: values(nl.Control.HSLimitation),
		layout: columns[bool]{always: []column[bool]{
			col("Limitation", func(on *bool) any {
				if *on {
					return "on"
				}
				return "off"
			}),
		}},
		json: func(r nl.Row[bool]) hsLimitJSON { return hsLimitJSON{r.Stack, r.Value} },
	}.command(f, &cobra.Command{
		Use:     "show",
		Aliases: []string{"list"},
		Short:   "Show whether the limitation is on",
		Example: "  smcr hslimit show\n  smcr hslimit show -o json",
	})
}

func setHSLimit(on bool) func(nl.Control, context.Context) error {
	return func(c nl.Control, ctx context.Context) error { return c.SetHSLimitation(ctx, on) }
}
