// SPDX-License-Identifier: Apache-2.0

package ueid

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
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
		watch.Command(f, "list", "show", "List the user-defined enterprise IDs", read),
		newCmdAdd(f),
		newCmdDel(f),
		f.Action("flush", "Remove all user-defined enterprise IDs", nl.Control.FlushUEID),
	)
	return cmd
}

// An eidJSON is an enterprise ID in JSON.
type eidJSON struct {
	Stack string `json:"stack"`
	UEID  string `json:"ueid"`
}

func read(ctx context.Context, m nl.Multi) (v watch.View[eidJSON], err error) {
	rows, err := nl.All(ctx, m, nl.Control.UEIDs)
	if err != nil {
		return v, err
	}
	t := output.NewTable("UEID", "Stack")
	for _, r := range rows {
		v.Rows = append(v.Rows, eidJSON{r.Stack, r.Value})
		t.Add(r.Value, r.Stack)
	}
	v.Text = func(w io.Writer) error { return t.Print(w) }
	return v, nil
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
		Args:  cmdutil.OneArg("enterprise ID"),
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
	return opts.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
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
	return opts.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.RemoveUEID(ctx, opts.eid)
		if errors.Is(err, os.ErrNotExist) {
			return cmdutil.Say(err, "no enterprise ID %q: see 'smcr ueid list'", opts.eid)
		}
		return err
	})
}
