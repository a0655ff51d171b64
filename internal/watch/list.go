// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"io"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// ListOptions are the options that all commands which show a list have.
type ListOptions struct {
	*cmdutil.Factory
	// Format is one of those given to AddFlags.
	Format string
	// Watch says whether to show the list again and again.
	Watch Options
	// Names are the rows to list, for commands with AddNames.
	Names Names
}

// AddFlags adds --output with these formats, the first being the default, and
// --watch.
func (o *ListOptions) AddFlags(cmd *cobra.Command, formats ...string) {
	cmdutil.AddFormatFlag(cmd, &o.Format, formats...)
	o.Watch.AddFlag(cmd)
}

// A List is a table that all stacks have, of rows R that are J in JSON.
type List[R, J any] struct {
	// Read asks one stack.
	Read func(nl.Control, context.Context) ([]R, error)
	// Names returns what names a row, for commands with AddNames.
	Names func(*R) []string
	// Filter leaves the rows that were asked for. It may change them in place.
	Filter func(context.Context, nl.Multi, []nl.Row[R]) ([]nl.Row[R], error)
	// JSON returns a row as it is in JSON.
	JSON func(nl.Row[R]) J
	// Table returns the rows as text.
	Table func(rows []nl.Row[R], wide bool) *output.Table
}

// Show asks the stacks for the list and shows it, once or repeatedly.
func (l List[R, J]) Show(ctx context.Context, o *ListOptions) error {
	return Show(ctx, o, func(ctx context.Context, m nl.Multi) (v View[J], err error) {
		rows, err := nl.All(ctx, m, l.Read)
		if err != nil {
			return v, err
		}
		if rows, err = keepNamed(&o.Names, rows, l.Names); err != nil {
			return v, err
		}
		if rows, err = l.Filter(ctx, m, rows); err != nil {
			return v, err
		}
		// Lists can be long: they are made in the one form that is printed.
		if o.Format == cmdutil.FormatJSON {
			v.Rows = make([]J, len(rows))
			for i, r := range rows {
				v.Rows[i] = l.JSON(r)
			}
		}
		v.Text = func(w io.Writer) error { return l.Table(rows, o.Format == cmdutil.FormatWide).Print(w) }
		return v, nil
	})
}

// Keep returns a filter that looks at one row after the other.
func Keep[R any](keep func(*R) bool) func(context.Context, nl.Multi, []nl.Row[R]) ([]nl.Row[R], error) {
	return func(_ context.Context, _ nl.Multi, rows []nl.Row[R]) ([]nl.Row[R], error) {
		kept := rows[:0]
		for i := range rows {
			if keep(&rows[i].Value) {
				kept = append(kept, rows[i])
			}
		}
		clear(rows[len(kept):])
		return kept, nil
	}
}
