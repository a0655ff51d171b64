// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
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

// keeps starts a keeper with two connections in the machine, which use SMC-R.
func (m *machine) keeps(addr string) (hold *netnstest.Process, in io.Writer) {
	m.t.Helper()
	argv := m.session("root", "smcr", "run", "--mode", "user", "--no-adapt", "--", "/usr/bin/python3", "-u", "-c", keeper, addr, "2")
	cmd := m.A.Command(m.t.Context(), argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	hold = m.A.GoCmd(m.t, cmd)
	wantLines(m.t, hold, "made", 2)
	m.wantCarried(2)
	return hold, in
}

// wantCarried waits until the stacks of the machine have so many connections over SMC-R.
func (m *machine) wantCarried(n int) {
	m.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		var rows []struct{ Mode string }
		out := m.must("smcr", "--backend", "user", "connection", "list", "-o", "json")
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			return err
		}
		got := 0
		for _, r := range rows {
			if r.Mode == "SMCR" {
				got++
			}
		}
		if got != n {
			return fmt.Errorf("%d connections over SMC-R, want %d:\n%s", got, n, out)
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
}

// wantGoOn has a keeper make further connections twice: they are SMC-R, and those from before go on.
func (m *machine) wantGoOn(in io.Writer, hold *netnstest.Process) {
	t := m.t
	t.Helper()
	_, _ = in.Write([]byte("\n"))
	wantLines(t, hold, "made", 4)
	before := exchanged(t, hold)
	_, _ = in.Write([]byte("\n"))
	wantLines(t, hold, "made", 6)
	m.wantCarried(6)
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
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	l.serveWire(l.B)
	echo := l.under(l.B, "/usr/bin/python3", "-u", "-c", blockEcho, l.B.Addr())
	if err := echo.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	m.must("bash", "-c", `printf '[Service]\nWatchdogSec=3\nRestartSec=100ms\n' >/etc/systemd/system/smcr.service.d/watchdog.conf && systemctl daemon-reload`)
	m.must("systemctl", "start", "smcr.service")
	first := m.show("MainPID")
	hold, in := m.keeps(l.B.Addr())

	// The new release refuses the configuration.
	m.install()
	for _, file := range []string{"/etc/smcr/smcr.yaml", "/etc/smcr/smcr.yaml.d/60-x.yaml"} {
		m.must("bash", "-c", "mkdir -p $(dirname "+file+") && echo 'nothing: valid' >"+file)
		if out, err := m.run("systemctl", "reload", "smcr.service"); err == nil {
			t.Errorf("a reload with a broken %s: %s", file, out)
		}
		if now := m.show("MainPID"); now != first || m.show("ActiveState") != "active" {
			t.Errorf("after the failure: %s, process %s, before %s", m.show("ActiveState"), now, first)
		}
		m.wantProcesses(first)
		m.must("rm", file)
	}

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
	for _, user := range []string{"root", "nobody"} {
		m.exchange(user, l.B.Addr())
	}
	m.wantGoOn(in, hold)
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
	// Two warnings are those of the releases that did not start.
	if strings.Count(m.log(), "level=WARN") > 2 && !raceDetector {
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
	m.exchange("nobody", l.B.Addr())
	m.must("systemctl", "stop", "smcr.service")
	echo.Kill()
	if err := m.init.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
