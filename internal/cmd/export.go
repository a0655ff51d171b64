// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/nl"

	"github.com/spf13/cobra"
)

func newExport(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print the configuration of a stack",
		Long: "Print the user settings of an SMC stack as YAML: pnetids, enterprise IDs,\n" +
			"whether it proposes the system enterprise ID, the handshake limitation, and the\n" +
			"cgroups that 'smcr attach' and 'smcr service enable' have attached. 'smcr apply'\n" +
			"restores that state, on this host or another one. The stacks that systemd starts\n" +
			"read " + config.DefaultPath + ".\n\n" +
			"Settings that the stack does not support are left out.",
		Example: "  smcr export\n  smcr --backend kernel export > " + config.DefaultPath,
		Args:    cmdutil.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return export(cmd.Context(), f) },
	}
}

func export(ctx context.Context, f *cmdutil.Factory) error {
	return f.WithOne(ctx, func(ctx context.Context, ctl nl.Control) error {
		c, err := config.Export(ctx, ctl)
		if err != nil {
			return err
		}
		b, err := c.AppendYAML(nil)
		if err != nil {
			return err
		}
		f.IO.Printing()
		_, err = fmt.Fprintf(f.IO.Out, "%s", b)
		return err
	})
}
