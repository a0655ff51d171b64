// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"os"

	"smcr/internal/cmdutil"
	"smcr/internal/sample"
	"smcr/internal/sysfs"
	"smcr/internal/watch"

	"github.com/spf13/cobra"
)

// ErrNoTerminal means that the output or the input is not a terminal that can show a screen.
var ErrNoTerminal = errors.New("top: no terminal")

// NewCmd returns the command smcr top.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	interval := watch.DefaultInterval
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show link groups, links, connections and their rates, live",
		Long: "Show the link groups, links, connections and fallbacks of the SMC stacks of this\n" +
			"network namespace with their rates on a terminal, until you press q. The key ?\n" +
			"shows all keys; 1 to 5 choose the view, s and r sort, / filters.\n\n" +
			"Rates are those since the last refresh. Each view shows the first 1000 rows in its\n" +
			"order. A dash is what a stack does not count: the kernel does not say which\n" +
			"process has a connection, and counts retransmissions only for some RNICs.\n\n" +
			"For scripts, 'smcr stats watch' prints the rates as lines.",
		Example: "  smcr top\n  smcr top --interval 500ms\n  smcr --backend kernel top",
		Args:    cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTerminal(f.IO, os.Getenv("TERM")); err != nil {
				return err
			}
			r := &sample.Reader{Factory: f, Sysfs: sysfs.New(sysfs.DefaultRoot)}
			return run(cmd.Context(), r, interval, f.IO.In, f.IO.Out)
		},
	}
	watch.AddInterval(cmd, &interval, "time between refreshes")
	return cmd
}

// checkTerminal returns an error that says what to use if no screen can be shown.
func checkTerminal(streams *cmdutil.IOStreams, term string) error {
	const instead = "use 'smcr stats watch' for rates as lines, or a list with --watch, such as 'smcr connection list --watch'"
	switch {
	case !streams.IsTerminal():
		return cmdutil.Say(ErrNoTerminal, "the output is not a terminal: %s", instead)
	case !streams.InIsTerminal():
		return cmdutil.Say(ErrNoTerminal, "the input is not a terminal, so there are no keys: %s", instead)
	case term == "" || term == "dumb":
		return cmdutil.Say(ErrNoTerminal, "this terminal cannot show a screen (TERM=%s): %s", term, instead)
	}
	return nil
}
