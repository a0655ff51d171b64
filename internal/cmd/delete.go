// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"

	"smcr/internal/cmdutil"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// deleteOptions name a link group, or a link of it.
type deleteOptions struct {
	*cmdutil.Factory
	group nl.LinkGroupID
	typed string // the group as the user wrote it
	link  uint8
}

func newLinkGroupDelete(f *cmdutil.Factory, runF func(*deleteOptions) error) *cobra.Command {
	opts := &deleteOptions{Factory: f}
	return &cobra.Command{
		Use:     "del GROUP",
		Aliases: []string{"delete"},
		Short:   "End a link group and reset its connections",
		Long: "End a link group in order (RFC 7609, section 3.5.4). The peer is told, and all\n" +
			"connections of the group are reset. The next connection makes a new link group.\n" +
			"The kernel's SMC does not have this operation.",
		Example:           "  smcr linkgroup del 100",
		Args:              cmdutil.OneArg("GROUP"),
		ValidArgsFunction: f.CompleteLinkGroups(),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if opts.group, err = groupArg(args[0]); err != nil {
				return err
			}
			opts.typed = args[0]
			if runF != nil {
				return runF(opts)
			}
			return deleteLinkGroup(cmd.Context(), opts)
		},
	}
}

func newLinkDelete(f *cmdutil.Factory, runF func(*deleteOptions) error) *cobra.Command {
	opts := &deleteOptions{Factory: f}
	return &cobra.Command{
		Use:     "del GROUP LINK",
		Aliases: []string{"delete"},
		Short:   "Delete a link and move its connections to another one",
		Long: "Delete a link of a link group in order (RFC 7609, section 3.5.5.1.3). Its\n" +
			"connections move to another link first, without loss of data. The network device of\n" +
			"the link gets no new link in this group until it has been down and up again. The only\n" +
			"active link of a group is not deleted: 'smcr linkgroup del' ends the group. The\n" +
			"kernel's SMC does not have this operation.\n\n" +
			"LINK is the number of the link in its group, as 'smcr link list' shows it.",
		Example: "  smcr link del 100 2",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cmdutil.CommandError(cmd, "GROUP and LINK are required")
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return f.CompleteLinkGroups()(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if opts.group, err = groupArg(args[0]); err != nil {
				return err
			}
			n, err := strconv.ParseUint(args[1], 10, 8)
			if err != nil || n == 0 {
				return cmdutil.UsageError("invalid link %q: a link has a number from 1 to 255", args[1])
			}
			opts.typed, opts.link = args[0], uint8(n)
			if runF != nil {
				return runF(opts)
			}
			return deleteLink(cmd.Context(), opts)
		},
	}
}

// groupArg returns the ID of a link group, or an error of usage.
func groupArg(arg string) (nl.LinkGroupID, error) {
	id, err := cmdutil.LinkGroupID(arg)
	if err != nil {
		return 0, cmdutil.UsageError("invalid link group %q: %s", arg, err)
	}
	return id &^ 0xff, nil
}

// asTyped returns a link group as lists show it, with all that the user wrote.
func asTyped(typed string) string {
	id, _ := cmdutil.LinkGroupID(typed) // groupArg has checked it
	return id.String()
}

func deleteLinkGroup(ctx context.Context, opts *deleteOptions) error {
	return opts.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.DeleteLinkGroup(ctx, opts.group)
		switch {
		case errors.Is(err, nl.ErrNotSupported):
			return cmdutil.Say(err, "the kernel's SMC cannot end a link group")
		case errors.Is(err, os.ErrNotExist):
			groups, _ := c.LinkGroups(ctx) // without them there is no suggestion
			return opts.noGroup(err, groups)
		}
		return err
	})
}

// noGroup is the error where the link group is not one of groups.
func (opts *deleteOptions) noGroup(err error, groups []nl.LinkGroup) error {
	var ids []string
	for _, g := range groups[:min(len(groups), maxNames)] {
		ids = append(ids, g.ID.String())
	}
	return cmdutil.Say(err, "no link group %s: %s", asTyped(opts.typed), meantID(opts.typed, ids, "see 'smcr linkgroup list'"))
}

func deleteLink(ctx context.Context, opts *deleteOptions) error {
	return opts.WithOne(ctx, func(ctx context.Context, c nl.Control) error {
		err := c.DeleteLink(ctx, opts.group, opts.link)
		switch {
		case errors.Is(err, nl.ErrNotSupported):
			return cmdutil.Say(err, "the kernel's SMC cannot delete a link")
		case errors.Is(err, os.ErrNotExist):
			groups, lerr := c.LinkGroups(ctx)
			if lerr == nil && !slices.ContainsFunc(groups, func(g nl.LinkGroup) bool { return g.ID == opts.group }) {
				return opts.noGroup(err, groups)
			}
			return cmdutil.Say(err, "link group %s has no link %d: see 'smcr link list'", opts.group, opts.link)
		case errors.Is(err, syscall.EBUSY):
			return cmdutil.Say(err, "link %d of link group %s is not active, or no other link is: 'smcr linkgroup del' ends the whole group", opts.link, opts.group)
		}
		return err
	})
}
