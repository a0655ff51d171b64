// SPDX-License-Identifier: Apache-2.0

package ueid

import (
	"context"
	"errors"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// An eidJSON is an enterprise ID in JSON.
type eidJSON struct {
	Stack string `json:"stack"`
	UEID  string `json:"ueid"`
}

func newCmdList(f *cmdutil.Factory) *cobra.Command {
	opts := &watch.ListOptions{Factory: f}
	cmd := &cobra.Command{
		Use:     "list [EID...]",
		Aliases: []string{"show"},
		Short:   "List the user-defined enterprise IDs",
		RunE:    cmdutil.RunE(opts, nil, listRun),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatJSON)
	opts.AddNames(cmd, "enterprise ID", func(s string) (told, key string, err error) {
		var invalid *nl.EIDError
		if err = nl.CheckEID(s); errors.As(err, &invalid) {
			err = errors.New(invalid.Reason)
		}
		return strconv.Quote(s), s, err
	}, f.CompleteUEIDs())
	return cmd
}

func listRun(ctx context.Context, opts *watch.ListOptions) error {
	return watch.List[string, eidJSON]{
		Read:   nl.Control.UEIDs,
		Names:  func(eid *string) []string { return []string{*eid} },
		Filter: watch.Keep(func(*string) bool { return true }),
		JSON:   func(r nl.Row[string]) eidJSON { return eidJSON{r.Stack, r.Value} },
		Table: func(rows []nl.Row[string], _ bool) *output.Table {
			t := output.NewTable("UEID", "Stack")
			for _, r := range rows {
				t.Add(r.Value, r.Stack)
			}
			return t
		},
	}.Show(ctx, opts)
}
