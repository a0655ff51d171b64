// SPDX-License-Identifier: Apache-2.0

package hslimit

import (
	"context"
	"io"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// NewCmd returns the command smcr hslimit.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "hslimit",
		Short: "Limitation of SMC handshakes",
		Long: "Each SMC connection begins with a handshake that costs more than that of TCP.\n" +
			"With the limitation on, a listener that has too many of them under way lets new\n" +
			"connections be plain TCP, so that none waits.",
	})
	cmd.AddCommand(
		newCmdShow(f, nil),
		newCmdSet(f, nil, "enable", "Let connections be plain TCP under pressure", true),
		newCmdSet(f, nil, "disable", "Let connections wait for their SMC handshake", false),
	)
	return cmd
}

type showOptions struct {
	*cmdutil.Factory
	format string
	watch  watch.Options
}

func newCmdShow(f *cmdutil.Factory, runF func(*showOptions) error) *cobra.Command {
	opts := &showOptions{Factory: f}
	cmd := &cobra.Command{
		Use:     "show",
		Aliases: []string{"list"},
		Short:   "Show whether the limitation is on",
		Args:    cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(opts)
			}
			return showRun(cmd.Context(), opts)
		},
	}
	cmdutil.AddFormatFlag(cmd, &opts.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	opts.watch.AddFlag(cmd)
	return cmd
}

// A limitJSON is the state of the limitation in JSON.
type limitJSON struct {
	Stack   string `json:"stack"`
	Enabled bool   `json:"enabled"`
}

func showRun(ctx context.Context, opts *showOptions) error {
	return watch.Show(ctx, opts.Factory, opts.watch, opts.format, func(ctx context.Context, m nl.Multi) (v watch.View[limitJSON], err error) {
		rows, err := nl.Each(ctx, m, nl.Control.HSLimitation)
		if err != nil {
			return v, err
		}
		t := output.NewTable("Limitation", "Stack")
		for _, r := range rows {
			v.Rows = append(v.Rows, limitJSON{r.Stack, r.Value})
			t.Add(map[bool]string{true: "on", false: "off"}[r.Value], r.Stack)
		}
		v.Text = func(w io.Writer) error { return t.Print(w) }
		return v, nil
	})
}

type setOptions struct {
	*cmdutil.Factory
	on bool
}

func newCmdSet(f *cmdutil.Factory, runF func(*setOptions) error, use, short string, on bool) *cobra.Command {
	opts := &setOptions{Factory: f, on: on}
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cmdutil.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(opts)
			}
			return opts.WithOne(cmd.Context(), func(ctx context.Context, c nl.Control) error {
				return c.SetHSLimitation(ctx, opts.on)
			})
		},
	}
}
