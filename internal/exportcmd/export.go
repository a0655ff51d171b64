// SPDX-License-Identifier: Apache-2.0

package exportcmd

import (
	"context"
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/nl"

	"github.com/spf13/cobra"
)

type options struct {
	*cmdutil.Factory
}

// NewCmd returns the command smcr export.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, nil) }

func newCmd(f *cmdutil.Factory, runF func(*options) error) *cobra.Command {
	opts := &options{Factory: f}
	return &cobra.Command{
		Use:   "export",
		Short: "Print the configuration of a stack",
		Long: "Print the user settings of an SMC stack as YAML: pnetids, enterprise IDs,\n" +
			"whether it proposes the system enterprise ID, and the handshake limitation.\n" +
			"'smcr apply' restores that state, on this host or another one. The services read\n" +
			config.DefaultPath + " at boot.\n\n" +
			"Settings that the stack does not support are left out.",
		Example: "  smcr export\n  smcr --backend kernel export > " + config.DefaultPath,
		Args:    cmdutil.NoArgs,
		RunE:    cmdutil.RunE(opts, runF, run),
	}
}

func run(ctx context.Context, opts *options) error {
	return opts.WithOne(ctx, func(ctx context.Context, ctl nl.Control) error {
		c, err := config.Export(ctx, ctl)
		if err != nil {
			return err
		}
		b, err := c.AppendYAML(nil)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(opts.IO.Out, "%s", b)
		return err
	})
}
