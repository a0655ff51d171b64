// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/internal/typo"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newUEID(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "ueid",
		Short: "Show and change user-defined enterprise IDs (SMC version 2)",
		Long: "Two hosts use version 2 of SMC if they have an enterprise ID in common. An ID has\n" +
			"1 to 32 characters from A-Z, 0-9, '.' and '-'. A stack holds at most four.",
		Example: "  smcr ueid list\n  smcr ueid add EXAMPLE.COM-1\n  smcr ueid del EXAMPLE.COM-1",
	})
	cmd.AddCommand(
		newUEIDList(f),
		newUEIDAdd(f),
		newUEIDDel(f),
		f.Action("ueid", "flush", "Remove all user-defined enterprise IDs", nl.Control.FlushUEID),
	)
	return cmd
}

// An eidJSON is an enterprise ID in JSON.
type eidJSON struct {
	Stack string `json:"stack"`
	UEID  string `json:"ueid"`
}

func newUEIDList(f *cmdutil.Factory) *cobra.Command {
	return list[string, eidJSON]{
		source: tables(nl.Control.UEIDs),
		naming: &naming[string]{
			what: "enterprise ID",
			parse: func(s string) (shown, name string, err error) {
				var invalid *nl.EIDError
				if err = nl.CheckEID(s); errors.As(err, &invalid) {
					err = errors.New(invalid.Reason)
				}
				return strconv.Quote(s), s, err
			},
			of:       func(eid *string) []string { return []string{*eid} },
			complete: f.CompleteUEIDs(),
		},
		layout: columns[string]{always: []column[string]{col("UEID", func(eid *string) any { return *eid })}},
		json:   func(r nl.Row[string]) eidJSON { return eidJSON{r.Stack, r.Value} },
	}.command(f, &cobra.Command{
		Use:     "list [EID...]",
		Aliases: []string{"show"},
		Short:   "List the user-defined enterprise IDs",
		Example: "  smcr ueid list\n  smcr ueid list -o json",
	})
}

func newUEIDAdd(f *cmdutil.Factory) *cobra.Command {
	cmd := newUEIDChange(f, nil, "add EID", "Define an enterprise ID", addUEID)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func newUEIDDel(f *cmdutil.Factory) *cobra.Command {
	cmd := newUEIDChange(f, nil, "del EID", "Remove an enterprise ID", removeUEID)
	cmd.Aliases = []string{"delete"}
	cmd.ValidArgsFunction = f.CompleteUEIDs()
	return cmd
}

type ueidOptions struct {
	*cmdutil.Factory
	eid string
}

func newUEIDChange(f *cmdutil.Factory, runF func(*ueidOptions) error, use, short string, run func(context.Context, *ueidOptions) error) *cobra.Command {
	opts := &ueidOptions{Factory: f}
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cmdutil.OneArg("EID"),

		Example: "  smcr ueid " + strings.Replace(use, "EID", "EXAMPLE.COM-1", 1),
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

func addUEID(ctx context.Context, opts *ueidOptions) error {
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

func removeUEID(ctx context.Context, opts *ueidOptions) error {
	return opts.Change(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.RemoveUEID(ctx, opts.eid)
		if errors.Is(err, os.ErrNotExist) {
			eids, _ := c.UEIDs(ctx) // without them there is no suggestion
			return cmdutil.Say(err, "no enterprise ID %q: %s", opts.eid, typo.Meant(opts.eid, eids, "see 'smcr ueid list'"))
		}
		return err
	})
}
