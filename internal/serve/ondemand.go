// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"smcr/internal/oplog"
	"smcr/internal/plain"
	"smcr/internal/sdnotify"
	"smcr/userstack/service"
)

// readyFD is the descriptor to which a service with the flag reportFlag writes the result of
// its start: a line with "ok", or with the name of a cause, a tab and the error.
const readyFD = 3

// reportFlag is the flag with which a service reports its start on readyFD.
const reportFlag = "report-start"

// startCauses are the errors that callers of StartOnDemand distinguish, by their names
// in the line.
var startCauses = map[string]error{"running": service.ErrRunning, "privilege": ErrPrivilege}

// startError is an error that the service itself reported.
type startError struct {
	cause error // one of startCauses, or nil
	text  string
}

func (e *startError) Error() string { return ErrStart.Error() + ": " + e.text }

func (e *startError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrStart}
	}
	return []error{ErrStart, e.cause}
}

// readyLine returns the line for err, the error of a start, or nil.
func readyLine(err error) string {
	if err == nil {
		return "ok"
	}
	cause := "error"
	for name, c := range startCauses {
		if errors.Is(err, c) {
			cause = name
		}
	}
	return cause + "\t" + strings.ReplaceAll(plain.Text(err.Error()), "\n", "; ")
}

// parseReady is the inverse of readyLine. The line must not be empty.
func parseReady(line string) error {
	if line == "ok" {
		return nil
	}
	cause, text, ok := strings.Cut(line, "\t")
	if !ok {
		text = line // not from a service
	}
	return &startError{startCauses[cause], text}
}

// startTimeout is the time limit for the start of a service on demand.
const startTimeout = 15 * time.Second

// IdleTimeout is the time after which a service that was started on demand ends if
// no program uses it.
const IdleTimeout = time.Minute

// ErrStart is wrapped by the error of a service that could not be started.
var ErrStart = errors.New("cannot start the stack of this network namespace")

// StartOnDemand starts "smcr serve" in the background, in the network namespace of
// the caller. It returns when the service serves, or with the error of the start. args
// are additional flags of smcr serve. The error wraps [ErrStart].
//
// Root's service runs as the user of the systemd unit where this user exists and can run this
// program.
func StartOnDemand(ctx context.Context, args ...string) error {
	attr, err := asUnitUser()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrStart, err)
	case attr != nil:
		err = startOnDemand(ctx, attr, args)
		if err == nil {
			startRuns()
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, service.ErrRunning) {
			return err
		}
	}
	return startOnDemand(ctx, &syscall.SysProcAttr{Setsid: true}, args)
}

// startOnDemand starts the service as a process with these attributes.
func startOnDemand(ctx context.Context, attr *syscall.SysProcAttr, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer r.Close()
	newCmd := func() *exec.Cmd {
		cmd := exec.Command(exe, append([]string{"serve", "--on-demand", "--" + reportFlag, "--idle-timeout", IdleTimeout.String()}, args...)...)
		cmd.Dir = "/"
		cmd.Env = sdnotify.Unmanaged(os.Environ()) // the stack is no part of the service that may have run this
		cmd.ExtraFiles = []*os.File{w}
		own := *attr
		cmd.SysProcAttr = &own
		return cmd
	}
	cmd, err := startOwnCgroup(newCmd, openLog(logDir))
	w.Close()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	// The service can run longer than this process. Wait prevents a zombie if
	// the service ends first.
	go func() { _ = cmd.Wait() }()
	return awaitStart(ctx, r, cmd.Process, startTimeout)
}

// awaitStart waits until the process p reports its start at the other end of r. It ends a
// process that needs more than limit, or longer than ctx. The error wraps ErrStart.
func awaitStart(caller context.Context, r *os.File, p *os.Process, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(caller, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	switch line = strings.TrimSpace(line); {
	case line != "":
		return parseReady(line)
	case ctx.Err() != nil:
		_ = p.Kill()
		if caller.Err() != nil {
			return fmt.Errorf("%w: %w", ErrStart, context.Cause(caller))
		}
		return fmt.Errorf("%w: it did not start within %v", ErrStart, limit)
	default:
		return fmt.Errorf("%w: it ended without a message (%v)", ErrStart, errors.Join(err, io.ErrUnexpectedEOF))
	}
}

// staysMessage is the log message of a service that is not in the services' cgroup.
const staysMessage = "the stack stays in the cgroup of the program that started it"

// startOwnCgroup starts a command in the cgroup of the services or, if that is not
// possible, in that of this process. If f is not nil, the command logs to f, and
// startOwnCgroup closes f.
func startOwnCgroup(newCmd func() *exec.Cmd, f *os.File) (*exec.Cmd, error) {
	logTo := func(cmd *exec.Cmd) {
		if f != nil { // a nil *os.File in the interface would not be nil
			cmd.Stderr = f
		}
	}
	if f != nil {
		defer f.Close()
	}
	cmd := newCmd()
	logTo(cmd)
	done, why := inCgroup(cmd.SysProcAttr)
	if why == nil {
		why = cmd.Start()
		done()
		if why == nil {
			return cmd, nil
		}
	}
	// This can also mean that clone3 is not permitted. Any other error will
	// happen again.
	if f != nil {
		oplog.New(f, slog.LevelInfo).Info(staysMessage, "err", why)
	}
	cmd = newCmd()
	logTo(cmd)
	return cmd, cmd.Start()
}

// reportStart reports the result of the start to the process that started this one.
func reportStart(err error) {
	f := os.NewFile(readyFD, "ready")
	if f == nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, readyLine(err))
}
