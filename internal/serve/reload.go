// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/sdnotify"
)

// reloadTimeout is the time limit for a process that takes over. systemd ends a reload after
// 90 s (TimeoutStartSec).
const reloadTimeout = 80 * time.Second

// ErrReload is wrapped by the error of a reload. The stack that runs continues as before.
var ErrReload = errors.New("cannot reload the stack")

// errNoManager means that the service manager would not learn of the new process.
var errNoManager = errors.New("the service manager takes no messages of this process: --reload is for ExecReload= of a unit " +
	"with NotifyAccess=exec; use 'smcr serve --takeover' otherwise")

// Reload does what ExecReload= of the systemd unit must do for the stack that is process pid.
// If that process runs the program of this one, it reads its configuration file again: this
// is a signal, and the log of the stack says what came of it. Otherwise another release was
// installed. Then Reload starts this program with the flags of that process, to take over from
// it. It returns when the new process serves, or with the error of its start. The new process
// is a child of the service manager, which therefore sees its end. The error wraps ErrReload.
func Reload(ctx context.Context, pid int) error {
	p, err := running(pid)
	if err != nil {
		return fmt.Errorf("%w: process %d: %w", ErrReload, pid, err)
	}
	if p.same {
		if err := unix.Kill(pid, unix.SIGHUP); err != nil {
			return fmt.Errorf("%w: process %d: %w", ErrReload, pid, err)
		}
		return nil
	}
	if err := startSuccessor(ctx, p); err != nil {
		return fmt.Errorf("%w: the one that runs continues: %w", ErrReload, err)
	}
	return nil
}

// A runningStack is what another process of smcr serve was started with.
type runningStack struct {
	same  bool     // it has the program of this process, and not an earlier or later one
	flags []string // of smcr serve
	env   []string
}

// errNotServe means that a process is not smcr serve.
var errNotServe = errors.New("it does not run smcr serve")

// running looks at the process pid.
func running(pid int) (p runningStack, err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return p, err
	}
	argv := words(line)
	if len(argv) < 2 || argv[1] != "serve" {
		return p, errNotServe
	}
	p.flags = argv[2:]
	env, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return p, err
	}
	p.env = words(env)
	// The installation of another release replaces the file, so it is another one even if
	// it has the same name.
	mine, err := os.Stat("/proc/self/exe")
	if err != nil {
		return p, err
	}
	theirs, err := os.Stat(filepath.Join(dir, "exe"))
	if err != nil {
		return p, err
	}
	p.same = os.SameFile(mine, theirs)
	return p, nil
}

// words returns the strings in a file such as /proc/PID/cmdline.
func words(b []byte) []string { return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00") }

// startSuccessor starts smcr serve with the flags of p, to take over from p.
func startSuccessor(ctx context.Context, p runningStack) error {
	env, ok := sdnotify.Successor(p.env)
	if !ok {
		return errNoManager
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(exe, append([]string{"serve"}, withFlags(p.flags, "--takeover", "--"+reportFlag)...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{w}
	// The service manager is the parent: it must see the end of its main process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Release() }() // it is not a child of this process
	return awaitStart(ctx, r, cmd.Process, reloadTimeout)
}

// withFlags returns flags with those of more that are not there.
func withFlags(flags []string, more ...string) []string {
	all := slices.Clone(flags)
	for _, f := range more {
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}
