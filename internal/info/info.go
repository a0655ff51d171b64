// SPDX-License-Identifier: Apache-2.0

package info

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/output"
	"smcr/internal/serve"
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
			"stack: versions, features, and devices. If a stack that 'smcr run' started has\n" +
			"died, smcr shows when it died and where its log is.\n\n" +
			"Changes that commands make in the user-space stack last until the machine\n" +
			"restarts. The stack keeps them in the file that State shows. To make them\n" +
			"permanent, run 'smcr export > " + config.DefaultPath + "'.",
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

	// Of stacks in user space only.
	RoCEVersions []string `json:"roce_versions,omitempty"`
	StateFile    string   `json:"state_file,omitempty"`
	StateError   string   `json:"state_error,omitempty"`
	DiedLog      string   `json:"died_log,omitempty"`
	Died         string   `json:"died,omitempty"`
}

// userStack is the row of the stack in user space.
const userStack = "user"

func run(ctx context.Context, opts *options) error {
	// Where no stack runs any more, its log is all there is to be told.
	told := false
	err := show(ctx, opts, func() { told = true })
	if !told {
		NoteDied(opts.Factory)
	}
	return err
}

// NoteDied says on standard error, where the backend is or may be the stack in
// user space, that the last one died, and where its log is.
func NoteDied(f *cmdutil.Factory) {
	if f.Backend != "auto" && f.Backend != userStack {
		return
	}
	if d, ok := serve.LastDied(); ok {
		fmt.Fprintf(f.IO.ErrOut, "smcr: a user-space stack of this network namespace died: %s\n", died(d))
	}
}

func died(d serve.Died) string {
	return fmt.Sprintf("%s, log %s", d.Last.Format(time.RFC3339), d.Log)
}

// show lists the stacks, and calls user when that in user space is one.
func show(ctx context.Context, opts *options, user func()) error {
	return watch.Show(ctx, &opts.ListOptions, func(ctx context.Context, m nl.Multi) (v watch.View[infoJSON], err error) {
		infos, err := nl.Each(ctx, m, nl.Control.SysInfo)
		if err != nil {
			return v, err
		}
		devices, err := nl.All(ctx, m, nl.Control.Devices)
		if err != nil {
			return v, err
		}
		names := map[string][]string{}
		for _, d := range devices {
			names[d.Stack] = append(names[d.Stack], d.Value.Name)
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
			row := infoJSON{
				Stack: r.Stack, Name: s.Stack, StackVersion: s.StackVersion, PID: s.PID, UID: s.UID, Version: s.Version, Release: s.Release,
				LocalHost: s.LocalHost, SEID: s.SEID, ISMv2: s.ISMv2, SMCRv2: s.SMCRv2, UEIDs: eids[r.Stack], RoCEDevices: len(names[r.Stack]),
				RoCEVersions: roceVersions(&s), StateFile: s.StateFile, StateError: s.StateError,
			}
			if r.Stack == userStack {
				user()
				if d, ok := serve.LastDied(); ok {
					row.DiedLog, row.Died = d.Log, d.Last.Format(time.RFC3339)
				}
			}
			v.Rows = append(v.Rows, row)
		}
		v.Text = func(w io.Writer) error {
			var b strings.Builder
			for i, r := range infos {
				if i > 0 {
					b.WriteString("\n")
				}
				describe(&b, r, eids[r.Stack], names[r.Stack])
				if j := v.Rows[i]; j.DiedLog != "" {
					fmt.Fprintf(&b, "%-16s  died %s, log %s\n", "Previous Stack:", j.Died, j.DiedLog)
				}
			}
			_, err := io.WriteString(w, b.String())
			return err
		}
		return v, nil
	})
}

func describe(b *strings.Builder, r nl.Row[nl.SysInfo], eids int, devices []string) {
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
	} else {
		line("SMC-D Features", "none: the user-space stack has no SMC-D")
	}
	line("SEID", "%s", output.Or(s.SEID))
	if versions := roceVersions(&s); len(versions) > 0 {
		line("RoCE Versions", "%s", strings.Join(versions, " "))
	}
	if len(devices) == 0 {
		line("RoCE Devices", "0")
	} else {
		line("RoCE Devices", "%d: %s", len(devices), strings.Join(devices, ", "))
	}
	switch {
	case s.StateFile != "":
		line("State", "%s until the next boot; to make it permanent: 'smcr export > %s'", s.StateFile, config.DefaultPath)
	case s.StateError != "":
		line("State", "kept only while the stack runs: %s", s.StateError)
	}
}

// roceVersions returns the versions of RoCE that the devices of a stack in user
// space speak; those of the kernel's are not known here.
func roceVersions(s *nl.SysInfo) (versions []string) {
	if s.RoCEv1 {
		versions = append(versions, "v1")
	}
	if s.RoCEv2 {
		versions = append(versions, "v2")
	}
	return versions
}

func features(v2 bool) string {
	if v2 {
		return "v1 v2"
	}
	return "v1"
}
