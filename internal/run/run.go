// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/serve"
	"smcr/userstack/launch"

	"github.com/spf13/cobra"
)

// Options are the flags and arguments of smcr run.
type Options struct {
	Err     io.Writer
	Verbose bool
	Debug   bool
	Mode    string
	IOUring bool
	Serve   []string // flags for a stack that has to be started
	Argv    []string
}

// Modes of smcr run.
const (
	modeUser = "user"
	modeTCP  = "tcp"
)

// NewCmd returns the command smcr run.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, nil) }

func newCmd(f *cmdutil.Factory, runF func(*Options) error) *cobra.Command {
	o := &Options{Err: f.IO.ErrOut}
	var netdevs, assume []string
	cmd := &cobra.Command{
		Use:   "run [flags] -- program [argument...]",
		Short: "Run a program whose TCP connections use SMC-R",
		Long: "Start a program, unmodified, static and Go binaries included, and move its TCP\n" +
			"connections to SMC-R where the peer speaks it too; every other connection stays\n" +
			"plain TCP with nothing in between. The program's children are included.\n\n" +
			"The user-space stack of this network namespace does the work; if there is none,\n" +
			"it is started (see smcr serve), which needs its privileges; using one that runs\n" +
			"needs none.\n\n" +
			"The exit status is the program's; 126 and 127 say that it could not be started.\n" +
			"The program gets no privileges from set-user-ID files, and no io_uring unless\n" +
			"--io-uring is given, whose connections are always TCP.",
		Example: "  smcr run -- curl http://10.1.0.5/\n  smcr run -v -- iperf3 -s",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmdutil.UsageError("%s: no program named: smcr run -- program [argument...]", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Mode != modeUser && o.Mode != modeTCP {
				return cmdutil.UsageError("--mode %q: user or tcp", o.Mode)
			}
			for _, n := range netdevs {
				o.Serve = append(o.Serve, "--netdev", n)
			}
			for _, a := range assume {
				o.Serve = append(o.Serve, "--assume-smc", a)
			}
			o.Argv = args
			if runF != nil {
				return runF(o)
			}
			return run(cmd.Context(), o)
		},
	}
	// What follows the program belongs to the program.
	cmd.Flags().SetInterspersed(false)
	fl := cmd.Flags()
	fl.BoolVarP(&o.Verbose, "verbose", "v", false, "tell at the end how many connections used SMC-R, and why each other did not")
	fl.BoolVar(&o.Debug, "debug", false, "log what the launcher does")
	fl.StringVar(&o.Mode, "mode", modeUser, "what carries the connections: user (the user-space stack) or tcp")
	fl.BoolVar(&o.IOUring, "io-uring", false, "let the program use io_uring; its connections are TCP")
	fl.StringArrayVar(&netdevs, "netdev", nil, "if the stack has to be started: let only this `netdev` carry RoCE; may be repeated")
	fl.StringArrayVar(&assume, "assume-smc", nil, "if the stack has to be started: take the peers of this `prefix` to speak SMC; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{modeUser, modeTCP}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func run(ctx context.Context, o *Options) error {
	level := slog.LevelWarn
	if o.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(o.Err, &slog.HandlerOptions{Level: level}))
	cfg := launch.Config{Argv: o.Argv, Log: log, AllowIOUring: o.IOUring}
	// A program that is not there needs no stack.
	if err := launch.LookPath(o.Argv[0], os.Environ()); err != nil {
		return startError(err)
	}
	if o.Mode == modeUser {
		c, started, err := session(ctx, strings.Join(o.Argv, " "), o.Serve)
		if err != nil {
			return sessionError(err)
		}
		defer c.Close()
		if !started && len(o.Serve) > 0 {
			log.Warn("the stack runs already: --netdev and --assume-smc have no effect")
		}
		cfg.Broker = c
	}
	status, stats, err := launch.Run(ctx, cfg)
	if err != nil {
		var se *launch.StartError
		if errors.As(err, &se) {
			return startError(err)
		}
		return err
	}
	if o.Verbose {
		summary(o.Err, stats)
	}
	if status != 0 {
		return &cmdutil.StatusError{Code: status}
	}
	return nil
}

// startError says why a program could not be started, with the exit status
// of a shell.
func startError(err error) error {
	var se *launch.StartError
	if !errors.As(err, &se) {
		return err
	}
	why := "cannot be run: " + se.Err.Error()
	switch {
	case errors.Is(se.Err, exec.ErrNotFound):
		why = "no such program in PATH"
	case errors.Is(se.Err, fs.ErrNotExist):
		why = "no such program"
	case errors.Is(se.Err, fs.ErrPermission):
		why = "not executable"
	}
	return &cmdutil.StatusError{Code: se.ExitStatus(), Err: cmdutil.Say(err, "%s: %s", se.Program, why)}
}

// sessionError says why there is no session with a stack.
func sessionError(err error) error {
	if strings.Contains(err.Error(), serve.ErrPrivilege.Error()) {
		return cmdutil.Say(errors.Join(err, os.ErrPermission), "no smcr stack in this network namespace and no privilege to start one: run 'smcr serve' as root")
	}
	return err
}
