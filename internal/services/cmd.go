// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

type options struct {
	*cmdutil.Factory
	systemd
	sockets   socketLists
	stackUnit func() string
	config    string        // file of the stack
	wait      time.Duration // for a connection that shows that a unit is enabled
	restart   bool
	format    string

	enabled []*candidate // by this command
	control nl.Control   // of the stack, or nil
}

// NewCmd returns smcr service.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	return newCmd(&options{Factory: f, systemd: newSystemd(), sockets: newSocketLists(), stackUnit: stackUnit, config: config.DefaultPath, wait: defaultWait})
}

func newCmd(o *options) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "service",
		Short: "Have services of systemd use SMC-R",
		Long: "Have the connections of services of systemd use SMC-R. No unit changes, and no service\n" +
			"restarts. smcr tells the stack the cgroup of the service, and those of its socket units.\n" +
			"It also writes them to a drop-in file beside " + config.DefaultPath + ", which the next\n" +
			"stack reads. The configuration of the package and your own files stay as they are.",
		Example: "  smcr service enable redis-server\n  smcr service status\n  smcr service disable redis-server",
	})
	change := func(c *cobra.Command, do func(context.Context, *options, nl.Attacher, string) error) *cobra.Command {
		c.Args, c.ValidArgsFunction = someUnits, o.completeUnits
		c.RunE = func(cmd *cobra.Command, args []string) error {
			return explain(o.stack(cmd.Context(), func(ctx context.Context, a nl.Attacher) error {
				var errs []error
				for _, name := range args {
					errs = append(errs, explain(do(ctx, o, a, name)))
				}
				return errors.Join(append(errs, o.verify(ctx, a, o.enabled))...)
			}))
		}
		c.Flags().BoolVar(&o.restart, "restart", false, "restart the unit if it runs, so that connections that are open end")
		return c
	}
	state := func(cmd *cobra.Command, args []string) error {
		return explain(o.stack(cmd.Context(), func(ctx context.Context, a nl.Attacher) error { return status(ctx, o, a, args) }))
	}
	ask := func(c *cobra.Command) *cobra.Command {
		c.Args, c.ValidArgsFunction = cobra.ArbitraryArgs, o.completeUnits
		cmdutil.AddFormatFlag(c, &o.format, cmdutil.FormatTable, cmdutil.FormatJSON)
		return c
	}
	enabling := change(&cobra.Command{
		Use: "enable UNIT...", Short: "Have a service use SMC-R",
		Long: "Attach the cgroup of a unit, and those of its socket units, and print what changes in the\n" +
			"configuration. New connections use SMC-R if the peer does. Without a stack, only the\n" +
			"configuration changes. If the stack refuses the unit, nothing changes.\n" +
			"'smcr service show UNIT' prints the entry without a change.\n\n" +
			"UNIT is a service, a socket unit, or a slice, which stands for all that is in it. A template,\n" +
			"such as foo@, stands for all its instances, also those to come, and foo@x for one.\n\n" +
			"Then it asks the stack where it announces SMC-R for the unit, waits a moment for a new\n" +
			"connection, and says whether that uses SMC-R. Without a new connection, it says how to try\n" +
			"one, as a host cannot be its own peer. It also says how many open connections stay TCP, and\n" +
			"what is missing for the next boot.\n\n" +
			"Earlier releases used a drop-in file of the unit, and later ones wrote into\n" +
			config.DefaultPath + " itself. The command removes the former, and moves the entry\n" +
			"that the latter made.",
		Example: "  smcr service enable nginx\n  smcr service enable postgresql@ redis-server ssh.socket\n  smcr service enable --wait 30s system-postgresql.slice",
	}, enable)
	enabling.Flags().DurationVar(&o.wait, "wait", o.wait, "how long to wait for a new connection (a `duration` such as 30s; 0: not at all)")
	disabling := change(&cobra.Command{
		Use: "disable UNIT...", Short: "Have a service use TCP", Long: "Undo 'smcr service enable': new connections of the unit are TCP. The entries of the unit are\n" +
			"removed from all files of the configuration, and other lines and comments stay. A drop-in file\n" +
			"of the unit, of an earlier release, is removed, too.",
		Example: "  smcr service disable nginx",
	}, disable)
	disabling.ValidArgsFunction = o.completeEnabled
	cmd.AddCommand(
		enabling,
		disabling,
		ask(&cobra.Command{
			Use: "status [UNIT...]", Short: "Show which services use SMC-R",
			Long: "Show the services that 'smcr service enable' has enabled, or the named ones, with how many\n" +
				"of their connections used SMC-R and TCP since the stack has the unit, and why TCP. A\n" +
				"connection that the unit accepts counts only if the peer announces SMC.",
			Example: "  smcr service status\n  smcr service status nginx -o json",
			RunE:    state,
		}),
		ask(&cobra.Command{
			Use: "show [UNIT...]", Short: "Print the entry of the configuration for a service",
			Long:    "Print what 'smcr service enable' would add to the configuration, without a change. Without\na unit, it is 'smcr service status'.",
			Example: "  smcr service show nginx",
			RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					return state(cmd, nil)
				}
				return explain(show(cmd.Context(), o, args))
			},
		}),
	)
	return cmd
}

func someUnits(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmdutil.CommandError(cmd, "UNIT is required, such as nginx")
	}
	return nil
}

// printLines prints the lines of a file that come and go.
func (o *options) printLines(file, before, after string) {
	if before == after {
		return
	}
	printable.Fprintf(o.IO.Out, "%s:\n", file)
	for _, x := range []struct{ sign, lines, other string }{{"-", before, after}, {"+", after, before}} {
		other := strings.Split(x.other, "\n")
		for line := range strings.SplitSeq(x.lines, "\n") {
			if line != "" && !slices.Contains(other, line) {
				printable.Fprintf(o.IO.Out, "%s %s\n", x.sign, line)
			}
		}
	}
}

// runs reports whether a unit runs.
func runs(u Unit) bool {
	s := u.Props["ActiveState"]
	return s == "active" || s == "activating" || s == "reloading"
}

func (o *options) sayRestart(u Unit) {
	if runs(u) {
		printable.Fprintf(o.IO.ErrOut, "smcr: %s runs as before: restart it with 'systemctl restart %s'\n", u.Name, strings.TrimSuffix(u.Name, ".service"))
	}
}

// restarted restarts a unit that runs or has failed, or the instances of a template.
func (o *options) restarted(ctx context.Context, u Unit) error {
	if _, is := template(u.Name); is {
		_, err := o.call(ctx, "systemctl", "try-restart", "--", instance(u.Name, "*"))
		return err
	}
	if u.Props["ActiveState"] == "inactive" {
		return nil
	}
	_, err := o.call(ctx, "systemctl", "restart", "--", u.Name)
	return err
}

// explain gives an error its exit status.
func explain(err error) error {
	var said *cmdutil.Error
	switch {
	case err == nil || errors.As(err, &said):
		return err
	case errors.Is(err, ErrNoSystemd):
		return cmdutil.Say(err, "no systemd runs here: start the program with 'smcr run -- PROGRAM'")
	case errors.Is(err, ErrNotFound):
		return cmdutil.Say(errors.Join(fs.ErrNotExist, err), "%s", strings.TrimPrefix(err.Error(), ErrNotFound.Error()+": "))
	case os.Geteuid() != 0 && strings.Contains(err.Error(), "Failed to connect to bus"), errors.Is(err, fs.ErrPermission), strings.Contains(err.Error(), "nteractive authentication required"), strings.Contains(err.Error(), "Access denied"):
		return cmdutil.Say(errors.Join(fs.ErrPermission, err), "no permission to change units of systemd: run it as root")
	}
	return err
}
