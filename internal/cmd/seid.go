// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"os"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newSEID(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "seid",
		Short: "Show, enable and disable the system enterprise ID (SMC version 2)",
		Long: "Hosts with the same system enterprise ID can use version 2 of SMC without a\n" +
			"user-defined one (see 'smcr ueid'). Only IBM Z machines have one.",
		Example: "  smcr seid show\n  smcr seid enable",
	})
	cmd.AddCommand(
		newSEIDShow(f),
		f.Action("seid", "enable", "Propose the system enterprise ID to peers", setSEID(true)),
		f.Action("seid", "disable", "Propose only user-defined enterprise IDs to peers", setSEID(false)),
	)
	return cmd
}

// A seidJSON is a system enterprise ID in JSON.
type seidJSON struct {
	Stack   string `json:"stack"`
	SEID    string `json:"seid"`
	Enabled bool   `json:"enabled"`
}

func newSEIDShow(f *cmdutil.Factory) *cobra.Command {
	return list[nl.SEID, seidJSON]{
		source: values(nl.Control.SEID),
		layout: columns[nl.SEID]{always: []column[nl.SEID]{
			col("SEID", func(s *nl.SEID) any { return output.Or(s.Value) }),
			col("Proposed", func(s *nl.SEID) any {
				if s.Value == "" {
					return "-"
				}
				return output.YesNo(s.Enabled)
			}),
		}},
		json: func(r nl.Row[nl.SEID]) seidJSON { return seidJSON{r.Stack, r.Value.Value, r.Value.Enabled} },
	}.command(f, &cobra.Command{
		Use:     "show",
		Aliases: []string{"list"},
		Short:   "Show the system enterprise ID",
		Example: "  smcr seid show\n  smcr seid show -o json",
	})
}

func setSEID(on bool) func(nl.Control, context.Context) error {
	return func(c nl.Control, ctx context.Context) error {
		// Stacks without a system enterprise ID refuse the change with different
		// errors; the kernel refuses it like any unknown operation.
		s, err := c.SEID(ctx)
		if err != nil {
			return err
		}
		if s.Value == "" {
			return cmdutil.Say(os.ErrNotExist, "this host has no system enterprise ID (IBM Z only): use 'smcr ueid add'")
		}
		err = c.SetSEID(ctx, on)
		if errors.Is(err, os.ErrNotExist) && !on {
			return cmdutil.Say(err, "the system enterprise ID is the only one: first define another with 'smcr ueid add'")
		}
		return err
	}
}
