// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"os"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// Names are the rows that the words after a command which lists name. Without
// any, all rows are listed.
type Names struct {
	what, command string
	wanted        []wanted
}

// A wanted is a name as it is told to the user, and as rows have it.
type wanted struct{ told, key string }

// AddNames makes the command take names of what it lists. The function read
// returns a name as it is told and as rows have it, or says what is wrong with
// it. It goes after AddFlags.
func (o *ListOptions) AddNames(cmd *cobra.Command, what string, read func(string) (told, key string, err error), complete cobra.CompletionFunc) {
	o.Names.what = what
	cmd.ValidArgsFunction = complete
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		o.Names.command, o.Names.wanted = cmd.CommandPath(), nil
		for _, a := range args {
			told, key, err := read(a)
			if errors.Is(err, cmdutil.ErrUsage) {
				return err
			}
			if err != nil {
				return cmdutil.UsageError("invalid %s %q: %v", what, a, err)
			}
			o.Names.wanted = append(o.Names.wanted, wanted{told, key})
		}
		return nil
	}
}

// Any reports whether there are names.
func (n *Names) Any() bool { return len(n.wanted) > 0 }

// keepNamed leaves the rows that are named. A name that no row has is an error.
func keepNamed[R any](n *Names, rows []nl.Row[R], names func(*R) []string) ([]nl.Row[R], error) {
	if !n.Any() {
		return rows, nil
	}
	found := make([]bool, len(n.wanted))
	rows = slices.DeleteFunc(rows, func(r nl.Row[R]) bool {
		has, named := names(&r.Value), false
		for i, w := range n.wanted {
			if slices.Contains(has, w.key) {
				found[i], named = true, true
			}
		}
		return !named
	})
	if i := slices.Index(found, false); i >= 0 {
		return nil, cmdutil.Say(os.ErrNotExist, "no %s %s: see '%s'", n.what, n.wanted[i].told, n.command)
	}
	return rows, nil
}
