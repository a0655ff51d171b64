// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// session is a command line of a user in the machine, in a cgroup of root, as a session is.
func (m *machine) session(user string, argv ...string) []string {
	m.t.Helper()
	const enter = `mkdir -p /sys/fs/cgroup/session && echo $$ >/sys/fs/cgroup/session/cgroup.procs && exec "$@"`
	return append([]string{"nsenter", fmt.Sprintf("--target=%d", m.pid), "--mount", "--pid", "--net", "--root", "--cgroup", "--wd=/",
		"bash", "-c", enter, "-", "setpriv", "--reuid=" + user, "--regid=" + m.must("id", "-g", user), "--clear-groups"}, argv...)
}

// asUser runs a command of a user as in a session.
func (m *machine) asUser(user string, argv ...string) (string, error) {
	m.t.Helper()
	argv = m.session(user, argv...)
	out, err := exec.CommandContext(m.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// exchange has a program of a user exchange bytes with the server of serveWire at an address, over SMC-R.
func (m *machine) exchange(user, addr string) {
	m.t.Helper()
	out, err := m.asUser(user, "smcr", "run", "--mode", "user", "-v", "--", "/usr/bin/python3", "-c", wireClient, addr, "half")
	if err != nil || !strings.Contains(out, "right\n") {
		m.t.Errorf("%s: %v\n%s", user, err, out)
	}
	wantSummary(m.t, out, 1)
}

// serveWire starts the peer of a machine, with a server.
func (l *lab) serveWire(h *netnstest.Host) {
	l.t.Helper()
	l.serve(h)
	argv := append(inCgroup(session(l.t)), bin("smcr"), "run", "--mode", "user", "--", "/usr/bin/python3", "-u", "-c", wireServer, h.Addr())
	server := h.Go(l.t, argv[0], argv[1:]...)
	l.t.Cleanup(server.Kill)
	if err := server.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err, server.Log())
	}
}

// wantNoRunsInside waits until no cgroup of smcr run is left in the machine.
func (m *machine) wantNoRunsInside() {
	m.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		if out := m.must("find", "/sys/fs/cgroup", "-name", "smcr-run-*"); out != "" {
			return fmt.Errorf("left: %s", out)
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
}

// wantRunsConfined checks that the process that makes cgroups is root without a capability, and has no network.
func (m *machine) wantRunsConfined(pid string) {
	m.t.Helper()
	status := m.must("cat", "/proc/"+pid+"/status")
	for _, want := range []string{"Uid:\t0\t0\t0", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, "\n"+want) {
			m.t.Errorf("no %q in\n%s", want, status)
		}
	}
	if out := m.must("ls", "/proc/"+pid+"/net/dev"); out == "" {
		m.t.Error("no devices are listed")
	}
	if a, b := m.must("readlink", "/proc/"+pid+"/ns/net"), m.must("readlink", "/proc/1/ns/net"); a == b {
		m.t.Error("it is in the network namespace of the machine")
	}
}

// TestSystemdPrograms: the stack of the unit has programs of root and of others, whose cgroups a process
// of its own makes. All of them have the rights of their units and no more.
func TestSystemdPrograms(t *testing.T) {
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	m := l.boot(l.B)
	l.serveWire(l.A)
	m.must("systemctl", "start", "smcr.service")
	m.wantConfined(m.show("MainPID"))
	if log := m.log(); strings.Contains(log, "level=WARN") {
		t.Errorf("the unit does not give the stack what it needs:\n%s", log)
	}
	if out := m.must("smcr", "info", "-o", "table"); strings.Contains(out, "stay TCP") {
		t.Errorf("%s", out)
	}
	for _, user := range []string{"root", "nobody", "daemon"} {
		m.exchange(user, l.A.Addr())
	}
	m.wantRunsConfined(m.must("systemctl", "show", "smcr-run.service", "--value", "--property=MainPID"))
	m.wantNoRunsInside()

	// Who is in a cgroup of another user gets none there, and is TCP, with the reason.
	m.must("bash", "-c", "mkdir /sys/fs/cgroup/other && chown daemon /sys/fs/cgroup/other /sys/fs/cgroup/other/cgroup.procs")
	inOther := []string{"bash", "-c", `echo $$ >/sys/fs/cgroup/other/cgroup.procs && exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$0" "$@"`}
	out, err := m.asUser("root", append(inOther, "smcr", "run", "--mode", "user", "--", "true")...)
	if err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("in a cgroup of another user: %v, %s", err, out)
	}
	m.must("rmdir", "/sys/fs/cgroup/other")

	// A takeover by the unit, which needs its rights again.
	pid := m.show("MainPID")
	m.install()
	m.must("systemctl", "reload", "smcr.service")
	m.wantConfined(m.show("MainPID"))
	if m.show("MainPID") == pid {
		t.Error("nothing has taken over")
	}
	m.exchange("nobody", l.A.Addr())

	// Nobody makes cgroups.
	m.must("systemctl", "stop", "smcr-run.socket", "smcr-run.service")
	if out, err := m.asUser("nobody", "smcr", "run", "--mode", "user", "--", "true"); err == nil || !strings.Contains(out, "smcr-run.socket") {
		t.Errorf("%v\n%s", err, out)
	}
	m.must("systemctl", "stop", "smcr.service")
	if s := m.show("Result"); s != "success" {
		t.Errorf("after a stop: %s", s)
	}
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
