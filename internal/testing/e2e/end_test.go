// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// blocking starts a program that keeps the stack from ending: connections that nobody answers, data that it does not read, or a lock.
func (l *lab) blocking(kind, addr string) *netnstest.Process {
	l.t.Helper()
	if !wired {
		p := l.A.Go(l.t, bin("hostile"), "block", kind, addr)
		if err := p.WaitOutput("blocking", startTime); err != nil {
			l.t.Fatal(err)
		}
		return p
	}
	p := l.under(l.A, "/usr/bin/python3", "-u", "-c", `
import socket, sys, time
host, port = sys.argv[2].split(':')
s = [socket.socket() for i in range(20)]
for c in s:
    c.setblocking(sys.argv[1] == 'deaf')
    c.connect_ex((host, int(port)))
print('blocking')
time.sleep(600)`, kind, addr)
	if err := p.WaitOutput("blocking", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// endlessServer is a server that sends without end on each connection.
const endlessServer = `
import socket, sys, threading
l = socket.socket()
l.bind((sys.argv[1], 7400)); l.listen(128)
print('listening', flush=True)
def pour(c):
    try:
        while True: c.sendall(bytes(65536))
    except OSError: pass
while True:
    c, _ = l.accept()
    threading.Thread(target=pour, args=(c,), daemon=True).start()
`

// orderlyTime is how long the test waits for the end of a stack after SIGTERM. What keeps the stack
// from ending lasts longer.
const orderlyTime = testkind.Patience

// TestKilledStuck: a stack that is killed while a program holds the lock of a socket cannot end. The
// next stack starts, and commands and programs find that one.
func TestKilledStuck(t *testing.T) {
	ofLauncher(t, "a program has no socket of the stack, and so no lock of one")
	l := newLab(t, "/usr/bin/python3")
	stack := l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.B, "/usr/bin/python3", "-u", "-c", endlessServer, l.B.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	hostile := l.A.Go(t, bin("hostile"), "block", "locked", l.B.Addr()+":7400")
	if err := hostile.WaitOutput("blocking", startTime); err != nil {
		t.Fatal(err)
	}
	groups, err := l.rows(l.A, "linkgroup")
	if err != nil || len(groups) != 1 {
		t.Fatalf("link groups %v, %v", groups, err)
	}
	l.smcr(l.A, "linkgroup", "del", fmt.Sprint(groups[0]["id"])) // the stack ends the connections
	if err := netnstest.Until(orderlyTime, func() error {
		if !waits(stack.Pid()) {
			return errors.New("no thread of the stack waits for the lock")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := stack.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next := l.serveAsIs(l.A)
	if want := fmt.Sprintf("processes=[%d]", stack.Pid()); !strings.Contains(next.Log(), want) {
		t.Errorf("the log does not say %s:\n%s", want, next.Log())
	}
	if info := l.smcr(l.A, "--backend", "user", "info", "-o", "json"); !strings.Contains(info, fmt.Sprintf("process %d, the stack before this one", stack.Pid())) {
		t.Errorf("info does not say which process has the UDP port:\n%s", info)
	}
	client := l.under(l.A, "/usr/bin/python3", "-c", "import socket,sys; s = socket.create_connection((sys.argv[1], 7400)); print(len(s.recv(10)))", l.B.Addr())
	if err := client.Wait(startTime); err != nil {
		t.Errorf("a program: %v\n%s", err, client.Log())
	}
	t.Log(client.Log())
	if !waits(stack.Pid()) {
		t.Error("the killed stack has ended: nothing was tested")
	}
	hostile.Kill()
	_ = stack.Wait(orderlyTime)
	if out, err := l.try(l.A, "serve"); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("a third stack: %v\n%s", err, out)
	}
	terminate(t, next)
}

// waits reports whether a thread of the process waits in a system call that no signal ends.
func waits(pid int) bool {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return slices.ContainsFunc(names, func(name string) bool {
		b, _ := os.ReadFile(name)
		_, state, _ := strings.Cut(string(b), ") ")
		return strings.HasPrefix(state, "D ")
	})
}

// TestEnd: after SIGTERM a stack ends in order and in time, whatever its programs and
// launchers do, and the next stack can start. There is one exception: a program can make
// the kernel hold the lock of a socket. Threads of the stack that wait for this lock
// cannot be ended. Then the stack has done everything else, and its process ends with the
// program.
func TestEnd(t *testing.T) {
	for _, kind := range []string{"pending", "deaf", "locked", "stopped launcher"} {
		t.Run(kind, func(t *testing.T) {
			if kind != "pending" && kind != "deaf" {
				ofLauncher(t, "a program has no socket of the stack, and no launcher")
			}
			l := newLab(t, "/usr/bin/python3")
			stack := l.serve(l.A)
			l.serve(l.B)
			server := l.under(l.B, "/usr/bin/python3", "-u", "-c", endlessServer, l.B.Addr())
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			addr := l.B.Addr() + ":7400"
			var hostile *netnstest.Process
			if kind == "stopped launcher" {
				client := l.under(l.A, "/usr/bin/python3", "-u", "-c", `
import socket, sys, time
s = [socket.create_connection((sys.argv[1], 7400)) for i in range(20)]
print('connected', flush=True)
time.sleep(600)`, l.B.Addr())
				if err := client.WaitOutput("connected", startTime); err != nil {
					t.Fatal(err)
				}
				pid := launcherOf(t, client)
				signalLauncher(t, client, unix.SIGSTOP)
				t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
			} else {
				if kind == "pending" {
					// Nobody has the address, so there is no answer.
					addr = "10.77.0.77:7400"
					if _, err := l.A.Output(t.Context(), "ip", "neigh", "replace", "10.77.0.77", "lladdr", "02:00:00:00:00:77", "dev", l.A.Links[0].Name); err != nil {
						t.Fatal(err)
					}
				}
				hostile = l.blocking(kind, addr)
			}
			// Real time: the buffers fill in it, and nothing says when they are full.
			time.Sleep(500 * time.Millisecond)
			begin := time.Now()
			if err := stack.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if kind == "locked" {
				if err := stack.WaitOutput("the stack has ended", orderlyTime); err != nil {
					t.Fatalf("%v\n%s", err, stack.Log())
				}
				terminate(t, l.serve(l.A)) // while the old process still exists
				hostile.Kill()
				begin = time.Now()
			}
			err := stack.Wait(orderlyTime)
			took := time.Since(begin)
			if err != nil {
				t.Fatalf("after %v: %v\n%s", took, err, stack.Log())
			}
			t.Logf("took %v", took.Round(time.Millisecond))
			if log := stack.Log(); strings.Contains(log, "did not end in order") {
				t.Errorf("%s", lastLine(log, "order"))
			}
			terminate(t, l.serve(l.A))
		})
	}
}
