// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"io"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/watch"

	"github.com/spf13/cobra"
)

// defaultInterval is for how long rates are measured.
const defaultInterval = time.Second

type options struct {
	*cmdutil.Factory
	arg      string
	target   target
	format   string
	interval time.Duration
	all      bool
	silent   bool // the user knows that a stack does not answer

	env *environment
}

// NewCmd returns the command smcr why.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, nil) }

func newCmd(f *cmdutil.Factory, runF func(*options) error) *cobra.Command {
	opts := &options{Factory: f, interval: defaultInterval}
	cmd := &cobra.Command{
		Use:   "why PID|:PORT|ADDRESS|UNIT|container:NAME|pod:NAME",
		Short: "Say what carries connections, why, and what to do",
		Long: "Say for connections and listeners of this network namespace what carries them (SMC-R,\n" +
			"SMC-D or TCP), why, how fast they are, what was sent again, and what to do. They need\n" +
			"not belong to programs under 'smcr run'.\n\n" +
			"PID is a process, :PORT a port on either side, ADDRESS an IP address or a host on\n" +
			"either side, perhaps with a port: 10.1.0.5:443, [fd00::5]:443 or hostA:443. A number alone is a process if\n" +
			"there is one, and a port otherwise; pid:NUMBER and :NUMBER say which is meant. UNIT is\n" +
			"a unit of systemd: nginx.service, ssh.socket, system.slice. A name alone is a service if\n" +
			"it has processes, otherwise a program, otherwise a host. container:NAME and pod:NAME are\n" +
			"those of 'smcr attach'.\n\n" +
			"Connections with the same answer appear once, with their number. --all shows each of\n" +
			"them, and JSON does.\n\n" +
			"smcr measures rates for a second. 'smcr why :443 --interval 0' does not measure.\n\n" +
			"No privileges are needed, but only root sees which processes of other users have\n" +
			"connections.\n\n" +
			"Exit status: 0 if something was found, 3 if not, 4 if the sockets of the process are\n" +
			"not visible to the user.",
		Example: "  smcr why 1234\n  smcr why :443\n  smcr why nginx\n  smcr why 10.1.0.5:5432 --interval 5s\n  smcr why :443 -o json --interval 0",
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return cmdutil.CommandError(cmd, "%s", forms)
			case 1:
				return nil
			}
			return cmdutil.CommandError(cmd, "expected one process, port, address, unit or container, unexpected argument %q", args[1])
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			opts.arg = args[0]
			if opts.target, err = parseTarget(opts.arg); err != nil {
				return err
			}
			if runF != nil {
				return runF(opts)
			}
			opts.env = system()
			return run(cmd.Context(), opts)
		},
		ValidArgsFunction: complete(f),
	}
	cmdutil.AddFormatFlag(cmd, &opts.format, cmdutil.FormatTable, cmdutil.FormatJSON)
	cmd.Flags().Var((*interval)(&opts.interval), "interval", "measure rates for this `time`, such as 500ms or 5s; 0 does not measure")
	cmd.Flags().BoolVarP(&opts.all, "all", "a", false, "show each connection, also those with the same answer")
	_ = cmd.RegisterFlagCompletionFunc("interval", cobra.FixedCompletions([]string{"0", "1s", "5s"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// complete completes the addresses of peers, and services that run.
func complete(f *cmdutil.Factory) cobra.CompletionFunc {
	peers := f.CompletePeers()
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, directive := peers(cmd, args, word)
		return append(names, newProcs().services()...), directive
	}
}

// interval is the value of --interval: as for other commands, or 0.
type interval time.Duration

func (i *interval) Type() string   { return "interval" }
func (i *interval) String() string { return time.Duration(*i).String() }

func (i *interval) Set(s string) error {
	if s == "0" || s == "0s" {
		*i = 0
		return nil
	}
	return watch.SetInterval((*time.Duration)(i), s)
}

func run(ctx context.Context, opts *options) error {
	facts, err := opts.gather(ctx)
	if err != nil {
		return err
	}
	opts.IO.Printing()
	if opts.format == cmdutil.FormatJSON {
		rows := make([]socketJSON, len(facts))
		for i, f := range facts {
			rows[i] = newSocketJSON(f)
		}
		return output.JSON(opts.IO.Out, rows)
	}
	_, err = io.WriteString(opts.IO.Out, report(facts, opts.all))
	return err
}
