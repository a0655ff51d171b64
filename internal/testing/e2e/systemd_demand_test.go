// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestSystemdOnDemand starts the unit while a stack runs that smcr run of root has started: that
// one runs as the user of the unit, so the unit takes over from it at once, and connections go on. Programs of other users have
// cgroups with both.
func TestSystemdOnDemand(t *testing.T) {
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	l.serveWire(l.B)
	echo := l.under(l.B, "/usr/bin/python3", "-u", "-c", blockEcho, l.B.Addr())
	if err := echo.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	hold, in := m.keeps(l.B.Addr())
	m.exchange("nobody", l.B.Addr())
	onDemand := m.must("pgrep", "-f", "serve --on-demand")
	log := m.must("readlink", "/proc/"+onDemand+"/fd/2")
	uid := m.must("id", "-u", "smcr")
	if status := m.must("cat", "/proc/"+onDemand+"/status"); !strings.Contains(status, "\nUid:\t"+uid+"\t"+uid+"\t"+uid) ||
		!strings.Contains(status, "\nCapEff:\t"+stackCaps) || !strings.Contains(status, "\nGroups:\t \n") {
		t.Errorf("the stack on demand:\n%s", status)
	}
	runs := m.must("pgrep", "-f", "serve --runs")
	if status := m.must("cat", "/proc/"+runs+"/status"); !strings.Contains(status, "\nCapEff:\t0000000000000000") || !strings.Contains(status, "\nCapBnd:\t0000000000000000") {
		t.Errorf("the process that makes cgroups:\n%s", status)
	}

	m.must("systemctl", "enable", "--now", "smcr.service")
	if s := m.show("ActiveState"); s != "active" || m.show("NRestarts") != "0" {
		t.Errorf("the unit is %s, after %s restarts", s, m.show("NRestarts"))
	}
	m.wantConfined(m.show("MainPID"))
	// The stack of the unit has the new connections, and the other one still runs.
	m.wantGoOn(in, hold)
	m.exchange("nobody", l.B.Addr())
	if s := m.must("systemctl", "show", "smcr-run.service", "--value", "--property=ActiveState"); s != "active" {
		t.Errorf("smcr-run.service is %s", s)
	}
	// Root does not take over from the unit.
	if out, err := m.run("smcr", "serve", "--takeover"); err == nil || !strings.Contains(out, "already running") {
		t.Errorf("root takes over from the unit: %v\n%s", err, out)
	}
	hold.Kill()
	m.wantNoRunsInside()
	// The end of the first stack in order is not a failure that smcr info would report.
	_, _ = m.run("kill", onDemand)
	if err := netnstest.Until(endTime, func() error {
		if st, err := os.Stat(log); err == nil && st.Size() > 0 {
			return fmt.Errorf("the stack that has ended has left %s, %d bytes", log, st.Size())
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	m.must("systemctl", "stop", "smcr.service")
	echo.Kill()
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestRootTakesOver: root takes over from a stack that smcr run of root has started as the user of the
// unit, as when smcr was installed again without systemd. The new stack is of this user, too, and the
// unit takes over from it.
func TestRootTakesOver(t *testing.T) {
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	argv := m.session("root", "smcr", "run", "--mode", "user", "--", "sh", "-c", "echo running; exec sleep 100")
	hold := l.A.Go(t, argv[0], argv[1:]...)
	if err := hold.WaitOutput("running", startTime); err != nil {
		t.Fatal(err)
	}
	onDemand := m.must("pgrep", "-f", "serve --on-demand")
	root := l.A.Go(t, "nsenter", fmt.Sprintf("--target=%d", m.pid), "--mount", "--pid", "--net", "--root", "--cgroup", "--wd=/",
		"env", "SMCR_SYSCALL_FILTER=strict", "smcr", "serve", "--takeover")
	if err := root.WaitOutput("serving", startTime); err != nil {
		t.Fatal(err)
	}
	pid := m.must("pgrep", "-f", "serve --takeover")
	uid := m.must("id", "-u", "smcr")
	if status := m.must("cat", "/proc/"+pid+"/status"); !strings.Contains(status, "\nUid:\t"+uid+"\t"+uid+"\t"+uid) ||
		!strings.Contains(status, "\nCapEff:\t"+stackCaps) || !strings.Contains(status, "\nGroups:\t \n") {
		t.Errorf("the stack of root:\n%s", status)
	}
	if err := netnstest.Until(startTime, func() error {
		if out, err := m.run("smcr", "info", "-o", "table"); err != nil || !strings.Contains(out, "process "+pid+",") {
			return fmt.Errorf("not the stack %s, which follows %s: %w\n%s", pid, onDemand, err, out)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	m.must("systemctl", "start", "smcr.service")
	m.wantConfined(m.show("MainPID"))
	hold.Kill()
	m.must("systemctl", "stop", "smcr.service")
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
