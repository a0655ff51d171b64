// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// stackCaps are CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
const stackCaps = "0000008000003000"

// unitBound has CAP_SYS_ADMIN, too, which a process of the unit has at its start. Nothing that it executes gets any (no_new_privs).
const unitBound = "0000008000203000"

// wantConfined checks that a process of the machine has the rights of the unit.
func (m *machine) wantConfined(pid string) {
	m.t.Helper()
	status := m.must("cat", "/proc/"+pid+"/status")
	uid := m.must("id", "-u", "smcr")
	for _, want := range []string{"Uid:\t" + uid + "\t" + uid + "\t" + uid, "CapEff:\t" + stackCaps, "CapPrm:\t" + stackCaps, "CapBnd:\t" + unitBound, "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, "\n"+want) {
			m.t.Errorf("no %q in\n%s", want, status)
		}
	}
}

// wantProcesses waits until the unit smcr.service has these processes, and no other.
func (m *machine) wantProcesses(want ...string) {
	m.t.Helper()
	slices.Sort(want)
	if err := netnstest.Until(endTime, func() error {
		all := strings.Fields(m.must("cat", "/sys/fs/cgroup/system.slice/smcr.service/cgroup.procs"))
		if slices.Sort(all); !slices.Equal(all, want) {
			return fmt.Errorf("processes of the unit: %q, want %q", all, want)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// install replaces the program of the machine, as a package manager does.
func (m *machine) install() {
	m.t.Helper()
	const path = "/usr/local/bin/smcr"
	m.must("bash", "-c", "cp "+path+" "+path+".new && mv "+path+".new "+path)
}

// wantLater waits until a time of the unit, in microseconds, is later than before.
func (m *machine) wantLater(property, before string) {
	m.t.Helper()
	if err := netnstest.Until(startTime, func() error {
		then, _ := strconv.ParseUint(before, 10, 64)
		now, err := strconv.ParseUint(m.show(property), 10, 64)
		if err == nil && now <= then {
			err = fmt.Errorf("%s is %d, as before", property, now)
		}
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
}

// wantGoOn has a keeper make further connections twice: they are SMC-R, and those from before go on.
func wantGoOn(t *testing.T, in io.Writer, hold *netnstest.Process) {
	t.Helper()
	_, _ = in.Write([]byte("\n"))
	wantLines(t, hold, "made SMC", 4)
	before := exchanged(t, hold)
	_, _ = in.Write([]byte("\n"))
	wantLines(t, hold, "made SMC", 6)
	for i, n := range exchanged(t, hold)[:len(before)] {
		if n <= before[i] {
			t.Errorf("connection %d has stopped after %d exchanges", i, n)
		}
	}
	if strings.Contains(hold.Log(), "FAILED") {
		t.Error(lastLine(hold.Log(), "FAILED"))
	}
}

// TestSystemdTakeover installs another release and reloads the unit, under a real systemd. The
// new stack is the main process, with the rights of the unit and its watchdog. Connections
// continue, new ones are SMC, and the old stack ends after its last connection. A release that
// does not start leaves everything as it was.
func TestSystemdTakeover(t *testing.T) {
	wantTakeover(t)
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	server := l.server()
	echo := l.under(l.B, "/usr/bin/python3", "-u", "-c", blockEcho, l.B.Addr())
	if err := echo.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	m.must("bash", "-c", `printf '[Service]\nWatchdogSec=3\nRestartSec=100ms\n' >/etc/systemd/system/smcr.service.d/watchdog.conf && systemctl daemon-reload`)
	m.must("systemctl", "start", "smcr.service")
	first := m.show("MainPID")
	argv := append(m.program(), bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--", "/usr/bin/python3", "-u", "-c", keeper, l.B.Addr(), "2")
	cmd := l.A.Command(t.Context(), argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	hold := l.A.GoCmd(t, cmd)
	wantLines(t, hold, "made SMC", 2)

	// The new release refuses the configuration.
	m.install()
	m.must("bash", "-c", "mkdir -p /etc/smcr && echo 'nothing: valid' >/etc/smcr/smcr.yaml")
	if out, err := m.run("systemctl", "reload", "smcr.service"); err == nil {
		t.Errorf("a reload with a broken configuration: %s", out)
	}
	if now := m.show("MainPID"); now != first || m.show("ActiveState") != "active" {
		t.Errorf("after the failure: %s, process %s, before %s", m.show("ActiveState"), now, first)
	}
	m.wantProcesses(first)
	m.must("rm", "/etc/smcr/smcr.yaml")

	m.must("systemctl", "reload", "smcr.service")
	second := m.show("MainPID")
	if second == first || m.show("ActiveState") != "active" {
		t.Fatalf("after the reload: %s, process %s, before %s", m.show("ActiveState"), second, first)
	}
	m.wantProcesses(first, second)
	m.wantConfined(second)
	if parent := strings.Fields(m.must("ps", "-o", "ppid=", "-p", second)); !slices.Equal(parent, []string{"1"}) {
		t.Errorf("the parent of the new stack is %q", parent)
	}
	for range 2 { // the watchdog, and the limit has been over once
		m.wantLater("WatchdogTimestampMonotonic", m.show("WatchdogTimestampMonotonic"))
	}
	addr := l.B.Addr() + ":5001"
	for _, user := range []string{"0", thirdUser} {
		l.exchanges(user, addr, m.program()...)
	}
	wantGoOn(t, in, hold)
	// The same release reads its configuration again.
	m.must("systemctl", "reload", "smcr.service")
	if now := m.show("MainPID"); now != second {
		t.Errorf("after the second reload: process %s, before %s", now, second)
	}
	hold.Kill()
	m.wantProcesses(second)
	if s := m.show("ActiveState"); s != "active" || m.show("NRestarts") != "0" {
		t.Errorf("after the end of the old stack: %s, %s restarts", s, m.show("NRestarts"))
	}
	// One warning is that of the release that did not start.
	if strings.Count(m.log(), "level=WARN") > 1 && !raceDetector {
		t.Errorf("the unit does not give the stacks what they need:\n%s", m.log())
	}

	// The service manager sees the death of the new stack.
	m.must("kill", "-KILL", second)
	if err := netnstest.Until(startTime, func() error {
		if now := m.show("MainPID"); now == second || now == "0" || m.show("ActiveState") != "active" {
			return fmt.Errorf("process %s, which was %s: %s", now, second, m.show("ActiveState"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.exchanges(thirdUser, addr, m.program()...)
	m.must("systemctl", "stop", "smcr.service")
	echo.Kill()
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	terminate(t, server)
}
