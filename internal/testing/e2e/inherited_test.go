// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// listenManager makes a listening socket and starts a program with it for each line that it reads, as a service manager does. It
// keeps the socket.
const listenManager = `
import os, shlex, socket, sys
l = socket.create_server((sys.argv[1], 7))
l.set_inheritable(True)
print('manages', flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        if l.fileno() != 3: os.dup2(l.fileno(), 3)
        argv = shlex.split(line)
        os.execvp(argv[0], argv)
`

// sharedServer serves on the socket with which it was started. Its descriptor 3 is that of another one.
const sharedServer = `
import os, socket
l = socket.socket(fileno=3)
print("serves", os.getpid(), flush=True)
while True:
    c, _ = l.accept()
    c.sendall(b"got " + c.recv(4096)); c.close()
`

// runRow is a run in the output of smcr program list.
type runRow struct {
	Cgroup    string
	Run       bool
	UID       int
	SMCR, TCP int
}

// runs returns the runs of a host.
func (l *lab) runs(h *netnstest.Host) (all []runRow) {
	l.t.Helper()
	var list []runRow
	if err := json.Unmarshal([]byte(l.smcr(h, "program", "list", "-o", "json")), &list); err != nil {
		l.t.Fatal(err)
	}
	for _, r := range list {
		if r.Run {
			all = append(all, r)
		}
	}
	return all
}

// TestInheritedShared: a listening socket that a manager keeps belongs to the programs that are started with it, of two users: its
// connections count to the latest one, and then to the one before. Stacks that are killed, or hand over, change nothing. Without a
// program under smcr run, it is a TCP socket.
func TestInheritedShared(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "setpriv")
	stack := l.serve(l.A)
	l.serve(l.B)
	cmd := l.A.Command(t.Context(), "/usr/bin/python3", "-c", listenManager, l.A.Addr())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd.Stdin = r
	p := l.A.GoCmd(t, cmd)
	r.Close()
	if err := p.WaitOutput("manages", startTime); err != nil {
		t.Fatal(err)
	}
	// start starts a server of a user, and returns its process.
	start := func(uid string, under bool) *os.Process {
		t.Helper()
		n := strings.Count(p.Log(), "serves")
		argv := as(uid)
		if under {
			argv = append(argv, bin("smcr"), "run", "--mode", "user", "--")
		}
		argv = append(argv, "/usr/bin/python3", "-c", "exec("+fmt.Sprintf("%q", sharedServer)+")")
		var line []string
		for _, a := range argv {
			line = append(line, "'"+a+"'")
		}
		if _, err := fmt.Fprintln(w, strings.Join(line, " ")); err != nil {
			t.Fatal(err)
		}
		pid := 0
		if err := netnstest.Until(startTime, func() error {
			all := strings.Split(p.Log(), "serves ")
			if len(all) != n+2 {
				return fmt.Errorf("no server has begun:\n%s", p.Log())
			}
			_, err := fmt.Sscan(all[n+1], &pid)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		proc, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		return proc
	}
	// end ends a server of a number of runs.
	end := func(proc *os.Process, left int) {
		t.Helper()
		if err := proc.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := netnstest.Until(endTime, func() error {
			if n := len(l.runs(l.A)); n != left {
				return fmt.Errorf("%d runs, want %d", n, left)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	asks := func(smc bool, what string) {
		t.Helper()
		if log := l.ask(true); overSMC(log) != smc {
			t.Errorf("%s: over SMC-R is %v, want %v:\n%s", what, !smc, smc, log)
		}
	}
	counts := func(uid, smcr int) {
		t.Helper()
		for _, r := range l.runs(l.A) {
			if r.UID == uid && r.SMCR != smcr {
				t.Errorf("%+v, want %d connections over SMC-R", r, smcr)
			}
		}
	}
	none := start("65534", false)
	asks(false, "without smcr run")
	first := start("65534", true)
	asks(true, "of a user")
	counts(65534, 1)
	second := start("65533", true)
	for range 2 {
		asks(true, "of another user")
	}
	counts(65534, 1)
	counts(65533, 2)
	end(second, 1)
	asks(true, "of the first user again")
	counts(65534, 2)
	stack.Kill()
	stack = l.serve(l.A)
	asks(true, "when the stack was killed")
	l.serve(l.A, "--takeover")
	asks(true, "when a stack has handed over")
	_ = stack
	end(first, 0)
	asks(false, "when the run has ended")
	if err := none.Kill(); err != nil {
		t.Error(err)
	}
}
