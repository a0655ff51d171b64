// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/cmdutil"
	"smcr/internal/runs"
	"smcr/internal/serve"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/attach"
	"smcr/userstack/broker"
	"smcr/userstack/launch"
	"smcr/userstack/service"
)

// wire is the boundary of a stack that takes connections at the devices: see --boundary of smcr serve.
const wire = "wire"

// While one stack takes over from another, neither takes programs, for no longer than takeoverPatience: smcr run tries
// again after takeoverPause each time.
const (
	takeoverPatience = 5 * time.Second
	takeoverPause    = 10 * time.Millisecond
)

// errLauncher means that the stack needs a launcher.
var errLauncher = errors.New("the stack of this network namespace needs a launcher")

// overWire has the program run in an attached cgroup, with its own sockets, if the stack takes connections at the
// devices. It returns errLauncher if it does not, or if the kernel has SMC, and otherwise only on failure.
func overWire(ctx context.Context, o *Options, log *slog.Logger) error {
	if o.Mode == ModeKernel || o.Mode == ModeTCP {
		return errLauncher
	}
	if o.Mode == ModeAuto && len(o.Serve) == 0 {
		c, err := kernel(ctx, o)
		if c != nil {
			c.close()
		}
		if err == nil {
			return errLauncher
		}
	}
	c, err := wireStack(ctx, o)
	switch {
	case err != nil && o.Boundary != wire:
		log.Debug("with a launcher", "why", err)
		return errLauncher // which finds out what is wrong
	case err != nil && o.Mode == ModeAuto:
		plainTCP(o, err)
		return native(o)
	case err != nil:
		return err
	}
	a, err := Enter(ctx, c, o.NoAdapt, log)
	for end := time.Now().Add(takeoverPatience); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		// Another stack takes over, and has its sockets in a moment.
		time.Sleep(takeoverPause)
		next, derr := wireStack(ctx, o)
		if derr != nil {
			break // the new stack is another one
		}
		_ = c.Close()
		c = next
		a, err = Enter(ctx, c, o.NoAdapt, log)
	}
	switch {
	case err != nil && o.Mode == ModeAuto:
		_ = c.Close()
		plainTCP(o, err)
		return native(o)
	case err != nil:
		return cmdutil.Say(err, "the program cannot use the stack: %v", err)
	}
	log.Debug("the program keeps its sockets", "cgroup", a.Path)
	if o.Verbose {
		return waitFor(ctx, o, c, a)
	}
	_ = c.Close()
	return native(o)
}

// wireStack returns the stack of this network namespace, and starts it if there is none and o asks for one at the devices.
// The error is errLauncher if it is another one.
func wireStack(ctx context.Context, o *Options) (*nl.Client, error) {
	dial := func() (*nl.Client, error) {
		c, err := nl.DialUser(ctx)
		if err != nil {
			return nil, err
		}
		if _, err = c.Attachments(ctx); err == nil {
			return c, nil
		}
		defer c.Close() //nolint:errcheck // it was asked
		if errors.Is(err, nl.ErrNotSupported) {
			err = withoutWire(ctx, c)
		}
		return nil, err
	}
	c, err := dial()
	if !errors.Is(err, nl.ErrNoBackend) {
		return c, err
	}
	if o.Boundary != wire {
		return nil, errLauncher // which starts one
	}
	progress := o.IO.Progress("waiting for the user-space stack")
	defer progress.Stop()
	if err := serve.StartOnDemand(ctx, o.Serve...); err != nil && !errors.Is(err, service.ErrRunning) {
		return nil, sessionError(err)
	}
	return dial()
}

// withoutWire returns why a stack does not take connections at the devices: it lacks something, or the error is errLauncher.
func withoutWire(ctx context.Context, c nl.Control) error {
	info, err := c.SysInfo(ctx)
	if err != nil {
		return err
	}
	if info.NoWire != "" {
		return errors.New(info.NoWire)
	}
	return errLauncher
}

// Enter has this process be in an attached cgroup of its own, so its connections are those of a program under smcr run. always
// is that of nl.Attacher.
func Enter(ctx context.Context, c nl.Attacher, always bool, log *slog.Logger) (nl.Attachment, error) {
	// Whoever may make a cgroup here does: the stack has no right to where a user manager has.
	leave, err := attach.EnterOwn()
	if err != nil {
		log.Debug("the stack makes the cgroup", "err", err)
		leave = func() error { return nil }
	} else if stack, ok := c.(nl.Control); ok && os.Geteuid() == 0 {
		if info, err := stack.SysInfo(ctx); err == nil && info.UID != 0 {
			// That stack may not remove the cgroup.
			if err := runs.Ask(ctx); err != nil {
				log.Debug("the cgroup will stay", "err", err)
			}
		}
	}
	a, err := c.Enter(ctx, nl.Peer{}, always)
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EROFS) {
		// A stack that is not of root may not make it: attach.ErrNoRight.
		if err = runs.Ask(ctx); err == nil {
			a, err = c.Enter(ctx, nl.Peer{}, always)
		}
	}
	if err != nil {
		if lerr := leave(); lerr != nil {
			log.Debug("the cgroup stays", "err", lerr)
		}
	}
	return a, err
}

// passed are the signals that reach the program through its waiter.
var passed = []os.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGINT, unix.SIGQUIT}

// both reports whether a signal reaches the program without its waiter: a terminal sends it to all in its foreground.
func both(s os.Signal) bool {
	return (s == unix.SIGINT || s == unix.SIGQUIT) && launch.InForeground()
}

// waitFor runs the program, prints what became of its connections, and ends as the program has.
func waitFor(ctx context.Context, o *Options, c *nl.Client, a nl.Attachment) error {
	cmd := exec.Command(o.Argv[0], o.Argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 16)
	for _, s := range passed {
		if !signal.Ignored(s) { // the program ignores it, too
			signal.Notify(signals, s)
		}
	}
	if err := cmd.Start(); err != nil {
		return startError(&launch.StartError{Program: o.Argv[0], Err: err})
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if !both(s) {
				_ = cmd.Process.Signal(s)
			}
			continue
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return fmt.Errorf("%s: %w", o.Argv[0], err)
			}
		}
		break
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	var b bytes.Buffer
	if uid := uint32(os.Geteuid()); uid != 0 && a.UID != uid { // the stack shows nothing of it, and others may be in the cgroup
		_, _ = fmt.Fprintf(o.Err, "smcr: the program was within a run of user %d, to whom its connections count\n", a.UID)
		return endAs(ws)
	}
	if goesOn(a) {
		fmt.Fprintln(&b, "smcr: the program has ended, and processes that it started go on; until now:")
	}
	outcomes, err := outcomesOf(ctx, c, a)
	if err != nil {
		fmt.Fprintf(&b, "smcr: the stack does not say what became of the connections: %v\n", err)
	} else {
		summary(&b, outcomes, func() []nl.Device { return userDevices(ctx) })
	}
	_, _ = o.Err.Write(b.Bytes())
	return endAs(ws)
}

// goesOn reports whether processes of the program are left. Those that are about to end have a moment for it.
func goesOn(a nl.Attachment) bool {
	top, err := cgroup.Top()
	if err != nil {
		return false
	}
	own := strconv.Itoa(os.Getpid())
	for end := time.Now().Add(reportPatience); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(top, a.Path, "cgroup.procs"))
		others := slices.DeleteFunc(strings.Fields(string(b)), func(pid string) bool { return pid == own })
		if err != nil || len(others) == 0 {
			return false
		}
		if time.Now().After(end) {
			return true
		}
	}
}

// outcomesOf returns what became of the connections of the programs of a cgroup.
func outcomesOf(ctx context.Context, c nl.Attacher, a nl.Attachment) (s launch.Stats, err error) {
	all, err := c.Attachments(ctx)
	if err != nil {
		return s, err
	}
	i := slices.IndexFunc(all, func(o nl.Attachment) bool { return o.Path == a.Path })
	if i < 0 {
		return s, os.ErrNotExist
	}
	s.ByMode = map[broker.Mode]uint64{broker.ModeSMCR: all[i].SMCR}
	s.TCP, s.Resets = map[string]uint64{}, map[string]uint64{}
	for _, r := range all[i].TCP {
		why := smc.Diagnosis(r.Reason)
		if why == smc.DiagLocal {
			s.Local += r.Count
			continue
		}
		s.TCP[cmp.Or(why.Text(), fmt.Sprintf("the reason 0x%08x", r.Reason))] += r.Count
	}
	for _, r := range all[i].Resets {
		s.Resets[r.Why] += r.Count
	}
	return s, nil
}

// endAs ends this process as another one has ended.
func endAs(ws syscall.WaitStatus) error {
	if !ws.Signaled() {
		if code := ws.ExitStatus(); code != 0 {
			return &cmdutil.StatusError{Code: code}
		}
		return nil
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // the program has dumped core, if it was to
	signal.Reset(ws.Signal())
	_ = unix.Kill(os.Getpid(), ws.Signal())
	time.Sleep(time.Second)
	return &cmdutil.StatusError{Code: 128 + int(ws.Signal())} // it is blocked
}
