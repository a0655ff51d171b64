// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"io"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// A list is a command that lists rows of type R. In JSON a row is a J. The text is
// either a table (layout) or a report.
type list[R, J any] struct {
	// source returns all rows.
	source source[R]
	// naming says how arguments select rows. Nil: there are no arguments.
	naming *naming[R]
	// filters are flags that select rows.
	filters []*filter[R]
	// flags adds further flags. May be nil.
	flags func(*cobra.Command)
	// keep selects rows that all filters have kept. It may change the row. May be nil.
	keep func(*options, *R) bool
	// layout makes the table.
	layout layout[R]
	// report writes the rows as text in place of a table.
	report func(*strings.Builder, []nl.Row[R])
	// hint says what more there is to know about the rows, for a person at a terminal, or
	// returns "". May be nil.
	hint func([]nl.Row[R]) string
	// json returns a row in JSON.
	json func(nl.Row[R]) J
}

// options are what the command line of a list says.
type options struct {
	cmd     *cobra.Command
	format  string // table, wide or json
	watch   watch.Options
	wanted  []wantedName
	factory *cmdutil.Factory
	hint    string // of the rows that were read last
}

// given reports whether a flag is on the command line.
func (o *options) given(flag string) bool { return o.cmd.Flags().Changed(flag) }

// named reports whether arguments select rows.
func (o *options) named() bool { return len(o.wanted) > 0 }

// command makes cmd, which has a name and help texts, the command of the list.
func (l list[R, J]) command(f *cmdutil.Factory, cmd *cobra.Command) *cobra.Command {
	o := &options{cmd: cmd, factory: f}
	formats := []string{cmdutil.FormatTable, cmdutil.FormatJSON}
	if l.layout != nil && l.layout.hasWide() {
		formats = slices.Insert(formats, 1, cmdutil.FormatWide)
	}
	cmdutil.AddFormatFlag(cmd, &o.format, formats...)
	o.watch.AddFlag(cmd)
	if l.naming != nil {
		l.naming.add(cmd, o)
	}
	for _, fl := range l.filters {
		fl.add(cmd)
	}
	if l.flags != nil {
		l.flags(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := watch.Loop(cmd.Context(), f.IO, o.watch, o.format, func(ctx context.Context) (watch.View[J], error) {
			return l.view(ctx, o)
		})
		if err == nil && o.hint != "" && o.watch.Interval == 0 && f.IO.IsTerminal() {
			printable.Fprintf(f.IO.ErrOut, "%s\n", o.hint)
		}
		return err
	}
	return cmd
}

// view reads the list once.
func (l list[R, J]) view(ctx context.Context, o *options) (v watch.View[J], err error) {
	rows, err := l.source(ctx, o.factory)
	if err != nil {
		return v, err
	}
	if o.named() {
		if rows, err = l.naming.selectRows(o, rows); err != nil {
			return v, err
		}
	}
	question := ""
	for _, f := range l.filters {
		if question == "" && f.Any() {
			question = f.mistyped(rows)
		}
	}
	rows = keepRows(rows, func(r *R) bool {
		return !slices.ContainsFunc(l.filters, func(f *filter[R]) bool { return !f.keep(r) }) &&
			(l.keep == nil || l.keep(o, r))
	})
	if len(rows) == 0 && question != "" {
		printable.Fprintf(o.factory.IO.ErrOut, "smcr: %s\n", question)
	}
	// Lists can be long: they are made in the one form that is printed.
	if o.format == cmdutil.FormatJSON {
		v.Rows = make([]J, len(rows))
		for i, r := range rows {
			v.Rows[i] = l.json(r)
		}
		return v, nil
	}
	if l.hint != nil {
		o.hint = l.hint(rows)
	}
	v.Text = func(w io.Writer) error {
		if l.report == nil {
			return l.layout.table(rows, o.format == cmdutil.FormatWide).Print(w)
		}
		var b strings.Builder
		l.report(&b, rows)
		_, err := io.WriteString(w, b.String())
		return err
	}
	return v, nil
}

// keepRows removes the rows that keep does not want. It changes rows.
func keepRows[R any](rows []nl.Row[R], keep func(*R) bool) []nl.Row[R] {
	kept := rows[:0]
	for i := range rows {
		if keep(&rows[i].Value) {
			kept = append(kept, rows[i])
		}
	}
	clear(rows[len(kept):])
	return kept
}

// A source returns the rows of a list.
type source[R any] func(context.Context, *cmdutil.Factory) ([]nl.Row[R], error)

// fromStacks is the source of what read learns from the stacks that the user asks.
func fromStacks[R any](read func(context.Context, nl.Multi) ([]nl.Row[R], error)) source[R] {
	return func(ctx context.Context, f *cmdutil.Factory) (rows []nl.Row[R], err error) {
		err = f.With(ctx, func(ctx context.Context, m nl.Multi) error {
			rows, err = read(ctx, m)
			return err
		})
		return rows, err
	}
}

// tables is the source of the rows of one table of each stack.
func tables[R any](read func(nl.Control, context.Context) ([]R, error)) source[R] {
	return fromStacks(func(ctx context.Context, m nl.Multi) ([]nl.Row[R], error) { return nl.All(ctx, m, read) })
}

// traffic is the source of the rows of one table of each stack, also of the stacks that have
// handed over to another process: those still have connections, and what these use.
func traffic[R any](read func(nl.Control, context.Context) ([]R, error)) source[R] {
	now := tables(read)
	return func(ctx context.Context, f *cmdutil.Factory) ([]nl.Row[R], error) {
		rows, err := now(ctx, f)
		if err != nil {
			return nil, err
		}
		err = f.EachEnding(ctx, func(ctx context.Context, m nl.Multi) error {
			more, err := nl.All(ctx, m, read)
			rows = append(rows, more...)
			return err
		})
		return rows, err
	}
}

// values is the source of one value of each stack.
func values[R any](read func(nl.Control, context.Context) (R, error)) source[R] {
	return fromStacks(func(ctx context.Context, m nl.Multi) ([]nl.Row[R], error) { return nl.Each(ctx, m, read) })
}

// A layout makes a table of rows.
type layout[R any] interface {
	// table returns the table; wide adds the columns of -o wide.
	table(rows []nl.Row[R], wide bool) *output.Table
	// hasWide reports whether there are columns of -o wide.
	hasWide() bool
}

// A column is a column of a table.
type column[L any] struct {
	name string
	cell func(*L) any
}

// col returns a column. A name that begins with ">" is aligned at the right; the
// character is not part of the name.
func col[L any](name string, cell func(*L) any) column[L] { return column[L]{name, cell} }

// columns is the layout of one line for each row.
type columns[R any] struct {
	always []column[R]
	wide   []column[R] // with -o wide
	// local says that the rows are not those of a stack. Otherwise the last column is
	// the name of the stack.
	local bool
}

func (c columns[R]) hasWide() bool { return len(c.wide) > 0 }

func (c columns[R]) table(rows []nl.Row[R], wide bool) *output.Table {
	shown := c.always
	if wide {
		shown = slices.Concat(c.always, c.wide)
	}
	names := make([]string, 0, len(shown)+1)
	for _, col := range shown {
		names = append(names, col.name)
	}
	if !c.local {
		names = append(names, "Stack")
	}
	t := output.NewTable(names...)
	for i := range rows {
		cells := make([]any, 0, len(names))
		for _, col := range shown {
			cells = append(cells, col.cell(&rows[i].Value))
		}
		if !c.local {
			cells = append(cells, rows[i].Stack)
		}
		t.Add(cells...)
	}
	return t
}

// lines is the layout of several lines for each row.
type lines[R, L any] struct {
	of func(*R) []L // the lines of a row
	columns[L]
}

func (l lines[R, L]) table(rows []nl.Row[R], wide bool) *output.Table {
	var all []nl.Row[L]
	for i := range rows {
		for _, line := range l.of(&rows[i].Value) {
			all = append(all, nl.Row[L]{Stack: rows[i].Stack, Value: line})
		}
	}
	return l.columns.table(all, wide)
}
