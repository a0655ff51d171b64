// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/config"
	"smcr/internal/output"
	"smcr/internal/printable"
	"smcr/nl"

	"github.com/spf13/cobra"
)

type options struct {
	*cmdutil.Factory
	systemd
	config  string // file of the stack
	restart bool
	format  string
}

// NewCmd returns smcr service.
func NewCmd(f *cmdutil.Factory) *cobra.Command {
	return newCmd(&options{Factory: f, systemd: newSystemd(), config: config.DefaultPath})
}

func newCmd(o *options) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:   "service",
		Short: "Put services of systemd under smcr run",
		Long: "Start services of systemd under 'smcr run', by a drop-in file for the unit:\n" +
			"/etc/systemd/system/UNIT.service.d/" + dropInName + ". It keeps the type of the unit, its\n" +
			"notifications, sockets, reload and stop, and adds to its sandbox what 'smcr run' needs.",
		Example: "  smcr service enable --restart redis-server\n  smcr service status\n  smcr service disable --restart redis-server",
	})
	each := func(ctx context.Context, args []string, do func(context.Context, *options, string) error) error {
		var errs []error
		for _, name := range args {
			errs = append(errs, explain(do(ctx, o, name)))
		}
		return errors.Join(errs...)
	}
	// Where the stack takes connections at the devices, attached does the same as do, without a drop-in file.
	type attaches = func(context.Context, *options, nl.Attacher, string) error
	both := func(cmd *cobra.Command, args []string, do func(context.Context, *options, string) error, attached attaches) error {
		done, err := o.stack(cmd.Context(), func(ctx context.Context, a nl.Attacher) error {
			return each(ctx, args, func(ctx context.Context, o *options, name string) error { return attached(ctx, o, a, name) })
		})
		if !done {
			return each(cmd.Context(), args, do)
		}
		return err
	}
	change := func(c *cobra.Command, do func(context.Context, *options, string) error, attached attaches) *cobra.Command {
		c.Args, c.ValidArgsFunction = someUnits, o.complete
		c.RunE = func(cmd *cobra.Command, args []string) error { return both(cmd, args, do, attached) }
		c.Flags().BoolVar(&o.restart, "restart", false, "restart the unit if it runs")
		return c
	}
	status := func(cmd *cobra.Command, args []string) error {
		done, err := o.stack(cmd.Context(), func(ctx context.Context, a nl.Attacher) error { return statusAttached(ctx, o, a, args) })
		if !done {
			err = status(cmd.Context(), o, args)
		}
		return explain(err)
	}
	ask := func(c *cobra.Command) *cobra.Command {
		c.Args, c.ValidArgsFunction = cobra.ArbitraryArgs, o.complete
		cmdutil.AddFormatFlag(c, &o.format, cmdutil.FormatTable, cmdutil.FormatJSON)
		return c
	}
	cmd.AddCommand(
		change(&cobra.Command{
			Use: "enable UNIT...", Short: "Put a service under smcr run",
			Long: "Write the drop-in file of a unit, print what changes, and let systemd check it. If systemd\n" +
				"refuses the file, or with --restart the unit does not start, everything is as before.\n" +
				"'smcr service show UNIT' prints the file without a change.",
			Example: "  smcr service enable --restart nginx\n  smcr service enable postgresql@15-main redis-server",
		}, enable, enableAttached),
		change(&cobra.Command{
			Use: "disable UNIT...", Short: "Take a service out of smcr run", Long: "Remove the drop-in file that 'smcr service enable' has written.",
			Example: "  smcr service disable --restart nginx",
		}, disable, disableAttached),
		ask(&cobra.Command{
			Use: "status [UNIT...]", Short: "Show which services are under smcr run",
			Long: "Show the services that 'smcr service enable' has changed, or the named ones, and whether\n" +
				"their processes have a launcher now. A service that was started before has none until\n" +
				"it is restarted.",
			Example: "  smcr service status\n  smcr service status nginx -o json",
			RunE:    status,
		}),
		ask(&cobra.Command{
			Use: "show [UNIT...]", Short: "Print the drop-in file for a service",
			Long:    "Print the drop-in file that 'smcr service enable' would write, without a change. Without\na unit, it is 'smcr service status'.",
			Example: "  smcr service show nginx",
			RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) == 0 {
					return status(cmd, nil)
				}
				if o.format == cmdutil.FormatJSON {
					return explain(showJSON(cmd.Context(), o, args))
				}
				return both(cmd, args, show, showAttached)
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

// complete completes names of services.
func (o *options) complete(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	out, err := o.ask(cmd.Context(), "list-unit-files", "--type=service", "--no-legend", "--plain")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for line := range strings.Lines(out) {
		if name, _, ok := strings.Cut(line, ".service"); ok && !strings.HasSuffix(name, "@") {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// dropIn makes the drop-in file of a unit.
func dropIn(ctx context.Context, o *options, name string) (Unit, DropIn, string, error) {
	u, err := o.read(ctx, name)
	if err != nil {
		return u, DropIn{}, "", err
	}
	smcr, err := os.Executable()
	if err == nil {
		smcr, err = filepath.EvalSymlinks(smcr)
	}
	if err != nil {
		return u, DropIn{}, "", err
	}
	if dir := private(smcr); dir != "" {
		return u, DropIn{}, "", fmt.Errorf("%w: not every user may execute %s, because of the mode of %s: install smcr in /usr/local/bin", ErrUnfit, smcr, dir)
	}
	d, err := New(u, smcr, o.stackUnit(ctx, u), func() string { return o.mainPIDFile(u) })
	return u, d, smcr, err
}

// private returns the file or directory of a path that users other than its owner cannot pass.
func private(path string) string {
	for ; ; path = filepath.Dir(path) {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm()&0o001 == 0 {
			return path
		}
		if path == "/" {
			return ""
		}
	}
}

func show(ctx context.Context, o *options, name string) error {
	u, d, _, err := dropIn(ctx, o, name)
	if err != nil {
		return err
	}
	printable.Fprintf(o.IO.Out, "# %s\n", o.file(u.Name))
	printable.Fprintf(o.IO.Out, "%s", d.Text)
	o.notes(u, d)
	return nil
}

// showJSON is show for several units.
func showJSON(ctx context.Context, o *options, names []string) error {
	type file struct {
		Unit  string   `json:"unit"`
		File  string   `json:"file"`
		Text  string   `json:"text"`
		Notes []string `json:"notes"`
	}
	var all []file
	for _, name := range names {
		u, d, _, err := dropIn(ctx, o, name)
		if err != nil {
			return err
		}
		all = append(all, file{u.Name, o.file(u.Name), d.Text, append([]string{}, d.Notes...)})
	}
	return output.JSON(o.IO.Out, all)
}

func (o *options) notes(u Unit, d DropIn) {
	for _, n := range d.Notes {
		printable.Fprintf(o.IO.ErrOut, "smcr: %s: %s\n", u.Name, n)
	}
}

// enable writes the drop-in file of a unit, or leaves everything as it was.
func enable(ctx context.Context, o *options, name string) error {
	u, d, smcr, err := dropIn(ctx, o, name)
	if err != nil {
		return err
	}
	old, _ := os.ReadFile(o.file(u.Name))
	undo, err := o.write(u.Name, d.Text)
	if err != nil {
		return err
	}
	back := func(err error) error {
		return errors.Join(err, undo(), o.reload(context.WithoutCancel(ctx)))
	}
	if err := o.reload(ctx); err != nil {
		return back(err)
	}
	if err := o.verify(ctx, u.Name, smcr); err != nil {
		return back(fmt.Errorf("%w: nothing was changed: %w", ErrUnfit, err))
	}
	o.printChange(u, string(old), d.Text)
	o.notes(u, d)
	if !o.restart {
		o.sayRestart(u)
		return nil
	}
	begin := time.Now()
	if err := o.restarted(ctx, u); err != nil {
		lines := o.journal(ctx, u.Name, begin)
		err = back(fmt.Errorf("%w: it did not start, and is as before: %w", ErrUnfit, err))
		if runs(u) {
			err = errors.Join(err, o.restarted(context.WithoutCancel(ctx), u))
		}
		said := &cmdutil.Error{Text: u.Name + ": " + err.Error(), Err: err}
		for _, l := range lines {
			said.More = append(said.More, u.Name+": "+l)
		}
		return said
	}
	return o.wantLauncher(ctx, u, begin)
}

// disable removes the drop-in file of a unit.
func disable(ctx context.Context, o *options, name string) error {
	u, err := o.read(ctx, name)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(o.file(u.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s was not enabled: see 'smcr service status'", ErrNotFound, u.Name)
	}
	if err == nil {
		err = o.remove(u.Name)
	}
	if err != nil {
		return err
	}
	if err := o.reload(ctx); err != nil {
		return err
	}
	o.printChange(u, string(old), "")
	if !o.restart {
		o.sayRestart(u)
		return nil
	}
	return o.restarted(ctx, u)
}

// printChange prints the lines of the drop-in file that come and go.
func (o *options) printChange(u Unit, before, after string) {
	o.printLines(o.file(u.Name), before, after)
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

// restarted restarts a unit that runs or has failed.
func (o *options) restarted(ctx context.Context, u Unit) error {
	if u.Props["ActiveState"] == "inactive" {
		return nil
	}
	_, err := o.call(ctx, "systemctl", "restart", "--", u.Name)
	return err
}

// launcherTime is how long a unit that has started may take until it has its launcher.
const launcherTime = 10 * time.Second

// wantLauncher says if a unit runs without a launcher, and why.
func (o *options) wantLauncher(ctx context.Context, u Unit, since time.Time) error {
	// A unit with Type=simple counts as started before its program is executed.
	for {
		now, err := o.read(ctx, u.Name)
		if err != nil || !runs(now) {
			return err
		}
		if len(o.launchers(o.processes(now))) > 0 {
			printable.Fprintf(o.IO.ErrOut, "smcr: %s runs under smcr run\n", u.Name)
			return nil
		}
		if time.Since(since) > launcherTime {
			break
		}
		time.Sleep(launcherTime / 100)
	}
	why := "see 'journalctl -u " + u.Name + "'"
	for _, line := range o.journal(ctx, u.Name, since) {
		if strings.HasPrefix(line, "smcr: ") {
			why = strings.TrimPrefix(line, "smcr: ")
		}
	}
	return cmdutil.Say(ErrUnfit, "%s runs without a launcher: %s", u.Name, why)
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
