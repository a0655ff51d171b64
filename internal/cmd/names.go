// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"os"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// naming says how the arguments of a list select rows. Without arguments all rows
// are listed.
type naming[R any] struct {
	// what a row is, for messages.
	what string
	// parse returns the name that an argument stands for, as messages print it and as
	// the rows have it. An error says what is wrong with the argument.
	parse func(string) (shown, name string, err error)
	// of returns the names of a row.
	of func(*R) []string
	// complete returns the completions of an argument.
	complete cobra.CompletionFunc
}

// A wantedName is a name on the command line: as messages print it, and as the rows
// have it.
type wantedName struct{ shown, name string }

// add makes cmd take names as arguments.
func (n *naming[R]) add(cmd *cobra.Command, o *options) {
	cmd.ValidArgsFunction = n.complete
	cmd.Args = func(_ *cobra.Command, args []string) error {
		o.wanted = nil
		for _, a := range args {
			shown, name, err := n.parse(a)
			if errors.Is(err, cmdutil.ErrUsage) {
				return err
			}
			if err != nil {
				return cmdutil.UsageError("invalid %s %q: %v", n.what, a, err)
			}
			o.wanted = append(o.wanted, wantedName{shown, name})
		}
		return nil
	}
}

// selectRows returns the rows that the arguments name. It is an error if no row has
// one of the names.
func (n *naming[R]) selectRows(o *options, rows []nl.Row[R]) ([]nl.Row[R], error) {
	found := make([]bool, len(o.wanted))
	rows = keepRows(rows, func(r *R) bool {
		names, selected := n.of(r), false
		for i, w := range o.wanted {
			if slices.Contains(names, w.name) {
				found[i], selected = true, true
			}
		}
		return selected
	})
	if i := slices.Index(found, false); i >= 0 {
		return nil, cmdutil.Say(os.ErrNotExist, "no %s %s: see '%s'", n.what, o.wanted[i].shown, o.cmd.CommandPath())
	}
	return rows, nil
}
