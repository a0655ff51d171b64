// SPDX-License-Identifier: Apache-2.0

package ueid

import (
	"context"
	"errors"
	"os"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr ueid.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "ueid",
		Short: "Show and change user-defined enterprise IDs (SMC version 2)",
		Long: "Two hosts use version 2 of SMC if they have an enterprise ID in common. An ID has\n" +
			"1 to 32 characters from A-Z, 0-9, '.' and '-'. A stack holds at most four.",
	})
	cmd.AddCommand(
		newCmdList(f),
		newCmdAdd(f),
		newCmdDel(f),
		f.Action("flush", "Remove all user-defined enterprise IDs", nl.Control.FlushUEID),
	)
	return cmd
}

func newCmdAdd(f *cmdutil.Factory) *cobra.Command {
	cmd := newCmdChange(f, nil, "add EID", "Define an enterprise ID", addRun)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func newCmdDel(f *cmdutil.Factory) *cobra.Command {
	cmd := newCmdChange(f, nil, "del EID", "Remove an enterprise ID", delRun)
	cmd.Aliases = []string{"delete"}
	cmd.ValidArgsFunction = f.CompleteUEIDs()
	return cmd
}

type changeOptions struct {
	*cmdutil.Factory
	eid string
}

func newCmdChange(f *cmdutil.Factory, runF func(*changeOptions) error, use, short string, run func(context.Context, *changeOptions) error) *cobra.Command {
	opts := &changeOptions{Factory: f}
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cmdutil.OneArg("EID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var invalid *nl.EIDError
			if err := nl.CheckEID(args[0]); errors.As(err, &invalid) {
				return cmdutil.UsageError("invalid enterprise ID %q: %s", args[0], invalid.Reason)
			}
			opts.eid = args[0]
			if runF != nil {
				return runF(opts)
			}
			return run(cmd.Context(), opts)
		},
	}
}

func addRun(ctx context.Context, opts *changeOptions) error {
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.AddUEID(ctx, opts.eid)
		switch {
		case errors.Is(err, os.ErrExist):
			return cmdutil.Say(err, "enterprise ID %q is already defined", opts.eid)
		case errors.Is(err, syscall.ERANGE):
			return cmdutil.Say(err, "%d enterprise IDs are already defined, the maximum: remove one with 'smcr ueid del'", nl.MaxUEIDs)
		}
		return err
	})
}

func delRun(ctx context.Context, opts *changeOptions) error {
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.RemoveUEID(ctx, opts.eid)
		if errors.Is(err, os.ErrNotExist) {
			return cmdutil.Say(err, "no enterprise ID %q: see 'smcr ueid list'", opts.eid)
		}
		return err
	})
}
