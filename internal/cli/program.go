// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"os"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools"
	"smcr/internal/smctools/smcchk"
	"smcr/internal/smctools/tool"

	"github.com/spf13/cobra"
)

// Program runs the program that argv[0] names, with the remaining arguments, and
// returns its exit status. As smcr it has two grammars: that of smc-tools for
// the command lines that smc-tools knows, and our own.
func Program(ctx context.Context, f *cmdutil.Factory, argv []string) int {
	if len(argv) > 1 && argv[1] == smcchk.PeerCommand {
		return smcchk.Peer(ctx, f.IO.In, argv[2:])
	}
	if m := smctools.Lookup(argv[0]); m != nil {
		return smctools.Run(ctx, f, m, argv)
	}
	if os.Getenv(smctools.CompatEnv) == "strict" {
		return smctools.Run(ctx, f, smctools.SMCR, argv)
	}
	if f.Start == nil {
		f.Start = start
	}
	env := tool.NewEnv(copyOf(f), "smcr")
	args := env.TakeBackend(argv[1:])
	root := NewRoot(copyOf(f))
	if smctools.IsLegacy(args, func(words ...string) string { return find(root, words) }) {
		return legacy(ctx, f, root, env.Backend, args, argv)
	}
	return Main(ctx, f, argv[1:])
}

func copyOf(f *cmdutil.Factory) *cmdutil.Factory {
	g := *f
	return &g
}

// find returns the name of the subcommand of cmd that words, names or aliases,
// lead to, or "".
func find(cmd *cobra.Command, words []string) string {
	for _, word := range words {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == word || c.HasAlias(word) })
		if i < 0 {
			return ""
		}
		cmd = cmd.Commands()[i]
	}
	return cmd.Name()
}
