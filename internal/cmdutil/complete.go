// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"context"
	"net"
	"slices"
	"time"

	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// completeTimeout bounds how long a shell waits for completions.
const completeTimeout = time.Second

// complete makes a completion out of what the stacks answer. Where none answers
// there is nothing to complete; a shell is no place for errors.
func (f *Factory) complete(first bool, ask func(context.Context, nl.Multi) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if first && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completeTimeout)
		defer cancel()
		m, err := f.Dial(ctx, f.Backend)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer m.Close()
		values := ask(ctx, m)
		slices.Sort(values)
		return slices.Compact(values), cobra.ShellCompDirectiveNoFileComp
	}
}

// column completes with a column of a table of all stacks that answer.
func column[T any](list func(nl.Control, context.Context) ([]T, error), values func(T) []string) func(context.Context, nl.Multi) []string {
	return func(ctx context.Context, m nl.Multi) []string {
		var out []string
		for _, b := range m {
			rows, err := list(b.Control, ctx)
			if err != nil {
				continue
			}
			for _, r := range rows {
				for _, v := range values(r) {
					if v != "" {
						out = append(out, printable.Line(v))
					}
				}
			}
		}
		return out
	}
}

// CompleteNetDevs completes the network devices of this network namespace.
func CompleteNetDevs(_ *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return NetDevs(), cobra.ShellCompDirectiveNoFileComp
}

// NetDevs returns the names of the network devices of this network namespace, without the
// loopback device. It returns none if they cannot be read.
func NetDevs() (names []string) {
	devs, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, d := range devs {
		if d.Flags&net.FlagLoopback == 0 {
			names = append(names, printable.Line(d.Name))
		}
	}
	return names
}

// CompleteIBDevs completes the RoCE devices of the stacks.
func (f *Factory) CompleteIBDevs() cobra.CompletionFunc {
	return f.complete(false, column(nl.Control.Devices, func(d nl.Device) []string { return []string{d.Name} }))
}

// CompletePNETIDs completes pnetids: those that users gave, and of the devices.
// With first they are completed as first argument only.
func (f *Factory) CompletePNETIDs(first bool) cobra.CompletionFunc {
	given := column(nl.Control.PNETs, func(p nl.PNET) []string { return []string{p.ID} })
	of := column(nl.Control.Devices, func(d nl.Device) (ids []string) {
		for _, p := range d.Ports {
			ids = append(ids, p.PNETID)
		}
		return ids
	})
	return f.complete(first, func(ctx context.Context, m nl.Multi) []string {
		if first {
			return given(ctx, m) // those that can be removed
		}
		return append(given(ctx, m), of(ctx, m)...)
	})
}

// CompleteUEIDs completes the user-defined enterprise IDs as first argument.
func (f *Factory) CompleteUEIDs() cobra.CompletionFunc {
	return f.complete(true, column(nl.Control.UEIDs, func(s string) []string { return []string{s} }))
}

// CompleteLinkGroups completes the identifiers of link groups.
func (f *Factory) CompleteLinkGroups() cobra.CompletionFunc {
	return f.complete(false, column(nl.Control.LinkGroups, func(g nl.LinkGroup) []string { return []string{g.ID.String()} }))
}

// CompletePeers completes the addresses of the link groups' peers.
func (f *Factory) CompletePeers() cobra.CompletionFunc {
	return f.complete(false, column(nl.Control.LinkGroups, func(g nl.LinkGroup) []string { return []string{g.Peer} }))
}
