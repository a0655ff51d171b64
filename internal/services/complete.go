// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"smcr/internal/ours"
	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// completeTime bounds how long a shell waits for names of units.
const completeTime = 2 * time.Second

// CompleteUnits completes names of units that have sockets: services, with templates and instances, socket units, and
// slices.
func CompleteUnits(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completions(cmd, args, word, newSystemd().unitNames)
}

// completeUnits is CompleteUnits for arguments.
func (o *options) completeUnits(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completions(cmd, args, word, o.unitNames)
}

// completeEnabled completes names of units that are enabled.
func (o *options) completeEnabled(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completions(cmd, args, word, func(ctx context.Context) (names []string) {
		_ = o.stack(ctx, func(ctx context.Context, a nl.Attacher) error {
			all, err := o.entries(ctx, a, Unit{})
			for _, x := range all {
				if x.isUnit() {
					names = append(names, x.unit)
				}
			}
			return err
		})
		return names
	})
}

// completions returns names of units as users write them. Those that were given already are no choice.
func completions(cmd *cobra.Command, args []string, word string, list func(context.Context) []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	var names []cobra.Completion
	for _, name := range list(ctx) {
		// Who has typed more of the name than its short form gets the long one.
		s := short(name)
		if unitName(s) != name || strings.HasPrefix(word, s+".") {
			s = name
		}
		if !slices.Contains(args, s) && !slices.Contains(args, name) {
			names = append(names, printable.Line(s))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// listed are the kinds of units that are completed: mount and swap units have no sockets, and scopes come and go.
const listed = "--type=service,socket,slice"

// unitNames returns the units that have a file, with templates, and those that systemd has loaded, with instances, but for those of smcr.
func (s systemd) unitNames(ctx context.Context) (names []string) {
	for _, args := range [][]string{{"list-unit-files"}, {"list-units", "--all"}} {
		out, err := s.ask(ctx, append(args, listed, "--no-legend", "--plain", "--full")...)
		if err != nil {
			continue // there is nothing to complete
		}
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) < 2 || !slices.Contains(kinds, path.Ext(f[0])) || slices.Contains([]string{"not-found", "masked"}, f[1]) || ours.Unit(f[0]) {
				continue
			}
			names = append(names, f[0])
		}
	}
	return names
}
