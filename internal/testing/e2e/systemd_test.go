// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
	"smcr/internal/testing/netnstest"
)

// A machine is a host in which systemd runs as process 1, with the units of this project.
type machine struct {
	*lab
	init *netnstest.Process
	pid  int // of systemd, as this process sees it
}

// boot runs systemd in a host.
func (l *lab) boot(h *netnstest.Host) *machine {
	l.t.Helper()
	const systemd = "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		l.t.Skip(err)
	}
	units, err := filepath.Abs("../../../deploy/systemd")
	if err != nil {
		l.t.Fatal(err)
	}
	script, err := filepath.Abs("testdata/systemd.sh")
	if err != nil {
		l.t.Fatal(err)
	}
	group := fmt.Sprintf("smcr-systemd-%d", os.Getpid())
	dir := l.t.TempDir()
	l.t.Cleanup(func() {
		if err := netnstest.Until(endTime, func() error {
			out, err := exec.CommandContext(context.Background(), "unshare", "--mount", "bash", script, "clean", group).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}); err != nil {
			l.t.Error(err)
		}
	})
	m := &machine{lab: l}
	m.init = h.Go(l.t, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", script, "boot", dir, bin("smcr"), units, group)
	if err := netnstest.Until(startTime, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.init.Pid()))
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(b), &m.pid); err != nil {
			return fmt.Errorf("no child: %w", err)
		}
		out, err := m.run("systemctl", "is-system-running")
		if !strings.HasPrefix(out, "running") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	}); err != nil {
		l.t.Fatalf("systemd does not start: %v\n%s", err, m.init.Log())
	}
	l.t.Cleanup(func() {
		if l.t.Failed() {
			log := m.log()
			l.t.Logf("log of the stack:\n%s", log[max(0, len(log)-20000):])
		}
	})
	return m
}

// run runs a command in the machine.
func (m *machine) run(argv ...string) (string, error) {
	out, err := exec.CommandContext(m.t.Context(), "nsenter", append([]string{fmt.Sprintf("--target=%d", m.pid), "--mount", "--pid", "--net", "--root", "--wd=/"}, argv...)...).CombinedOutput()
	return string(out), err
}

// must runs a command in the machine that must succeed.
func (m *machine) must(argv ...string) string {
	m.t.Helper()
	out, err := m.run(argv...)
	if err != nil {
		m.t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return strings.TrimSpace(out)
}

// show returns a property of the unit smcr.service.
func (m *machine) show(property string) string {
	m.t.Helper()
	return m.must("systemctl", "show", "smcr.service", "--value", "--property="+property)
}

// log returns what the stack has written.
func (m *machine) log() string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/log", m.pid))
	return string(b)
}

// wantExporter starts the unit of the exporter, which has a user of its own and no capability,
// and gets the metrics of the stack from it.
func (m *machine) wantExporter() {
	m.t.Helper()
	const unit = "smcr-exporter.service"
	m.must("systemctl", "start", unit)
	if err := netnstest.Until(startTime, func() error {
		out, err := m.run("curl", "-sS", "--fail", "--max-time", "5", "http://127.0.0.1:9791/metrics")
		if err == nil && !strings.Contains(out, "\nsmcr_up{stack=\"user\"} 1\n") {
			err = errors.New("no metrics of the stack")
		}
		if err != nil {
			return fmt.Errorf("%w: %.2000s", err, out)
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
	pid := m.must("systemctl", "show", unit, "--value", "--property=MainPID")
	status := m.must("cat", "/proc/"+pid+"/status")
	if regexp.MustCompile(`(?m)^Uid:\t0\t`).MatchString(status) || !regexp.MustCompile(`(?m)^CapBnd:\t0+$`).MatchString(status) {
		m.t.Errorf("the exporter has rights:\n%s", status)
	}
	m.must("systemctl", "stop", unit)
}

// TestSystemd starts the unit by a real systemd: the stack runs as its own user with the
// rights of the unit, serves the programs of other users, reads its configuration again,
// is ended by the watchdog when it stands still, and starts again.
func TestSystemd(t *testing.T) {
	l := newLab(t, "setpriv", "unshare", "curl", "/usr/bin/python3")
	m := l.boot(l.A)
	l.serveWire(l.B)
	m.must("systemctl", "start", "smcr.service") // returns after READY=1
	if s := m.show("StatusText"); !strings.HasPrefix(s, "sockets in /run/smcr/") {
		t.Errorf("status %q", s)
	}
	pid := m.show("MainPID")
	m.wantConfined(pid)
	// In a container, systemd cannot do this.
	if own, err := confine.Effective(); err != nil {
		t.Error(err)
	} else if score := m.must("cat", "/proc/"+pid+"/oom_score_adj"); own.Has(unix.CAP_SYS_RESOURCE) && score != "-500" {
		t.Errorf("oom_score_adj %s", score)
	}
	for _, user := range []string{"root", "nobody"} {
		m.exchange(user, l.B.Addr())
	}
	m.wantExporter()
	m.must("systemctl", "reload", "smcr.service")
	if s := m.show("ActiveState"); s != "active" || m.show("MainPID") != pid {
		t.Errorf("after a reload: %s, another process: %v", s, m.show("MainPID") != pid)
	}
	m.must("systemctl", "stop", "smcr.service")
	if s := m.show("Result"); s != "success" {
		t.Errorf("after a stop: %s", s)
	}
	if strings.Contains(m.log(), "level=WARN") && !raceDetector {
		t.Errorf("the unit does not give the stack what it needs:\n%s", m.log())
	}

	// A stack that stands still is ended and started again.
	m.must("bash", "-c", `printf '[Service]\nWatchdogSec=2\nRestartSec=100ms\n' >/etc/systemd/system/smcr.service.d/watchdog.conf && systemctl daemon-reload`)
	m.must("systemctl", "start", "smcr.service")
	pid = m.show("MainPID")
	m.must("kill", "-STOP", pid)
	if err := netnstest.Until(startTime, func() error {
		if now := m.show("MainPID"); now == pid || now == "0" || m.show("ActiveState") != "active" {
			return fmt.Errorf("process %s, which was %s: %s", now, pid, m.show("ActiveState"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := m.show("NRestarts"); n != "1" {
		t.Errorf("%s restarts", n)
	}
	if log := m.log(); !regexp.MustCompile(`SIGABRT: abort\n(?s:.*)goroutine `).MatchString(log) {
		t.Errorf("the log does not have the stacks of the goroutines:\n%s", log)
	}
	m.exchange("nobody", l.B.Addr())
	m.must("systemctl", "stop", "smcr.service")
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
