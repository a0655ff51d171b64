// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// announcer is a server that says whether it has a filter.
const announcer = `
import socket, sys, threading
l = socket.create_server((sys.argv[1], 7))
print('listening', flush=True)
def serve():
    while True:
        c, _ = l.accept()
        c.sendall(b'got ' + c.recv(4096)); c.close()
threading.Thread(target=serve, daemon=True).start()
mode = [l.split()[1] for l in open('/proc/self/status') if l.startswith('Seccomp:')]
print('with filter' if mode == ['2'] else 'plain', flush=True)
threading.Event().wait()
`

// TestServiceBeforeStack: a service of systemd without privileges that was started before its stack
// is TCP until there is one, and then uses SMC-R. Another program runs without a launcher.
func TestServiceBeforeStack(t *testing.T) {
	ofLauncher(t, "a service that is older than its stack is attached by its cgroup: TestWireAttach")
	l := newLab(t, "/usr/bin/python3", "setpriv")
	start := func(env ...string) *netnstest.Process {
		t.Helper()
		argv := as(hostileUser, slices.Concat([]string{"env"}, env, []string{bin("smcr"), "run", "--", "/usr/bin/python3", "-c", announcer, l.A.Addr()})...)
		p := l.A.Go(t, argv[0], argv[1:]...)
		if err := p.WaitOutput("listening", startTime); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if out, err := l.A.Output(t.Context(), "sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0"); err != nil {
		t.Fatal(err, out)
	}
	other := start("A=b")
	if err := other.WaitOutput("plain", startTime); err != nil || !strings.Contains(other.Log(), "smcr: all connections over TCP: ") {
		t.Errorf("a program that is no service: %v\n%s", err, other.Log())
	}
	other.Kill()
	service := start("INVOCATION_ID=00000000000000000000000000000001")
	if err := service.WaitOutput("with filter", startTime); err != nil || strings.Contains(service.Log(), "smcr: ") {
		t.Errorf("a service: %v\n%s", err, service.Log())
	}
	l.serve(l.B)
	if log := l.ask(true); overSMC(log) {
		t.Errorf("over SMC-R without a stack:\n%s", log)
	}
	l.serve(l.A)
	if err := netnstest.Until(startTime, func() error {
		if log := l.ask(true); !overSMC(log) {
			return errors.New(log)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	service.Kill()
}
