// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"os"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/typo"
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
	// hex says that names are identifiers in hexadecimal, with zeros at the beginning.
	hex bool
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

// maxNames is among how many rows a mistyped name is looked for.
const maxNames = 1000

// selectRows returns the rows that the arguments name. It is an error if no row has
// one of the names.
func (n *naming[R]) selectRows(o *options, rows []nl.Row[R]) ([]nl.Row[R], error) {
	found := make([]bool, len(o.wanted))
	var all []string // a few are enough for a mistyped one
	for i := range rows[:min(len(rows), maxNames)] {
		all = append(all, n.of(&rows[i].Value)...)
	}
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
		return nil, cmdutil.Say(os.ErrNotExist, "no %s %s: %s", n.what, o.wanted[i].shown,
			n.meant(o.wanted[i], all, "see '"+o.cmd.CommandPath()+"'"))
	}
	return rows, nil
}

// meant returns the question for the name that was probably meant, or what to do otherwise.
func (n *naming[R]) meant(name wantedName, all []string, otherwise string) string {
	if n.hex {
		return meantID(name.shown, all, otherwise)
	}
	return typo.Meant(name.name, all, otherwise)
}

// meantID is typo.Meant for identifiers in hexadecimal. The zeros at their beginning say
// nothing about how near they are.
func meantID(id string, all []string, otherwise string) string {
	short := make([]string, len(all))
	for i, s := range all {
		short[i] = strings.TrimLeft(s, "0")
	}
	return typo.Meant(strings.TrimLeft(id, "0"), short, otherwise)
}
