// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/topology"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

// The formats of smcr topology besides JSON.
const (
	formatText = "text"
	formatDOT  = "dot"
	formatSVG  = "svg"
)

// ratesTime is how long --rates measures.
const ratesTime = time.Second

func newTopology(f *cmdutil.Factory) *cobra.Command {
	t := &topologyCmd{f: f, before: map[string]topology.Counters{}}
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Draw the peers, link groups, links and devices",
		Long: "Draw what the SMC stacks of this network namespace have: RoCE devices, peers, the\n" +
			"link groups to them and the links of these. The picture is text, a graph in the\n" +
			"language of Graphviz (-o dot), or an SVG image (-o svg).\n\n" +
			"With --rates or --watch, it also has the bytes per second that programs sent and\n" +
			"received. Those of a link group, a link or a device are the sum over its\n" +
			"connections that are still there. The kernel reports only those of the stack.\n\n" +
			"If there are more than --max-linkgroups link groups, the picture leaves some out, and\n" +
			"says how many. Those with a link that is not active come first. JSON has all.",
		Example: "  smcr topology --rates\n  smcr topology --watch\n  smcr topology -o svg > smc.svg\n  smcr topology -o dot | dot -Tpdf > smc.pdf",
	}
	cmdutil.AddFormatFlag(cmd, &t.format, formatText, formatDOT, formatSVG, cmdutil.FormatJSON)
	t.watch.AddFlag(cmd)
	cmd.Flags().BoolVarP(&t.rates, "rates", "r", false, "measure for a second and show bytes per second")
	cmd.Flags().IntVar(&t.groups, "max-linkgroups", topology.DefaultGroups, "draw at most this `number` of link groups of each stack")
	// An unknown name would be an error of the program, not of the user.
	_ = cmd.RegisterFlagCompletionFunc("max-linkgroups", cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) }
	return cmd
}

// topologyCmd is a call of smcr topology.
type topologyCmd struct {
	f      *cmdutil.Factory
	format string
	watch  watch.Options
	rates  bool
	groups int
	before map[string]topology.Counters // by stack
}

// maxGroups is the limit of --max-linkgroups.
const maxGroups = 10000

func (t *topologyCmd) run(ctx context.Context) error {
	switch {
	case t.groups < 1 || t.groups > maxGroups:
		return cmdutil.UsageError("--max-linkgroups %d: must be 1 to %d", t.groups, maxGroups)
	case t.watch.Interval != 0 && (t.format == formatDOT || t.format == formatSVG):
		return cmdutil.UsageError("--watch is for -o text and -o json: one file has one picture")
	}
	return watch.Loop(ctx, t.f.IO, t.watch, t.format, t.view)
}

// view draws the picture once.
func (t *topologyCmd) view(ctx context.Context) (v watch.View[topology.Stack], err error) {
	if t.rates && len(t.before) == 0 {
		if _, err := t.read(ctx); err != nil {
			return v, err
		}
		if err := sleep(ctx, ratesTime); err != nil {
			return v, err
		}
	}
	if v.Rows, err = t.read(ctx); err != nil {
		return v, err
	}
	v.Text = func(w io.Writer) error {
		_, err := w.Write(t.draw(v.Rows))
		return err
	}
	return v, nil
}

func (t *topologyCmd) draw(stacks []topology.Stack) []byte {
	switch t.format {
	case formatDOT:
		return topology.DOT(stacks, t.groups)
	case formatSVG:
		return topology.SVG(stacks, topology.Wide, t.groups)
	}
	return topology.Text(stacks, t.groups)
}

// read asks all stacks, also those that have handed over to another process. The rates are
// those since the call before.
func (t *topologyCmd) read(ctx context.Context) (stacks []topology.Stack, err error) {
	counters := make(map[string]topology.Counters)
	add := func(ctx context.Context, m nl.Multi) error {
		for _, b := range m {
			l, err := topology.Read(ctx, b.Name, b.Control)
			if err != nil {
				return err
			}
			var before *topology.Counters
			if c, ok := t.before[b.Name]; ok {
				before = &c
			}
			stacks = append(stacks, topology.Build(&l, before, t.f.NetDev))
			counters[b.Name] = l.Counters()
		}
		return nil
	}
	if err := t.f.With(ctx, add); err != nil {
		return nil, err
	}
	if err := t.f.EachEnding(ctx, add); err != nil {
		return nil, err
	}
	t.before = counters
	return stacks, nil
}

// sleep returns after a time, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("measuring the rates: %w", ctx.Err())
	}
}
