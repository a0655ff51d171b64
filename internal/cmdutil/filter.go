// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"smcr/internal/typo"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// A Filter is a flag that keeps the rows of a list with one of its values. It
// may be repeated, and take several values separated by commas. The zero value
// keeps all rows.
type Filter struct {
	values  []string
	choices []string
	fold    bool
	check   func(string) (string, error)
}

var _ interface{ Type() string } = (*Filter)(nil)

// String implements pflag.Value.
func (f *Filter) String() string { return strings.Join(f.values, ",") }

// Type implements pflag.Value.
func (f *Filter) Type() string { return "value" }

// Set implements pflag.Value.
func (f *Filter) Set(s string) error {
	for v := range strings.SplitSeq(s, ",") {
		if v = strings.TrimSpace(v); v == "" {
			return fmt.Errorf("must not be empty")
		}
		if f.fold {
			v = strings.ToUpper(v)
		}
		if len(f.choices) > 0 && !slices.Contains(f.choices, v) {
			return errors.New(typo.Choose(v, f.choices))
		}
		if f.check != nil {
			w, err := f.check(v)
			if err != nil {
				return err
			}
			v = w
		}
		f.values = append(f.values, v)
	}
	return nil
}

// Values returns the values that the user gave, in their usual form.
func (f *Filter) Values() []string { return f.values }

// Any reports whether the flag was given.
func (f *Filter) Any() bool { return len(f.values) > 0 }

// Keep reports whether the filter keeps a row with these values: when it is not
// given, or one of them is wanted.
func (f *Filter) Keep(values ...string) bool {
	return !f.Any() || slices.ContainsFunc(values, func(v string) bool { return slices.Contains(f.values, v) })
}

// KeepAddr is Keep for a peer: its address with or without port is wanted, or a
// prefix that holds it, or one of the other names.
func (f *Filter) KeepAddr(a netip.AddrPort, names ...string) bool {
	if f.Keep(names...) {
		return true
	}
	addr := PlainAddr(a.Addr())
	return addr.IsValid() && slices.ContainsFunc(f.values, func(v string) bool {
		if p, err := netip.ParsePrefix(v); err == nil {
			return p.Contains(addr)
		}
		if p, err := netip.ParseAddrPort(v); err == nil {
			return PlainAddr(p.Addr()) == addr && p.Port() == a.Port()
		}
		w, err := netip.ParseAddr(v)
		return err == nil && PlainAddr(w) == addr
	})
}

// AddFilter adds a filter for text that is compared as it is.
func AddFilter(cmd *cobra.Command, f *Filter, name, usage string, complete cobra.CompletionFunc) {
	if complete == nil {
		complete = cobra.NoFileCompletions
	}
	cmd.Flags().Var(f, name, usage)
	// The error of an unknown name is one of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc(name, complete)
}

// AddChoiceFilter adds a filter of a few values, which are in upper case and may
// be given in lower case.
func AddChoiceFilter(cmd *cobra.Command, f *Filter, name, usage string, choices ...string) {
	*f = Filter{choices: choices, fold: true}
	AddFilter(cmd, f, name, usage+": "+strings.Join(choices, ", "), cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// AddRoleFilter adds --role, which also understands server and client.
func AddRoleFilter(cmd *cobra.Command, f *Filter) {
	*f = Filter{check: func(s string) (string, error) {
		switch strings.ToLower(s) {
		case "serv", "server":
			return "SERV", nil
		case "clnt", "client":
			return "CLNT", nil
		}
		return "", errors.New(typo.Choose(s, []string{"client", "server"}))
	}}
	AddFilter(cmd, f, "role", "show only entries where this side has this `role` in the link group: client or server",
		cobra.FixedCompletions([]string{"client", "server"}, cobra.ShellCompDirectiveNoFileComp))
}

// AddUpperFilter adds a filter for text that is kept in upper case, as pnetids
// are.
func AddUpperFilter(cmd *cobra.Command, f *Filter, name, usage string, complete cobra.CompletionFunc) {
	*f = Filter{fold: true}
	AddFilter(cmd, f, name, usage, complete)
}

// AddCheckedFilter adds a filter whose values go through a function that returns
// their usual form.
func AddCheckedFilter(cmd *cobra.Command, f *Filter, name, usage string, check func(string) (string, error), complete cobra.CompletionFunc) {
	*f = Filter{check: check}
	AddFilter(cmd, f, name, usage, complete)
}

// AddLinkGroupFilter adds --linkgroup.
func AddLinkGroupFilter(cmd *cobra.Command, filter *Filter, f *Factory) {
	AddCheckedFilter(cmd, filter, "linkgroup", "show only entries of the link group with this `ID`", func(s string) (string, error) {
		id, err := LinkGroupID(s)
		return id.String(), err
	}, f.CompleteLinkGroups())
}

// LinkGroupID reads the identifier of a link group, or of a link. The error says
// what one looks like.
func LinkGroupID(s string) (nl.LinkGroupID, error) {
	id, err := nl.ParseLinkGroupID(strings.TrimPrefix(strings.TrimPrefix(s, "0x"), "0X"))
	if err != nil {
		return 0, fmt.Errorf("an identifier has 1 to 8 hexadecimal digits")
	}
	return id, nil
}
