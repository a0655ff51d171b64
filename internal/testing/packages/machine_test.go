// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// root is the folder of the module.
const root = "../../.."

// Time limits. Each is many times what an idle machine needs.
const (
	commandTime = 2 * time.Minute  // for a command in a machine
	startTime   = time.Minute      // until a machine, a stack or a transfer has begun
	endTime     = time.Minute      // until they have ended
	buildTime   = 15 * time.Minute // for the compiler with an empty cache
)

// A machine is a process 1 in namespaces of its own, see testdata/machine.sh.
type machine struct {
	t    testing.TB // nil for the store, which is not of one test
	dir  string     // of the store
	name string     // of its files in the store, of its host and of its cgroup
	pid  int        // of its process 1, as this process sees it

	cmd   *exec.Cmd
	stdin io.Closer
	log   netnstest.Buffer
}

// startMachine starts a machine. It ends with [machine.close].
func startMachine(kind, dir, name, ready string, prefix ...string) (*machine, error) {
	m := &machine{dir: dir, name: name}
	if err := m.start(kind, ready, prefix...); err != nil {
		return nil, err
	}
	return m, nil
}

// start starts the machine, also once more after close.
func (m *machine) start(kind, ready string, prefix ...string) error {
	script, err := filepath.Abs("testdata/machine.sh")
	if err != nil {
		return err
	}
	argv := append(prefix, "bash", script, kind, m.dir, m.name)
	m.cmd = exec.Command(argv[0], argv[1:]...)
	m.cmd.Stderr = &m.log
	// Signals of a terminal go to the test alone, and the machine ends after it.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	var parent int
	if _, err := fmt.Fscanln(bufio.NewReader(out), &parent); err != nil {
		return errors.Join(fmt.Errorf("machine %s does not start: %w: %s", m.name, err, m.log.String()), m.close())
	}
	err = netnstest.Until(startTime, func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", parent))
		if err != nil {
			return netnstest.Stop(err) // it has ended
		}
		if _, err := fmt.Sscan(string(children), &m.pid); err != nil {
			return fmt.Errorf("no process 1: %w", err)
		}
		_, err = os.Stat(m.path(ready))
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("machine %s does not start: %w: %s", m.name, err, m.log.String()), m.close())
	}
	return nil
}

// close ends the machine with all its processes.
func (m *machine) close() error {
	_ = m.stdin.Close()
	timer := time.AfterFunc(endTime, func() { _ = m.cmd.Process.Kill() })
	defer timer.Stop()
	if err := m.cmd.Wait(); err != nil {
		return fmt.Errorf("machine %s: %w: %s", m.name, err, m.log.String())
	}
	return nil
}

// path returns the path by which this process finds a file of the machine. Absolute links on
// the way lead out of the machine.
func (m *machine) path(name string) string {
	return filepath.Join("/proc", fmt.Sprint(m.pid), "root", name)
}

// environment is that of a shell after the login of root.
func (m *machine) environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TERM=dumb",
		"SMCR_SYSCALL_FILTER=strict", // a stack ends if it makes a system call that is not in its list
	}
}

// A host is a network namespace of the machine.
type host struct {
	*machine
	name string
	net  []string // what precedes a command there
}

// shell returns a command that runs a line of a shell on the host, as if typed there.
func (h host) shell(ctx context.Context, line string) *exec.Cmd {
	argv := append([]string{
		fmt.Sprintf("--target=%d", h.pid), "--mount", "--net", "--pid", "--cgroup", "--ipc", "--uts", "--root", "--",
		"env", "--chdir=/root", // otherwise the directory is one outside of the machine
	}, h.net...)
	// The stack announces SMC for the programs in its cgroup namespace. With systemd, only the
	// leaves of the tree have processes.
	const enter = `for f in /sys/fs/cgroup/init.scope /sys/fs/cgroup; do [ -d $f ] && echo 0 >$f/cgroup.procs && break; done; eval "$0"`
	cmd := exec.CommandContext(ctx, "nsenter", append(argv, "bash", "-c", enter, line)...)
	// The two hosts count as two machines. Their connections would be local otherwise.
	cmd.Env = append(h.environment(), "SMCR_HOST_ID="+h.name)
	cmd.WaitDelay = time.Second
	return cmd
}

// try runs a line of a shell and returns what it prints, on both streams.
func (h host) try(line string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	out, err := h.shell(ctx, line).CombinedOutput()
	return strings.TrimRight(string(out), "\n"), errors.Join(err, ctx.Err())
}

// must is try for a line that must succeed.
func (h host) must(line string) string {
	h.t.Helper()
	out, err := h.try(line)
	if err != nil {
		h.t.Fatalf("%s# %s\n%s\n%v", h.name, line, out, err)
	}
	return out
}

// A program runs on a host in the background.
type program struct {
	t    testing.TB
	line string
	out  netnstest.Buffer
	done chan struct{}
	err  error // after done
}

// start starts a line of a shell in the background.
func (h host) start(line string) *program {
	h.t.Helper()
	p := &program{t: h.t, line: h.name + "# " + line, done: make(chan struct{})}
	cmd := h.shell(context.Background(), line)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		h.t.Fatalf("%s: %v", p.line, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("%s\n%s", p.line, p.out.String())
		}
	})
	return p
}

// wantOutput waits until the program has printed a text.
func (p *program) wantOutput(text string) {
	p.t.Helper()
	if err := netnstest.Until(startTime, func() error {
		if strings.Contains(p.out.String(), text) {
			return nil
		}
		select {
		case <-p.done:
			return netnstest.Stop(fmt.Errorf("it has ended: %w", p.err))
		default:
			return fmt.Errorf("it has not printed %q", text)
		}
	}); err != nil {
		p.t.Fatalf("%s: %v", p.line, err)
	}
}

// wantEnd waits until the program has ended, with status 0.
func (p *program) wantEnd() {
	p.t.Helper()
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Fatalf("%s: %v", p.line, p.err)
		}
	case <-time.After(endTime):
		p.t.Fatalf("%s: does not end", p.line)
	}
}
