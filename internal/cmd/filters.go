// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"fmt"
	"net/netip"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/internal/typo"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// A filter is a flag that keeps the rows with one of its values.
type filter[R any] struct {
	cmdutil.Filter
	add  func(*cobra.Command)
	keep func(*R) bool
	of   func(*R) []string // the values of a row, or nil if they are not names
	flag string            // "": its values are checked before
}

// mistyped returns a question about a value that no row has but one near to it, or "".
func (f *filter[R]) mistyped(rows []nl.Row[R]) string {
	if f.of == nil || f.flag == "" {
		return ""
	}
	var names []string
	for i := range rows[:min(len(rows), maxNames)] {
		names = append(names, f.of(&rows[i].Value)...)
	}
	for _, v := range f.Values() {
		if near := typo.Nearest(v, names); near != "" && !slices.Contains(names, v) {
			return fmt.Sprintf("nothing with --%s %s: did you mean %q?", f.flag, v, near)
		}
	}
	return ""
}

// newFilter returns a filter on the text that of returns for a row. The function add
// adds the flag to a command.
func newFilter[R any](of func(*R) []string, add func(*cobra.Command, *cmdutil.Filter)) *filter[R] {
	f := &filter[R]{of: of}
	f.add = func(cmd *cobra.Command) { add(cmd, &f.Filter) }
	f.keep = func(r *R) bool { return !f.Any() || f.Keep(of(r)...) }
	return f
}

// one makes a function that returns one text into one that returns several.
func one[R any](of func(*R) string) func(*R) []string {
	return func(r *R) []string { return []string{of(r)} }
}

// byText is a filter on text that is compared as it is.
func byText[R any](name, usage string, complete cobra.CompletionFunc, of func(*R) []string) *filter[R] {
	f := newFilter(of, func(cmd *cobra.Command, f *cmdutil.Filter) { cmdutil.AddFilter(cmd, f, name, usage, complete) })
	f.flag = name
	return f
}

// byNetDev is the filter --netdev.
func byNetDev[R any](usage string, of func(*R) []string) *filter[R] {
	return byText("netdev", usage, cmdutil.CompleteNetDevs, of)
}

// byIBDev is the filter --ibdev for devices of the stacks.
func byIBDev[R any](f *cmdutil.Factory, usage string, of func(*R) []string) *filter[R] {
	return byText("ibdev", usage, f.CompleteIBDevs(), of)
}

// byPNETID is the filter --pnetid. Pnetids are in upper case; the user may write them
// in lower case.
func byPNETID[R any](f *cmdutil.Factory, usage string, of func(*R) string) *filter[R] {
	byID := newFilter(one(of), func(cmd *cobra.Command, fl *cmdutil.Filter) {
		cmdutil.AddUpperFilter(cmd, fl, "pnetid", usage, f.CompletePNETIDs(false))
	})
	byID.flag = "pnetid"
	return byID
}

// byChoice is a filter with a few values, which are in upper case. The user may write
// them in lower case.
func byChoice[R any](name, usage string, of func(*R) string, choices ...string) *filter[R] {
	return newFilter(one(of), func(cmd *cobra.Command, f *cmdutil.Filter) { cmdutil.AddChoiceFilter(cmd, f, name, usage, choices...) })
}

// byRole is the filter --role.
func byRole[R any](of func(*R) string) *filter[R] { return newFilter(one(of), cmdutil.AddRoleFilter) }

// byLinkGroup is the filter --linkgroup.
func byLinkGroup[R any](f *cmdutil.Factory, of func(*R) string) *filter[R] {
	return newFilter(one(of), func(cmd *cobra.Command, fl *cmdutil.Filter) { cmdutil.AddLinkGroupFilter(cmd, fl, f) })
}

// byPeer is the filter --peer: an address with or without port, a prefix, or one of
// the other names of the peer.
func byPeer[R any](f *cmdutil.Factory, usage string, of func(*R) (addr netip.AddrPort, names []string)) *filter[R] {
	fl := &filter[R]{}
	fl.add = func(cmd *cobra.Command) { cmdutil.AddFilter(cmd, &fl.Filter, "peer", usage, f.CompletePeers()) }
	fl.keep = func(r *R) bool {
		if !fl.Any() {
			return true
		}
		addr, names := of(r)
		return fl.KeepAddr(addr, names...)
	}
	return fl
}
