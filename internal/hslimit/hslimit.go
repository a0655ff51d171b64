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
		Short: "Limit SMC handshakes under load",
		Long: "Each SMC connection begins with a handshake that costs more than that of TCP.\n" +
			"With the limitation on, a listener with too many pending handshakes accepts new\n" +
			"connections as plain TCP, so that none waits.",
	})
	cmd.AddCommand(
		watch.Command(f, "show", "list", "Show whether the limitation is on", read),
		f.Action("enable", "Accept connections as plain TCP under pressure", set(true)),
		f.Action("disable", "Make connections wait for their SMC handshake", set(false)),
	)
	return cmd
}

// A limitJSON is the state of the limitation in JSON.
type limitJSON struct {
	Stack   string `json:"stack"`
	Enabled bool   `json:"enabled"`
}

func read(ctx context.Context, m nl.Multi) (v watch.View[limitJSON], err error) {
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
}

func set(on bool) func(nl.Control, context.Context) error {
	return func(c nl.Control, ctx context.Context) error { return c.SetHSLimitation(ctx, on) }
}
