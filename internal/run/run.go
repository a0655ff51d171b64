// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/kernelsmc"
	"smcr/internal/printable"
	"smcr/internal/program"
	"smcr/internal/typo"
	"smcr/internal/waiter"

	"github.com/spf13/cobra"
)

// Options are the flags and arguments of smcr run.
type Options struct {
	Err     io.Writer
	IO      *cmdutil.IOStreams // says what is waited for; may be nil
	Verbose bool
	Debug   bool
	Mode    string // one of the Mode constants
	NoAdapt bool
	Serve   []string // flags of smcr serve if the stack must be started
	Kernel  kernelsmc.Config
	Argv    []string
	Install string // copy smcr to this directory instead of running a program
}

// Modes of smcr run: the transport of the connections.
const (
	ModeAuto   = "auto"   // the first of the following that is possible
	ModeKernel = "kernel" // the kernel's SMC
	ModeUser   = "user"   // the user-space stack of this network namespace
	ModeTCP    = "tcp"    // plain TCP
)

// NewCmd returns the command smcr run.
func NewCmd(f *cmdutil.Factory) *cobra.Command { return newCmd(f, nil) }

func newCmd(f *cmdutil.Factory, runF func(*Options) error) *cobra.Command {
	o := &Options{Err: f.IO.ErrOut, IO: f.IO}
	var netdevs []string
	modes := []string{ModeAuto, ModeKernel, ModeUser, ModeTCP}
	cmd := &cobra.Command{
		Use:   "run [flags] -- program [argument...]",
		Short: "Run a program whose TCP connections use SMC-R",
		Long: "Start an unmodified program and move its TCP connections to SMC-R if the peer\n" +
			"uses SMC-R too. Every other connection is plain TCP. This works for static and Go\n" +
			"programs and includes the program's children.\n\n" +
			"--mode selects the transport:\n\n" +
			"    kernel  the kernel's SMC: each TCP socket that the program creates becomes\n" +
			"            an SMC socket (AF_SMC), with nothing in between\n" +
			"    user    the user-space stack of this network namespace; if none is\n" +
			"            running, smcr starts it, which needs the privileges of 'smcr\n" +
			"            serve'; using a running stack needs no privileges\n" +
			"    tcp     plain TCP: the program runs as if started without smcr\n" +
			"    auto    kernel if it has SMC and a device with an active port; otherwise\n" +
			"            user if possible; otherwise tcp, with a message that says why\n\n" +
			"In mode user, the program keeps its sockets. The stack takes its connections at the\n" +
			"network devices, by the cgroup of the program. If the peer does not announce SMC, the\n" +
			"stack leaves the connection alone. So everything works as over TCP: set-user-ID\n" +
			"programs, io_uring, sandboxes. 'smcr attach' does the same for programs that run\n" +
			"already.\n\n" +
			"If the user-space stack ends, its SMC-R connections are reset, and new ones are TCP\n" +
			"until there is a stack again. Then they use SMC-R without a restart of the program.\n" +
			"The same holds for a program that starts in mode auto before there is a stack.\n\n" +
			"In mode kernel, the program gets no privileges from set-user-ID files, and sockets\n" +
			"created through io_uring are TCP. A process of smcr creates the sockets. It ends with\n" +
			"the last process of the program.\n\n" +
			"The process of 'smcr run' becomes the program. So whoever starts it sees the process\n" +
			"id, the exit status and the signals of the program, a service has the program as its\n" +
			"main process, and socket activation works. With -v, a waiter takes its place, which\n" +
			"passes signals on, and ends as the program does.\n\n" +
			"Connections with programs of this machine are TCP.\n\n" +
			"--install copies smcr into a directory that a container of another image can mount,\n" +
			"so that its program can run under 'smcr run'. It needs a static smcr.",
		Example: "  smcr run -- curl http://10.1.0.5/\n" +
			"  smcr run -v -- iperf3 -s\n" +
			"  smcr run --mode kernel --rcvbuf 1M -- iperf3 -c 10.1.0.5",
		Args: func(cmd *cobra.Command, args []string) error {
			if o.Install != "" {
				if len(args) > 0 {
					return cmdutil.CommandError(cmd, "--install runs no program: leave %q away", args[0])
				}
				return nil
			}
			if len(args) == 0 {
				return cmdutil.CommandError(cmd, "PROGRAM is required: smcr run -- PROGRAM [ARGUMENT...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(modes, len(netdevs) > 0); err != nil {
				return err
			}
			for _, n := range netdevs {
				o.Serve = append(o.Serve, "--netdev", n)
			}
			o.Argv = args
			if runF != nil {
				return runF(o)
			}
			return Run(cmd.Context(), o)
		},
	}
	// Words after the program are arguments of the program.
	cmd.Flags().SetInterspersed(false)
	fl := cmd.Flags()
	fl.BoolVarP(&o.Verbose, "verbose", "v", false, "report when the user-space stack ends and comes back, and at the end how many\nconnections used SMC-R and why the others did not")
	fl.BoolVarP(&o.Debug, "debug", "d", false, "log what smcr does")
	fl.StringVar(&o.Mode, "mode", ModeAuto, "transport of the connections: auto, kernel, user or tcp")
	fl.VarP((*bufferSize)(&o.Kernel.RcvBuf), "rcvbuf", "r", "kernel: size of the receive buffer (RMB element) in bytes, or with suffix k or M")
	fl.VarP((*bufferSize)(&o.Kernel.SndBuf), "sndbuf", "t", "kernel: size of the send buffer in bytes, or with suffix k or M")
	fl.BoolVar(&o.Kernel.Inet, "ipproto-smc", false, "kernel: keep the address family of the sockets and use protocol IPPROTO_SMC (Linux 6.11)")
	fl.BoolVar(&o.NoAdapt, "no-adapt", false, "user: try SMC-R for every connection, even if many short ones in a row did not benefit")
	fl.StringVar(&o.Install, "install", "", "run no program: copy smcr to this `directory`, such as a volume of a pod, and end")
	fl.StringArrayVar(&netdevs, "netdev", nil, "user, if smcr starts the stack: use only this `netdev` for RoCE; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check rejects flags that cannot be combined. In mode auto, a flag that belongs to one
// mode selects that mode. serve is true if there are flags for starting a stack.
func (o *Options) check(modes []string, serve bool) error {
	known := false
	for _, m := range modes {
		known = known || m == o.Mode
	}
	kernel := o.Kernel != (kernelsmc.Config{})
	switch {
	case !known:
		return cmdutil.UsageError("--mode %q: %s", o.Mode, typo.Meant(o.Mode, modes, "must be auto, kernel, user or tcp"))
	case kernel && serve:
		return cmdutil.UsageError("--rcvbuf, --sndbuf and --ipproto-smc need mode kernel, --netdev needs mode user: choose one mode")
	case kernel && o.Mode != ModeAuto && o.Mode != ModeKernel:
		return cmdutil.UsageError("--rcvbuf, --sndbuf and --ipproto-smc have no effect in mode %s", o.Mode)
	case serve && o.Mode != ModeAuto && o.Mode != ModeUser:
		return cmdutil.UsageError("--netdev has no effect in mode %s", o.Mode)
	}
	return nil
}

// Run runs a program with the Options. It returns only on failure: the program replaces this process, or this process becomes its
// waiter. In the runner, which is another process, it returns at the end of the program.
func Run(ctx context.Context, o *Options) error {
	if o.Install != "" {
		return install(o.Install)
	}
	level := slog.LevelWarn
	switch {
	case o.Debug:
		level = slog.LevelDebug
	case o.Verbose:
		level = slog.LevelInfo
	}
	log := newLog(o.Err, level)
	// This comes first: if the program does not exist, no stack is started.
	path, err := program.Find(o.Argv[0])
	if err != nil {
		return startError(err)
	}
	s := starter{ctx: ctx, o: o, log: log, path: path, runner: waiter.TheRunner(), without: waiter.Without()}
	if s.runner == nil {
		return s.start()
	}
	if err = s.start(); err != nil {
		_ = s.runner.Exit(cmdutil.ExitCode(err))
	}
	return err
}

// MaybeChild does the work of processes that Run starts, or prepares it. Call it first in main.
func MaybeChild() {
	waiter.MaybeChild()
	kernelsmc.MaybeChild()
}

// starter starts the program.
type starter struct {
	ctx    context.Context
	o      *Options
	log    *slog.Logger
	path   string         // of the program
	runner *waiter.Runner // nil: this process becomes the program
	// without is why nothing waits for the program, if it should.
	without error
}

func (s *starter) start() error {
	if p := kernelsmc.TheProcess(); p != nil {
		return s.inKernel(p)
	}
	if s.waits() && s.o.Verbose && s.o.Mode != ModeTCP {
		s.wait()
	}
	c, err := choose(s.ctx, s.o, s.log)
	if err != nil {
		return err
	}
	defer c.close()
	s.log.Debug("starting the program", "mode", c.mode)
	if c.mode == ModeTCP {
		return s.native()
	}
	s.sayWithout()
	switch {
	case c.mode == ModeKernel && s.runner != nil:
		return s.superviseKernel(c)
	case c.mode == ModeKernel:
		return s.overKernel()
	case s.runner != nil:
		return s.superviseWire(c)
	}
	return s.native()
}

// waits reports whether this process may become the waiter.
func (s *starter) waits() bool { return s.runner == nil && s.without == nil }

// wait makes this process the waiter. It returns if there is none: the program needs none.
func (s *starter) wait() {
	s.without = waiter.Become(s.o.Argv)
}

// sayWithout says what -v does not do.
func (s *starter) sayWithout() {
	if s.o.Verbose && s.without != nil {
		printable.Fprintf(s.o.Err, "smcr: there will be no summary: %s\n", strings.Join(strings.Fields(s.without.Error()), " "))
	}
}

// native makes the process that was started the program.
func (s *starter) native() error {
	if s.runner != nil {
		return s.runner.Native()
	}
	if s.o.Verbose && s.o.Mode == ModeTCP { // in mode auto, the reason was printed before
		fmt.Fprintln(s.o.Err, "smcr: all connections over TCP")
	}
	return startError(program.Exec(s.path, s.o.Argv, os.Environ()))
}

// startError returns the error of a program that could not be started, with the exit
// status that a shell would return.
func startError(err error) error {
	var se *program.StartError
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
