// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// Exit statuses of a program that could not be started, as shells have them.
const (
	ExitNotFound      = 127 // there is no such program
	ExitNotExecutable = 126 // the program cannot be executed
	exitSignal        = 128 // plus the signal's number
)

// killGrace is the time between SIGTERM and SIGKILL when the context of Run
// ends.
const killGrace = 5 * time.Second

// ErrUnsupported means that the kernel does not have seccomp user notification
// with SECCOMP_ADDFD_FLAG_SEND, which Linux has from 5.14 on.
var ErrUnsupported = errors.New("launch: the kernel does not support seccomp user notification (Linux 5.14 or newer is needed)")

// ErrNotBegun is matched by the errors of Run after which nothing of the program has run, although
// it could be started without a launcher: a sandbox may forbid a call that the launcher needs.
// ErrUnsupported and a canceled context are not among them.
var ErrNotBegun = errors.New("launch: the program could not be put under a launcher")

// StartError means that the program could not be started.
type StartError struct {
	// Program is the name of the program, as given to Run.
	Program string
	// Err is the reason.
	Err error
}

// Error returns the program and the reason.
func (e *StartError) Error() string { return fmt.Sprintf("launch: %s: %v", e.Program, e.Err) }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// ExitStatus returns the exit status that a shell would return: 127 if there is
// no such program, and 126 otherwise.
func (e *StartError) ExitStatus() int {
	if errors.Is(e.Err, fs.ErrNotExist) || errors.Is(e.Err, exec.ErrNotFound) {
		return ExitNotFound
	}
	return ExitNotExecutable
}

var _ Broker = (*broker.Client)(nil)

// Config has the parameters of Run.
type Config struct {
	// Argv is the program and its arguments. The program is searched for in
	// PATH of Env unless it contains a slash. Required.
	Argv []string
	// Env is the program's environment; nil is the launcher's.
	Env []string
	// Dir is the program's directory; empty is the launcher's.
	Dir string
	// Stdin, Stdout and Stderr are the program's; nil are the launcher's. Other
	// descriptors that the launcher inherited pass on as they are.
	Stdin, Stdout, Stderr *os.File
	// Broker is the session with the service. Run does not close it. If it is
	// nil, all connections use plain TCP.
	Broker Broker
	// Redial, if set, is called when Broker's session is over, with pauses
	// until it returns a new one, and again when that is over. Connections are
	// native meanwhile; the listening sockets of the program are marked anew in
	// the new session. An error means that there is no service now.
	Redial func(ctx context.Context) (Session, error)
	// Kernel, if set, makes the SMC of the kernel carry the connections. Broker
	// and AllowIOUring then have no effect. Sockets that io_uring makes are
	// TCP.
	Kernel *Kernel
	// NoAdapt makes every connection try SMC, even if it was not useful for
	// many connections in a row.
	NoAdapt bool
	// AllowIOUring lets the program use io_uring, whose connections bypass the
	// launcher and are native TCP. By default io_uring_setup fails with ENOSYS.
	AllowIOUring bool
	// Log receives errors and, at debug level, the actions of the launcher. If
	// it is nil, nothing is logged.
	Log    *slog.Logger
	decide time.Duration // replaces decideTime in tests
	apart  *bool         // in tests: whether no address is one of this machine

	// Quiet, if set, is called when many connections have begun or ended and
	// then none for some time. It can give memory of the heap back to the
	// system (debug.FreeOSMemory).
	Quiet func()

	// Started, if set, is called with the program's process id.
	Started func(pid int)

	// Front, if set, is the process that becomes the program, or that is the parent of this
	// launcher: see Become. Dir, Stdin, Stdout, Stderr and Env are then those of this process, and
	// no signals are passed on: the front gets them.
	Front *Front
	// Ended, if set, is called when the program has ended, with its exit status, while other
	// processes that descend from it may go on. all is closed when these have ended, too. stats
	// returns what was until now. With a front, the exit status is only known if the front is a
	// waiter.
	Ended func(status int, all <-chan struct{}, stats func() Stats)
}

// Run runs a program until it and all tasks that descend from it have ended,
// and returns its exit status (128 + the signal's number if a signal killed
// it). SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGCONT sent to the launcher go to
// the program; so do SIGINT and SIGQUIT, unless the launcher is in the
// terminal's foreground group, in which case the terminal sent them to the
// program too.
//
// When ctx ends, the program gets SIGTERM and, five seconds later, SIGKILL.
// Descendants that still run then have no launcher. If the program cannot be
// started, the error is a *StartError, and the status is its ExitStatus.
// ErrUnsupported means that the kernel is too old. After an error that matches this or
// ErrNotBegun, nothing of the program has run.
//
// The calling program must call MaybeChild at the start of main. Run makes the
// process a child subreaper, so that it may also access daemons.
func Run(ctx context.Context, cfg Config) (status int, stats Stats, err error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Argv) == 0 {
		return ExitNotFound, Stats{}, &StartError{Err: fmt.Errorf("no program given: %w", fs.ErrNotExist)}
	}
	env := cfg.Env
	if env == nil {
		env = os.Environ()
	}
	path, err := lookPath(cfg.Argv[0], cfg.Dir, env)
	if err != nil {
		se := &StartError{Program: cfg.Argv[0], Err: err}
		return se.ExitStatus(), Stats{}, se
	}
	var p *program
	switch {
	case cfg.Front == nil:
		p, err = startChild(ctx, &cfg, path, env, log)
	case cfg.Front.under:
		p, err = cfg.Front.start(ctx, &cfg, path, env)
	default:
		p, err = cfg.Front.begin(ctx, &cfg)
	}
	if err != nil {
		var se *StartError
		if errors.As(err, &se) {
			return se.ExitStatus(), Stats{}, err
		}
		return ExitNotExecutable, Stats{}, err
	}
	defer p.close()
	if cfg.Started != nil {
		cfg.Started(p.pid)
	}
	if p.listener < 0 {
		// Inside another launcher, whose filter is in place already.
		log.Info("another 'smcr run' already handles this program")
		return p.wait(), Stats{}, nil
	}
	defer unix.Close(p.listener)

	sctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var s interface {
		serve() error
		interrupt()
		close()
		snapshot() Stats
	}
	if cfg.Kernel != nil {
		s, err = newKernelSupervisor(p.listener, *cfg.Kernel, log)
	} else {
		var sv *supervisor
		sv, err = newSupervisor(sctx, ctx.Done(), p.listener, newSessions(cfg.Broker, cfg.Redial), cmp.Or(cfg.decide, decideTime), cfg.Quiet, !cfg.NoAdapt, log)
		if err == nil {
			sv.sessions.here.none = cfg.apart != nil && *cfg.apart
			sv.early = !cfg.AllowIOUring // io_uring would accept placeholders
			sv.ends.procs.root, sv.ends.procs.made.from = p.root, p.from
			sv.inherit(p.inherited, p.pid)
			p.inherited = nil
		}
		s = sv
	}
	if err != nil {
		_ = unix.Kill(p.pid, unix.SIGKILL)
		p.wait()
		return ExitNotExecutable, Stats{}, fmt.Errorf("launch: %w", err)
	}
	var wg sync.WaitGroup
	var serveErr error
	served := make(chan struct{})
	// No guard: each call has one.
	wg.Go(func() {
		defer close(served)
		serveErr = s.serve()
	})
	if p.root == 0 {
		wg.Go(func() { reapOrphans(served) }) // No guard: it only makes system calls.
	}
	status = p.wait()
	if cfg.Ended != nil {
		cfg.Ended(status, served, s.snapshot)
	}
	select {
	case <-served:
	case <-ctx.Done():
		s.interrupt()
	}
	cancel()
	wg.Wait()
	s.close()
	if serveErr != nil {
		return status, s.snapshot(), fmt.Errorf("launch: %w", serveErr)
	}
	return status, s.snapshot(), nil
}

// startChild starts the program as a child of this process.
func startChild(ctx context.Context, cfg *Config, path string, env []string, log *slog.Logger) (*program, error) {
	// As a subreaper, this process becomes the parent of daemons, so it may
	// access them where ptrace is restricted to descendants (Yama).
	subreaper := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if subreaper != nil {
		log.Debug("cannot become a subreaper", "err", subreaper)
	}
	// Before the program runs, so that it gets signals from its first moment.
	signals := catchSignals()
	child, p, err := startStub(ctx, cfg, path, env)
	if err != nil {
		signal.Stop(signals)
		if subreaper == nil { // the caller may execute the program
			_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
		}
		return nil, err
	}
	stopSignals := forwardSignals(signals, child)
	p.wait = func() int { return waitStatus(ctx, child) }
	p.end = func() {
		stopSignals()
		signal.Stop(signals)
		children.remove(p.pid)
	}
	return p, nil
}

// waitStatus waits for the program, and ends it when ctx does.
func waitStatus(ctx context.Context, p *os.Process) int {
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	// No guard: it only sends signals.
	wg.Go(func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		_ = p.Signal(unix.SIGTERM)
		t := time.NewTimer(killGrace)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			_ = p.Kill()
		}
	})
	st, err := p.Wait()
	if err != nil {
		return ExitNotExecutable
	}
	ws := st.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// lookPath finds the program as execvp does, in PATH of env.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		at := name
		if dir != "" && !filepath.IsAbs(name) {
			at = filepath.Join(dir, name)
		}
		return name, executable(at)
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	err := exec.ErrNotFound
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		full := filepath.Join(d, name)
		at := full
		if dir != "" && !filepath.IsAbs(full) {
			at = filepath.Join(dir, full)
		}
		e := executable(at)
		if e == nil {
			if !strings.Contains(full, "/") {
				full = "./" + full
			}
			return full, nil
		}
		if errors.Is(e, fs.ErrPermission) {
			err = e
		}
	}
	return "", err
}

func executable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fmt.Errorf("is a directory: %w", fs.ErrPermission)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "exec", Path: path, Err: err}
	}
	return nil
}

// catchSignals begins to catch the signals that will be forwarded. Signals that
// the launcher ignores (nohup) are still ignored.
func catchSignals() chan os.Signal {
	ch := make(chan os.Signal, 16)
	var sigs []os.Signal
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT} {
		if !signal.Ignored(sig) {
			sigs = append(sigs, sig)
		}
	}
	if len(sigs) > 0 {
		signal.Notify(ch, sigs...)
	}
	return ch
}

// forwardSignals passes signals on to p until the function returned is called,
// which waits for its goroutine.
func forwardSignals(ch <-chan os.Signal, p *os.Process) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	// No guard: it only sends signals.
	wg.Go(func() {
		for {
			select {
			case sig := <-ch:
				if (sig == unix.SIGINT || sig == unix.SIGQUIT) && InForeground() {
					continue
				}
				_ = p.Signal(sig)
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// InForeground reports whether this process is in the foreground group of its
// terminal. Then the terminal also sends its signals to the program.
func InForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	pgrp, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}
