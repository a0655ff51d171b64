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
	"runtime/debug"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/serve"
	"smcr/internal/typo"
	"smcr/userstack/broker"
	"smcr/userstack/launch"

	"github.com/spf13/cobra"
)

// Options are the flags and arguments of smcr run.
type Options struct {
	Err     io.Writer
	IO      *cmdutil.IOStreams // says what is waited for; may be nil
	Verbose bool
	Debug   bool
	Mode    string // one of the Mode constants
	IOUring bool
	NoAdapt bool
	Local   bool     // join programs of this machine by pairs
	Serve   []string // flags of smcr serve if the stack must be started
	Kernel  launch.Kernel
	Argv    []string
	Install string // copy smcr to this directory instead of running a program

	Boundary string // of the stack, if it must be started
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
	var netdevs, assume []string
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
			"If the user-space stack ends, its SMC-R connections are reset. Servers and clients\n" +
			"continue over plain TCP, even with peers that announce SMC. Running programs use\n" +
			"the next stack as soon as there is one. A 'smcr run' that started the stack\n" +
			"starts another one if none is running after a second. Any other 'smcr run' waits\n" +
			"until someone else starts a stack. Sockets that already listen can use a new stack\n" +
			"only on Linux 6.12 or later.\n\n" +
			"For who has started smcr, the program is the process that was started: its process\n" +
			"id, exit status and signals, the main process of a service, and sockets of socket\n" +
			"activation. The launcher, which answers calls of the program, is another process: it\n" +
			"ends with the last process of the program. With -v, or where a process may only\n" +
			"trace its descendants (Yama), a waiter stands for the program and behaves like it.\n\n" +
			"Except in mode tcp, the program gets no privileges from set-user-ID files. In mode\n" +
			"user it cannot use io_uring unless --io-uring is given; connections made through\n" +
			"io_uring are always TCP. In mode kernel, sockets created through io_uring are TCP.\n\n" +
			"Connections with programs of this machine are TCP between the programs' own sockets.\n" +
			"With --local, those of two programs in one network namespace go directly from one to\n" +
			"the other over a socketpair, if both run under 'smcr run --local'. This is faster for\n" +
			"bulk data and round trips, and differs from TCP in some calls: see docs/sockets.md.\n" +
			"The TCP connection below stays open and idle, and 'smcr connection list' shows the\n" +
			"connection as LOCAL.\n\n" +
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
			if err := o.check(modes, len(netdevs)+len(assume) > 0); err != nil {
				return err
			}
			for _, n := range netdevs {
				o.Serve = append(o.Serve, "--netdev", n)
			}
			for _, a := range assume {
				o.Serve = append(o.Serve, "--assume-smc", a)
			}
			if o.Boundary != "" {
				o.Serve = append(o.Serve, "--boundary", o.Boundary)
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
	fl.BoolVarP(&o.Debug, "debug", "d", false, "log what the launcher does")
	fl.StringVar(&o.Mode, "mode", ModeAuto, "transport of the connections: auto, kernel, user or tcp")
	fl.VarP((*bufferSize)(&o.Kernel.RcvBuf), "rcvbuf", "r", "kernel: size of the receive buffer (RMB element) in bytes, or with suffix k or M")
	fl.VarP((*bufferSize)(&o.Kernel.SndBuf), "sndbuf", "t", "kernel: size of the send buffer in bytes, or with suffix k or M")
	fl.BoolVar(&o.Kernel.Inet, "ipproto-smc", false, "kernel: keep the address family of the sockets and use protocol IPPROTO_SMC (Linux 6.11)")
	fl.BoolVar(&o.IOUring, "io-uring", false, "user: allow the program to use io_uring; its io_uring connections are TCP")
	fl.BoolVar(&o.NoAdapt, "no-adapt", false, "user: try SMC-R for every connection, even if many short ones in a row did not benefit")
	fl.BoolVar(&o.Local, "local", false, "user: join connections within this network namespace by pairs of sockets, if the other program runs under\n'smcr run --local' too")
	fl.StringVar(&o.Install, "install", "", "run no program: copy smcr to this `directory`, such as a volume of a pod, and end")
	fl.StringArrayVar(&netdevs, "netdev", nil, "user, if smcr starts the stack: use only this `netdev` for RoCE; may be repeated")
	fl.StringArrayVar(&assume, "assume-smc", nil, "user, if smcr starts the stack: assume that peers in this `prefix` use SMC; may be repeated")
	fl.StringVar(&o.Boundary, "boundary", os.Getenv(serve.BoundaryEnv), "user, if smcr starts the stack: its boundary")
	_ = fl.MarkHidden("boundary") // until the launcher goes
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
	kernel := o.Kernel != (launch.Kernel{})
	switch {
	case !known:
		return cmdutil.UsageError("--mode %q: %s", o.Mode, typo.Meant(o.Mode, modes, "must be auto, kernel, user or tcp"))
	case kernel && serve:
		return cmdutil.UsageError("--rcvbuf, --sndbuf and --ipproto-smc need mode kernel, --netdev and --assume-smc need mode user: choose one mode")
	case kernel && o.Mode != ModeAuto && o.Mode != ModeKernel:
		return cmdutil.UsageError("--rcvbuf, --sndbuf and --ipproto-smc have no effect in mode %s", o.Mode)
	case serve && o.Mode != ModeAuto && o.Mode != ModeUser:
		return cmdutil.UsageError("--netdev and --assume-smc have no effect in mode %s", o.Mode)
	case kernel && o.Local:
		return cmdutil.UsageError("--rcvbuf, --sndbuf and --ipproto-smc need mode kernel, --local needs mode user: choose one mode")
	case o.Local && o.Mode != ModeAuto && o.Mode != ModeUser:
		return cmdutil.UsageError("--local has no effect in mode %s", o.Mode)
	}
	return nil
}

// flags returns those of the session with the stack.
func (o *Options) flags() (flags []broker.Flags) {
	if o.Local {
		flags = append(flags, broker.FlagLocal)
	}
	return flags
}

// Run runs a program with the Options. It returns only on failure: the program replaces this
// process, or this process becomes its waiter. In the launcher, which is another process, it
// returns at the end of the program.
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
	if err := launch.LookPath(o.Argv[0], os.Environ()); err != nil {
		return startError(err)
	}
	front := launch.TheFront()
	if front == nil {
		if err := overWire(ctx, o, log); !errors.Is(err, errLauncher) {
			return err
		}
		return becomes(o, log)
	}
	// This is the launcher, which prints what there is to say.
	err := carry(ctx, o, log, front)
	if err != nil {
		_ = front.Exit(cmdutil.ExitCode(err))
	}
	return err
}

// becomes makes this process the program, or its waiter. It returns only on failure.
func becomes(o *Options, log *slog.Logger) error {
	if o.Mode == ModeTCP {
		return native(o)
	}
	// Process 1 of a container becomes the parent of every process whose own has ended, also of a
	// launcher beside it, for which a program would wait that waits for all its children.
	under := o.Verbose || os.Getpid() == 1 || !mayTraceAll(launch.PtraceScope)
	err := launch.Become(o.Argv, under)
	if errors.Is(err, launch.ErrNotBegun) && o.Mode == ModeAuto {
		plainTCP(o, err)
		return native(o)
	}
	return startError(err)
}

// carry carries the connections of the program, which is the front, or under it.
func carry(ctx context.Context, o *Options, log *slog.Logger, front *launch.Front) error {
	c, err := choose(ctx, o, log)
	if err != nil {
		return err
	}
	defer c.close()
	cfg := launch.Config{Argv: o.Argv, Log: log, AllowIOUring: o.IOUring, NoAdapt: o.NoAdapt, Quiet: debug.FreeOSMemory, Front: front}
	switch c.mode {
	case ModeTCP:
		return front.Native()
	case ModeKernel:
		cfg.Kernel = &o.Kernel
	case ModeUser:
		cfg.Broker = launch.NoStack()
		if c.broker != nil {
			cfg.Broker = c.broker
		}
		cfg.Redial = newRedialer(strings.Join(o.Argv, " "), o.Serve, c.started, log, o.flags()...).redial
	}
	log.Debug("starting the program", "mode", c.mode)
	report := newReport(ctx, o, c, log)
	cfg.Ended = func(_ int, all <-chan struct{}, stats func() launch.Stats) { report.ended(front, all, stats) }
	_, stats, err := launch.Run(ctx, cfg)
	var se *launch.StartError
	switch {
	case errors.As(err, &se):
		return startError(err)
	case (errors.Is(err, launch.ErrUnsupported) || errors.Is(err, launch.ErrNotBegun)) && o.Mode == ModeAuto: // nothing has run
		plainTCP(o, err)
		return front.Native()
	case err != nil:
		return err
	}
	report.over(front, stats)
	return nil
}

// native replaces this process by the program.
func native(o *Options) error {
	if o.Verbose && o.Mode == ModeTCP { // in mode auto, the reason was printed before
		fmt.Fprintln(o.Err, "smcr: all connections over TCP")
	}
	return startError(launch.Exec(o.Argv))
}

// startError returns the error of a program that could not be started, with the exit
// status that a shell would return.
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
