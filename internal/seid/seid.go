// SPDX-License-Identifier: Apache-2.0

package seid

import (
	"context"
	"errors"
	"io"
	"os"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr seid.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "seid",
		Short: "Show, enable and disable the system enterprise ID (SMC version 2)",
		Long: "Hosts with the same system enterprise ID can use version 2 of SMC without a\n" +
			"user-defined one (see 'smcr ueid'). Only IBM Z machines have one.",
	})
	cmd.AddCommand(
		watch.Command(f, "show", "list", "Show the system enterprise ID", read),
		f.Action("enable", "Propose the system enterprise ID to peers", set(true)),
		f.Action("disable", "Propose only user-defined enterprise IDs to peers", set(false)),
	)
	return cmd
}

// A seidJSON is a system enterprise ID in JSON.
type seidJSON struct {
	Stack   string `json:"stack"`
	SEID    string `json:"seid"`
	Enabled bool   `json:"enabled"`
}

func read(ctx context.Context, m nl.Multi) (v watch.View[seidJSON], err error) {
	rows, err := nl.Each(ctx, m, nl.Control.SEID)
	if err != nil {
		return v, err
	}
	t := output.NewTable("SEID", "Proposed", "Stack")
	for _, r := range rows {
		v.Rows = append(v.Rows, seidJSON{r.Stack, r.Value.Value, r.Value.Enabled})
		proposed := "-"
		if r.Value.Value != "" {
			proposed = map[bool]string{true: "Yes", false: "No"}[r.Value.Enabled]
		}
		t.Add(output.Or(r.Value.Value), proposed, r.Stack)
	}
	v.Text = func(w io.Writer) error { return t.Print(w) }
	return v, nil
}

func set(on bool) func(nl.Control, context.Context) error {
	return func(c nl.Control, ctx context.Context) error {
		// Stacks without one have different ways to refuse; the kernel's is the
		// error of any unknown operation.
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
