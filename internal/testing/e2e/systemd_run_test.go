// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// saysReady is a program of a service with Type=notify that says that it is ready, and sleeps.
const saysReady = `/usr/bin/python3 -c "import os,socket,time; socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM).sendto(b'READY=1\\nSTATUS=at work',os.environ['NOTIFY_SOCKET'].replace('@',chr(0))); time.sleep(600)"`

// TestSystemdRun: systemd starts, watches and ends programs under smcr run as it does others.
func TestSystemdRun(t *testing.T) {
	l := newLab(t, "unshare", "/usr/bin/python3")
	m := l.boot(l.A)
	m.must("systemctl", "start", "smcr.service")
	l.serve(l.B)
	for name, run := range map[string]string{"the program is the process": "/usr/local/bin/smcr run --mode user --", "below a waiter": "/usr/local/bin/smcr run --mode user -v --"} {
		for _, user := range []string{"root", "nobody"} {
			t.Run(name+"/"+user, func(t *testing.T) {
				s := &unitTest{machine: m, t: t, run: run, user: user}
				s.notify()
				s.forking()
				s.failure()
				s.watchdog()
				s.socket()
				s.accepted()
			})
		}
	}
}

// unitTest tests a service of a user whose command line begins with run.
type unitTest struct {
	*machine
	t         *testing.T
	run, user string
}

// unit writes the unit t.service and starts it. It returns the output of systemctl.
func (s *unitTest) unit(program, lines string) (string, error) {
	s.t.Helper()
	s.write("t.service", fmt.Sprintf("[Service]\nUser=%s\nTimeoutStartSec=15\nTimeoutStopSec=15\nExecStart=%s %s\n%s", s.user, s.run, program, lines))
	return s.machine.run("systemctl", "start", "t.service")
}

func (s *unitTest) write(name, text string) {
	s.t.Helper()
	s.must("bash", "-c", `mkdir -p /run/systemd/system; printf '%s' "$1" >/run/systemd/system/"$0"; systemctl daemon-reload; systemctl reset-failed`, name, text)
}

func (s *unitTest) property(name string) string {
	s.t.Helper()
	return s.must("systemctl", "show", "t.service", "--value", "--property="+name)
}

// want checks properties of the unit, until they are right.
func (s *unitTest) want(props map[string]string) {
	s.t.Helper()
	err := netnstest.Until(startTime, func() error {
		for name, want := range props {
			if got := s.property(name); !regexp.MustCompile("^(?:" + want + ")$").MatchString(got) {
				return fmt.Errorf("%s is %q, want %s", name, got, want)
			}
		}
		return nil
	})
	if err != nil {
		out, _ := s.machine.run("systemctl", "status", "t.service")
		s.t.Errorf("%v\n%s", err, out)
	}
}

// stop stops the unit, which takes no time, and leaves no process.
func (s *unitTest) stop() {
	s.t.Helper()
	if out, err := s.machine.run("timeout", "10", "systemctl", "stop", "t.service"); err != nil {
		s.t.Errorf("systemctl stop: %v\n%s", err, out)
	}
	s.want(map[string]string{"ActiveState": "inactive", "Result": "success"})
}

func (s *unitTest) notify() {
	s.t.Helper()
	if out, err := s.unit(saysReady, "Type=notify\nExecReload=/bin/kill -HUP $MAINPID\n"); err != nil {
		s.t.Errorf("Type=notify: %v\n%s", err, out)
	}
	s.want(map[string]string{"ActiveState": "active", "StatusText": "at work"})
	if pid := s.property("MainPID"); !strings.Contains(s.run, "-v") {
		if comm := s.must("cat", "/proc/"+pid+"/comm"); comm != "python3" {
			s.t.Errorf("the main process is %s", comm)
		}
	}
	s.must("systemctl", "reload", "t.service") // SIGHUP ends it
	s.want(map[string]string{"ActiveState": "inactive", "Result": "success"})
	if out, err := s.machine.run("systemctl", "start", "t.service"); err != nil {
		s.t.Errorf("once more: %v\n%s", err, out)
	}
	s.stop()
}

func (s *unitTest) forking() {
	s.t.Helper()
	if out, err := s.unit(`/bin/sh -c "sleep 600 & echo $! >/tmp/t.pid"`, "Type=forking\nPIDFile=/tmp/t.pid\nExecStartPre=-/bin/rm -f /tmp/t.pid\n"); err != nil {
		s.t.Errorf("Type=forking: %v\n%s", err, out)
	}
	if pid := s.property("MainPID"); pid != s.must("cat", "/tmp/t.pid") {
		s.t.Errorf("the main process is %s", pid)
	}
	s.stop()
	s.must("rm", "-f", "/tmp/t.pid")
}

func (s *unitTest) failure() {
	s.t.Helper()
	_, _ = s.unit(`/bin/sh -c "exit 3"`, "Restart=on-failure\nRestartSec=100ms\n[Unit]\nStartLimitBurst=2\nStartLimitIntervalSec=600\n")
	s.want(map[string]string{"ActiveState": "failed", "NRestarts": "[12]", "ExecMainStatus": "3"})
	_, _ = s.unit(`/bin/sh -c "kill -SEGV $$$$"`, "")
	s.want(map[string]string{"ActiveState": "failed", "Result": "signal|core-dump", "ExecMainStatus": "11"})
}

func (s *unitTest) watchdog() {
	s.t.Helper()
	if out, err := s.unit(saysReady, "Type=notify\nWatchdogSec=1\n"); err != nil {
		s.t.Errorf("WatchdogSec: %v\n%s", err, out)
	}
	s.want(map[string]string{"ActiveState": "failed", "Result": "watchdog", "ExecMainStatus": "6"})
}

func (s *unitTest) socket() {
	s.t.Helper()
	s.write("t.socket", fmt.Sprintf("[Socket]\nListenStream=%s:7\n", s.lab.A.Addr()))
	s.write("server.py", activatedServer)
	s.write("t.service", fmt.Sprintf("[Service]\nUser=%s\nExecStart=%s /usr/bin/python3 /run/systemd/system/server.py\n", s.user, s.run))
	s.must("systemctl", "start", "t.socket")
	for i := range 3 {
		if log := s.ask(true); i > 0 && !overSMC(log) { // the first has begun before the service
			s.t.Errorf("connection %d is not over SMC-R:\n%s", i, log)
		}
		s.ask(false)
	}
	s.must("systemctl", "stop", "t.socket")
	s.stop()
}

// acceptedServer is a program of a unit with Accept=yes: its standard input is a connection.
const acceptedServer = `
import socket
c = socket.socket(fileno=0)
c.sendall(b'got ' + c.recv(4096))
`

// accepted has systemd accept the connections, each for a program of its own. They are made before the program is, so smcr run
// changes nothing. If the socket's unit is attached, they use SMC-R.
func (s *unitTest) accepted() {
	s.t.Helper()
	s.write("t.socket", fmt.Sprintf("[Socket]\nListenStream=%s:7\nAccept=yes\n", s.lab.A.Addr()))
	s.write("server.py", acceptedServer)
	s.write("t@.service", fmt.Sprintf("[Service]\nUser=%s\nStandardInput=socket\nStandardError=null\nExecStart=%s /usr/bin/python3 /run/systemd/system/server.py\n", s.user, s.run))
	s.must("systemctl", "start", "t.socket")
	for _, attached := range []bool{false, true} {
		if attached {
			s.must("smcr", "attach", "--unit", "t.socket")
		}
		s.ask(false)
		if log := s.ask(true); overSMC(log) != attached {
			s.t.Errorf("attached %t:\n%s", attached, log)
		}
	}
	s.must("smcr", "detach", "--unit", "t.socket")
	s.must("systemctl", "stop", "t.socket")
}
