// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// killWait is how long to wait for killed processes. SIGKILL normally takes a few
// milliseconds, but both cores may be busy.
const killWait = testkind.Patience

// hostID names the machine of a stack (service.HostIDVariable), so that hosts count as
// different machines.
const hostID = "SMCR_HOST_ID"

// strict ends a stack that makes a system call which is not in its list, so that the test
// fails (package serve).
const strict = "SMCR_SYSCALL_FILTER=strict"

// Command returns a command that runs name with args in the network namespace of the host
// and in the mount namespace of this process (unlike `ip netns exec`). The process ID of
// the started command is that of the program itself. When ctx ends, the whole process
// group is killed.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + h.Path(), "--", name}, args...)...)
	if path, err := lookPath(name); err == nil {
		cmd.Args[3] = path
	}
	cmd.Env = append(os.Environ(), hostID+"="+h.machine, strict)
	// A separate process group, so that children of the program end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if err == unix.ESRCH {
			return os.ErrProcessDone // it has ended by itself in this moment
		}
		return err
	}
	// A child that has left the group may have the output pipes open.
	cmd.WaitDelay = time.Second
	return cmd
}

// Output runs a command in the host and returns its standard output. An error contains
// the end of its standard error.
func (h *Host) Output(ctx context.Context, name string, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	cmd := h.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, tail(errOut.String(), 2000))
	}
	return out.String(), nil
}

// Process is a program running in a Host.
type Process struct {
	// Cmd is the started command. Do not call its Wait.
	Cmd *exec.Cmd

	host *Host
	log  *Buffer
	done chan struct{}
	err  error // valid after done
}

// Start starts cmd, which must come from h.Command, and collects its output (both
// streams, unless the caller has set them). Close of the host kills it.
func (h *Host) Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, host: h, log: &Buffer{}, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.log
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("netnstest: start %s: %w", strings.Join(cmd.Args[3:], " "), err)
	}
	h.mu.Lock()
	h.procs[p] = struct{}{}
	h.mu.Unlock()
	go func() {
		p.err = cmd.Wait()
		h.mu.Lock()
		delete(h.procs, p)
		h.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

// Go starts a program in the host and kills it at the end of the test. If the test fails,
// the output of the program is logged.
func (h *Host) Go(t testing.TB, name string, args ...string) *Process {
	t.Helper()
	return h.GoCmd(t, h.Command(context.Background(), name, args...))
}

// GoCmd is Go for a command that the caller prepared (environment, directory).
func (h *Host) GoCmd(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := h.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s: output of %s:\n%s", h.Name, strings.Join(cmd.Args[3:], " "), tail(p.Log(), 8000))
		}
	})
	return p
}

// Pid returns the process id of the program.
func (p *Process) Pid() int { return p.Cmd.Process.Pid }

// Log returns the output of the program so far.
func (p *Process) Log() string { return p.log.String() }

// Done is closed when the program has ended and its output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the program to end, at most for d, and returns the error of
// exec.Cmd.Wait, or os.ErrDeadlineExceeded.
func (p *Process) Wait(d time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(d):
		return fmt.Errorf("netnstest: process %d (%s) still runs after %v: %w", p.Pid(), strings.Join(p.Cmd.Args[3:], " "), d, os.ErrDeadlineExceeded)
	}
}

// Signal sends sig to the program alone, not to its children.
func (p *Process) Signal(sig os.Signal) error { return p.Cmd.Process.Signal(sig) }

// Kill kills the program and its process group and waits for its end.
func (p *Process) Kill() {
	select {
	case <-p.done:
		// The group may still exist after its leader has ended. While it has a member,
		// its number cannot belong to another process. Without a member, the kernel may
		// have reused the number. So leave this to Close, which finds processes by their
		// namespace.
		return
	default:
	}
	_ = unix.Kill(-p.Pid(), unix.SIGKILL)
	select {
	case <-p.done:
	case <-time.After(killWait):
	}
}

// WaitOutput waits until the program has printed a line with text, at most for d. It waits for
// the end of the line as well: a program may write one line with several calls, and who reads
// Log afterwards wants what stands behind text.
func (p *Process) WaitOutput(text string, d time.Duration) error {
	return p.wait(text, d, func(log string) bool {
		_, after, found := strings.Cut(log, text)
		return found && (strings.HasSuffix(text, "\n") || strings.Contains(after, "\n"))
	})
}

// WaitPart waits until the program has printed text, at most for d. The line may be unfinished,
// as one that a program over TCP echoes without a newline.
func (p *Process) WaitPart(text string, d time.Duration) error {
	return p.wait(text, d, func(log string) bool { return strings.Contains(log, text) })
}

// wait waits until printed holds for the output of the program, at most for d. The output of a
// program that has ended is complete, and so is its last line.
func (p *Process) wait(text string, d time.Duration, printed func(log string) bool) error {
	return Until(d, func() error {
		if printed(p.Log()) {
			return nil
		}
		select {
		case <-p.done:
			if strings.Contains(p.Log(), text) {
				return nil
			}
			return Stop(fmt.Errorf("netnstest: %s ended (%v) before it printed %q:\n%s", p.Cmd.Args[3], p.err, text, tail(p.Log(), 4000)))
		default:
			return fmt.Errorf("netnstest: %s has not printed %q:\n%s", p.Cmd.Args[3], text, tail(p.Log(), 4000))
		}
	})
}

// WaitListen waits until a program in the host listens on the TCP port, at most for d. It
// reads /proc/net, so it makes no connection to the server.
func (h *Host) WaitListen(port int, d time.Duration) error {
	return Until(d, func() error {
		found := false
		err := h.Do(func() error {
			for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
				b, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				found = found || listens(string(b), port)
			}
			return nil
		})
		if err != nil {
			return Stop(err)
		}
		if !found {
			return fmt.Errorf("netnstest: nothing listens on port %d in %s", port, h.Name)
		}
		return nil
	})
}

// listens reports whether a table in the format of /proc/net/tcp has a socket
// in state LISTEN (0A) on port.
func listens(table string, port int) bool {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
			return true
		}
	}
	return false
}

// stopError makes Until return early.
type stopError struct{ error }

func (e stopError) Unwrap() error { return e.error }

// Stop marks an error with which Until must return at once.
func Stop(err error) error { return stopError{err} }

// Until calls f every few milliseconds until f returns nil or an error of Stop, or until
// d has passed. It returns the last error of f.
func Until(d time.Duration, f func() error) error {
	var err error
	var stop stopError
	if testkind.Poll(d, func() bool { err = f(); return err == nil || errors.As(err, &stop) }) {
		return stop.error
	}
	return fmt.Errorf("after %v: %w", d, err)
}

// Pids returns the processes in the host's network namespace.
func (h *Host) Pids() ([]int, error) { return pidsIn(h.Name) }

func pidsIn(name string) ([]int, error) {
	var want unix.Stat_t
	if err := unix.Stat(filepath.Join(runDir, name), &want); err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		var st unix.Stat_t
		// A process that has just ended is no error.
		if unix.Stat(dir, &st) == nil && st.Ino == want.Ino && st.Dev == want.Dev {
			if pid, err := strconv.Atoi(strings.Split(dir, "/")[2]); err == nil && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// remove kills the processes in a namespace and deletes it.
func remove(name string) error {
	err := Until(killWait, func() error {
		pids, err := pidsIn(name)
		if err != nil || len(pids) == 0 {
			return nil // a namespace that is missing or incomplete has no processes
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return fmt.Errorf("netnstest: processes %v in %s do not end", pids, name)
	})
	if derr := netns.DeleteNamed(name); derr != nil && !errors.Is(derr, os.ErrNotExist) {
		// A process that was killed while it made a namespace leaves a file without a
		// mount.
		if rerr := os.Remove(filepath.Join(runDir, name)); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("netnstest: delete namespace %s: %w", name, derr))
		}
	}
	return err
}

// lookPath is exec.LookPath that also finds administration programs if PATH lacks the
// sbin directories, as for a normal user.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || strings.Contains(name, "/") {
		return path, err
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", err
}

// Buffer is a bytes.Buffer that several goroutines may use. Its zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*Buffer)(nil)

// Write implements io.Writer.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written until now.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// tail returns the last n bytes of s.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}
