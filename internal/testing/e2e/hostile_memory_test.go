// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// threadsOf returns how many threads a process has.
func threadsOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// TestDeafMemoryOfOthers: a user's processes pass the launcher pointers into a file of FUSE whose
// server answers nothing. Only these processes wait: others of the same launcher, programs of other
// launchers and the stack go on, and the launcher has a limited number of threads.
func TestDeafMemoryOfOthers(t *testing.T) {
	ofLauncher(t, "nobody reads the memory of a program")
	l := newLab(t, "setpriv", "unshare", "/usr/bin/python3")
	stack := l.serve(l.A)
	addr := l.B.Addr() + ":5001"
	server, before := l.busy(addr)
	script, err := os.ReadFile("testdata/deaf.py")
	if err != nil {
		t.Fatal(err)
	}
	const processes = 40
	host, port, _ := strings.Cut(addr, ":")
	deaf := as(hostileUser, "unshare", "--user", "--map-root-user", "--mount", "/usr/bin/python3", "-c", string(script), host, port, strconv.Itoa(processes))
	idle := threadsOf(t, stack.Pid())
	// In the first launcher, another user has programs, too: the shell starts one for each line.
	shared := filepath.Join(t.TempDir(), "next")
	if err := os.WriteFile(shared, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other := as(otherUser, bin("probe"), "client", addr, "1")
	line := []string{"sh", "-c", `"$@" & while ! test -s ` + shared + `; do sleep 0.05; done; ` + strings.Join(other, " ") + `; sleep 600`, "sh"}
	for _, tt := range []struct {
		name string
		argv []string
	}{
		{"root's launcher", append([]string{bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--"}, append(line, deaf...)...)},
		{"the user's launcher", as(hostileUser, append([]string{bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--"}, deaf[5:]...)...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			p := l.A.Go(t, tt.argv[0], tt.argv[1:]...)
			err := netnstest.Until(time.Minute, func() error {
				if strings.Contains(p.Log(), "no FUSE") {
					return nil
				}
				return p.WaitOutput("stuck", time.Second)
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, p.Log())
			}
			if strings.Contains(p.Log(), "no FUSE") {
				t.Skip(p.Log())
			}
			// Real time: the calls begin a second after that, and the threads are counted after they began.
			time.Sleep(3 * time.Second)
			launcher := threadsOf(t, launcherOf(t, p))
			t.Logf("%d threads of the launcher, %d of the stack", launcher, threadsOf(t, stack.Pid()))
			// 256 looks, and those of the Go runtime.
			if launcher > 256+64 {
				t.Errorf("%d threads of the launcher of %d processes", launcher, processes)
			}
			if n := threadsOf(t, stack.Pid()); n > idle+32 {
				t.Errorf("%d threads of the stack, %d before", n, idle)
			}
			for _, uid := range []string{"0", otherUser} {
				l.exchanges(uid, addr)
				l.commands(uid)
			}
			if tt.name == "root's launcher" {
				if err := os.WriteFile(shared, []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := p.WaitOutput("holding 1 connections", startTime); err != nil {
					t.Errorf("another program of the launcher: %v\n%s", err, p.Log())
				}
			}
			p.Kill()
		})
	}
	l.exchanges(hostileUser, addr)
	endUndisturbed(t, before)
	terminate(t, server)
	terminate(t, stack)
}
