// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"

	"github.com/spf13/cobra"
)

type applyOptions struct {
	*cmdutil.Factory
	path   string
	files  []config.File // that were read
	dryRun bool
	format string
}

func newApply(f *cmdutil.Factory, runF func(*applyOptions) error) *cobra.Command {
	opts := &applyOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Apply a configuration file to a stack",
		Long: "Change an SMC stack to the state that a file describes, and print the changes:\n" +
			"\"+\" is added, \"-\" is removed, \"=\" is set. FILE is YAML as printed by 'smcr export',\n" +
			"or - for standard input:\n\n" +
			"  pnetids:\n" +
			"    - pnetid: NET1\n" +
			"      netdev: eth0\n" +
			"    - pnetid: NET1\n" +
			"      ibdev: mlx5_0\n" +
			"      ibport: 2\n" +
			"  ueids:\n" +
			"    - EXAMPLE.COM-1\n" +
			"  seid: true\n" +
			"  handshake_limitation: false\n" +
			"  programs:\n" +
			"    - cgroup: /system.slice/nginx.service\n\n" +
			"A section describes its whole table: pnetids that it does not list are\n" +
			"removed, and \"pnetids: []\" removes all. A missing section changes nothing.\n\n" +
			"Drop-in files, FILE.d/*.yaml, are read after FILE, in the order of their names.\n" +
			"Their lists are added to those of FILE: see smcr.yaml(5).\n\n" +
			"smcr checks the whole file first. --dry-run runs the same checks and needs no\n" +
			"privileges: it fails if the change itself would fail. If the stack then refuses\n" +
			"a change, smcr undoes the changes made so far. If a pnetid loses one of its\n" +
			"devices, its other entries are removed and added again, so new connections may\n" +
			"miss them for a moment.",
		Example: "  smcr apply --dry-run " + config.DefaultPath + "\n  smcr --backend kernel export | ssh host smcr --backend kernel apply -",
		Args:    cmdutil.OneArg("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.path = args[0]
			if runF != nil {
				return runF(opts)
			}
			return apply(cmd.Context(), opts)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	cmd.Flags().BoolVarP(&opts.dryRun, "dry-run", "n", false, "print the changes without making them")
	cmdutil.AddFormatFlag(cmd, &opts.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	return cmd
}

func apply(ctx context.Context, opts *applyOptions) error {
	c, err := loadConfig(opts)
	if err != nil {
		return err
	}
	with := opts.Change
	if opts.dryRun {
		with = opts.WithOne
	}
	return with(ctx, func(ctx context.Context, ctl nl.Control) error {
		plan, err := c.Plan(ctx, ctl)
		if err != nil {
			return err
		}
		if err := plan.Check(ctx, ctl, hostOf(ctx, ctl)); err != nil {
			return opts.applyError(err)
		}
		if !opts.dryRun {
			if err := plan.Apply(ctx, ctl); err != nil {
				return opts.applyError(err)
			}
		}
		opts.IO.Printing()
		if len(opts.files) > 1 {
			printable.Fprintf(opts.IO.ErrOut, "smcr: read %s\n", strings.Join(config.Paths(opts.files), " "))
		}
		for _, s := range plan.Ignored {
			printable.Fprintf(opts.IO.ErrOut, "smcr: ignored: %s\n", s)
		}
		return reportChanges(opts, plan.Changes)
	})
}

// hostOf returns what is known about the host of the stack: about this network namespace
// for the user-space stack in it, and nothing for other stacks.
func hostOf(ctx context.Context, ctl nl.Control) config.Host {
	if b, ok := ctl.(nl.Backend); !ok || b.Name != "user" {
		any := func(string) bool { return true }
		return config.Host{NetDev: any, RoCEDevice: any}
	}
	return config.Host{
		NetDev: usableNetDev,
		RoCEDevice: func(name string) bool {
			list, err := softroce.New().Devices(ctx)
			return err == nil && slices.ContainsFunc(list, func(d rdmaverbs.DeviceInfo) bool {
				return d.Name == name && slices.ContainsFunc(d.Ports, func(p rdmaverbs.PortInfo) bool { return usableNetDev(p.NetDev) })
			})
		},
	}
}

// usableNetDev reports whether a netdev of this network namespace can carry RoCE.
func usableNetDev(netdev string) bool {
	dev, err := net.InterfaceByName(netdev)
	return err == nil && len(dev.HardwareAddr) == 6 && dev.Flags&net.FlagLoopback == 0
}

// loadConfig reads the file and its drop-in files, before any stack is asked.
func loadConfig(opts *applyOptions) (*config.Config, error) {
	var c *config.Config
	var err error
	if opts.path == "-" {
		opts.files, err = config.Read(opts.IO.In, "standard input")
	} else {
		opts.files, err = config.Files(opts.path)
	}
	if err == nil {
		c, err = config.Merge(opts.files)
	}
	var wrong config.Errors
	var perr *os.PathError
	switch {
	case errors.As(err, &wrong):
		said := &cmdutil.Error{Err: err}
		before := ""
		for i, e := range wrong {
			switch {
			case i == 0:
				said.Text = e.File + ": " + e.Where()
			case e.File != before:
				said.More = append(said.More, e.File+": "+e.Where())
			default:
				said.More = append(said.More, "      "+e.Where())
			}
			before = e.File
		}
		// The command line is right, so this is no usage error.
		return nil, &cmdutil.StatusError{Code: cmdutil.ExitError, Err: said}
	case errors.As(err, &perr):
		return nil, cmdutil.Say(err, "%s: %v", perr.Path, perr.Err)
	}
	return c, err
}

// applyError returns an error with a text that says which change a stack refused, where the file asks for it, and
// in which state the stack is.
func (opts *applyOptions) applyError(err error) error {
	var failed *config.ApplyError
	if !errors.As(err, &failed) {
		return err
	}
	why := failed.Err.Error()
	var op *nl.OpError
	switch {
	case errors.Is(err, os.ErrPermission):
		if failed.Undo == nil {
			return failed.Err // all commands have the same text for it
		}
		why = "operation not permitted"
	case errors.Is(err, nl.ErrNotSupported):
		why = "this stack does not support it"
		if errors.As(err, &op) && op.ExtAck != "" {
			why = op.ExtAck
		}
	case errors.As(err, &op):
		why = op.Err.Error()
		if op.ExtAck != "" {
			why = op.ExtAck
		}
	}
	what := "cannot " + failed.Step
	if config.Locate(err, opts.files) {
		what = failed.Where + ": " + what
	}
	if failed.Undo != nil {
		return cmdutil.Say(err, "%s: %s; undoing the earlier changes failed too (%v): check with 'smcr export'", what, why, failed.Undo)
	}
	return cmdutil.Say(err, "%s: %s; nothing was changed", what, why)
}

// A changeJSON is a change in JSON.
type changeJSON struct {
	config.Change
	PNETID string `json:"pnetid,omitempty"`
	NetDev string `json:"netdev,omitempty"`
	IBDev  string `json:"ibdev,omitempty"`
	IBPort uint8  `json:"ibport,omitempty"`
	*programJSON
}

func reportChanges(opts *applyOptions, changes []config.Change) error {
	if opts.format == cmdutil.FormatJSON {
		list := make([]changeJSON, len(changes))
		for i, c := range changes {
			list[i] = changeJSON{c, c.PNET.ID, c.PNET.NetDev, c.PNET.IBDev, c.PNET.IBPort, nil}
			if c.Object == "program" {
				list[i].programJSON = newProgramJSON(c.Program)
			}
		}
		return output.JSON(opts.IO.Out, list)
	}
	var b strings.Builder
	for _, c := range changes {
		printable.Fprintf(&b, "%s\n", c)
	}
	if len(changes) == 0 {
		b.WriteString("nothing to change\n")
	}
	_, err := fmt.Fprint(opts.IO.Out, b.String())
	return err
}
