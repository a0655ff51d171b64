// SPDX-License-Identifier: Apache-2.0

package info

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"
	"smcr/nl"

	"github.com/spf13/cobra"
)

type options struct {
	watch.ListOptions
}

// NewCmd returns the command smcr info.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmdInfo(f, nil) }

func newCmdInfo(f *cmdutil.Factory, runF func(*options) error) *cobra.Command {
	opts := &options{watch.ListOptions{Factory: f}}
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the SMC stacks of this network namespace",
		Long: "Show the SMC stacks of this network namespace, the kernel's and the user-space\n" +
			"stack: versions, features, and number of devices.",
		Args: cmdutil.NoArgs,
		RunE: cmdutil.RunE(opts, runF, run),
	}
	opts.AddFlags(cmd, cmdutil.FormatTable, cmdutil.FormatJSON)
	return cmd
}

// An infoJSON is a stack in JSON.
type infoJSON struct {
	Stack        string `json:"stack"`
	Name         string `json:"name,omitempty"`
	StackVersion string `json:"stack_version,omitempty"`
	PID          uint32 `json:"pid,omitempty"`
	UID          uint32 `json:"uid"`
	Version      uint8  `json:"smc_version"`
	Release      uint8  `json:"smc_release"`
	LocalHost    string `json:"hostname"`
	SEID         string `json:"seid,omitempty"`
	ISMv2        bool   `json:"smcd_v2"`
	SMCRv2       bool   `json:"smcr_v2"`
	UEIDs        int    `json:"ueids"`
	RoCEDevices  int    `json:"roce_devices"`
}

func run(ctx context.Context, opts *options) error {
	return watch.Show(ctx, &opts.ListOptions, func(ctx context.Context, m nl.Multi) (v watch.View[infoJSON], err error) {
		infos, err := nl.Each(ctx, m, nl.Control.SysInfo)
		if err != nil {
			return v, err
		}
		devices, err := nl.All(ctx, m, nl.Control.Devices)
		if err != nil {
			return v, err
		}
		count := map[string]int{}
		for _, d := range devices {
			count[d.Stack]++
		}
		ueids, err := nl.All(ctx, m, nl.Control.UEIDs)
		if err != nil && !errors.Is(err, nl.ErrNotSupported) {
			return v, err
		}
		eids := map[string]int{}
		for _, e := range ueids {
			eids[e.Stack]++
		}
		for _, r := range infos {
			s := r.Value
			v.Rows = append(v.Rows, infoJSON{
				r.Stack, s.Stack, s.StackVersion, s.PID, s.UID, s.Version, s.Release, s.LocalHost, s.SEID,
				s.ISMv2, s.SMCRv2, eids[r.Stack], count[r.Stack],
			})
		}
		v.Text = func(w io.Writer) error {
			var b strings.Builder
			for i, r := range infos {
				if i > 0 {
					b.WriteString("\n")
				}
				describe(&b, r, eids[r.Stack], count[r.Stack])
			}
			_, err := io.WriteString(w, b.String())
			return err
		}
		return v, nil
	})
}

func describe(b *strings.Builder, r nl.Row[nl.SysInfo], eids, devices int) {
	s := r.Value
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "%-16s  %s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("Stack", "%s", r.Stack)
	if s.Stack != "" {
		line("Service", "%s, process %d, user %d", strings.TrimSpace(s.Stack+" "+s.StackVersion), s.PID, s.UID)
	}
	line("SMC Version", "%d.%d", s.Version, s.Release)
	line("SMC Hostname", "%s", output.Or(s.LocalHost))
	line("SMC-R Features", "%s", features(s.SMCRv2))
	switch {
	case !s.SMCRv2:
	case eids == 0:
		line("SMC-R v2 EIDs", "none: version 2 is not used, see 'smcr ueid add'")
	default:
		line("SMC-R v2 EIDs", "%d", eids)
	}
	if s.Stack == "" {
		line("SMC-D Features", "%s", features(s.Version >= 2))
	}
	line("SEID", "%s", output.Or(s.SEID))
	line("RoCE Devices", "%d", devices)
}

func features(v2 bool) string {
	if v2 {
		return "v1 v2"
	}
	return "v1"
}
