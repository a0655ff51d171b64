// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// localClient starts a probe client on a host. It exchanges messages all the time over n
// local connections with the probe server on A.
func (l *lab) localClient(from *netnstest.Host, argv ...string) *netnstest.Process {
	l.t.Helper()
	p := from.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("holding 3 connections\n", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// probeArgv returns the command line of such a client.
func (l *lab) probeArgv() []string {
	return []string{bin("smcr"), "run", "--mode", "user", "-v", "--local", "--", bin("probe"), "client", l.A.Addr() + ":7", "3", "-busy"}
}

// TestLocalDeaths: local connections continue after the end of the stack. They end with
// their programs, like TCP.
func TestLocalDeaths(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			l := newContainers(t)
			from, stack := l.A, l.serve(l.A)
			l.joined(stack)
			server := l.probeServer()
			// After this, the stacks have opened their devices.
			terminate(t, l.localClient(from, l.probeArgv()...))
			client, killed := l.localClient(from, l.probeArgv()...), l.localClient(from, l.probeArgv()...)
			if err := stack.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = stack.Wait(endTime)
			time.Sleep(500 * time.Millisecond) // Real time: no connection ends in it.
			if log := client.Log(); endedRE.MatchString(log) {
				t.Errorf("connections ended with the stack:\n%s", log)
			}
			// If a program is killed, the connections of the server end.
			before := strings.Count(server.Log(), "connection ended")
			launcher := launcherOf(t, killed)
			for _, pid := range l.programPids(from, bin("probe")) {
				if parent(t, pid) == launcher {
					if err := unix.Kill(pid, unix.SIGKILL); err != nil {
						t.Error(err)
					}
				}
			}
			_ = killed.Wait(endTime) // it ends by a signal
			if err := netnstest.Until(endTime, func() error {
				if n := strings.Count(server.Log(), "connection ended") - before; n != 3 {
					return errEnds
				}
				return nil
			}); err != nil {
				t.Errorf("%v:\n%s", err, server.Log())
			}
			terminate(t, client)
			wantLocal(t, client.Log(), 3, 0)
			terminate(t, server)
		})
	}
}

// TestLocalUsers: programs of two users on one host are connected, each under a launcher
// of its own user. Each user sees only the own process.
func TestLocalUsers(t *testing.T) {
	l := newContainers(t, "setpriv")
	stack := l.serve(l.A)
	l.joined(stack)
	server := l.probeServer()
	client := l.localClient(l.A, as(hostileUser, l.probeArgv()...)...)
	rows, err := l.rows(l.A, "connection")
	if err != nil {
		t.Fatal(err)
	}
	local := 0
	for _, row := range rows {
		if row["mode"] == "LOCAL" {
			local++
			if _, counted := row["tx_bytes"]; counted {
				t.Errorf("bytes that nobody counts: %v", row)
			}
		}
	}
	if local != 6 {
		t.Errorf("%d local connections listed, want both ends of 3: %v", local, rows)
	}
	out, err := l.asUser(hostileUser, bin("smcr"), "--backend", "user", "connection", "list")
	if err != nil || strings.Count(out, "probe/") != 3 {
		t.Errorf("user %s sees %v\n%s", hostileUser, err, out)
	}
	terminate(t, client)
	wantLocal(t, client.Log(), 3, 0)
	terminate(t, server)
	terminate(t, stack)
}

var endedRE = regexp.MustCompile(`connection \d ended`)

var errEnds = errors.New("the server has not seen the end of three connections")

// parent returns the parent process of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	var state string
	var ppid int
	if _, err := fmt.Sscan(rest, &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}
