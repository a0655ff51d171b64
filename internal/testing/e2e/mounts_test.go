// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"smcr/internal/testing/netnstest"
)

// TestNetnsExec: below 'ip netns exec', which mounts a /sys without the cgroup tree, stacks and programs find it all the same,
// whether the stack is started on demand or by hand.
func TestNetnsExec(t *testing.T) {
	l := newLab(t, "ip", "/usr/bin/python3")
	inside := func(h *netnstest.Host, argv ...string) *netnstest.Process {
		return h.Go(t, "ip", append([]string{"netns", "exec", h.Name}, argv...)...)
	}
	stack := inside(l.A, bin("smcr"), "serve", "--no-default-eid")
	if err := stack.WaitOutput("msg=serving", startTime); err != nil {
		t.Fatal(err)
	}
	const server = `import socket, sys
s = socket.create_server((sys.argv[1], 7))
c, _ = s.accept()
c.sendall(c.recv(100).upper())`
	const client = `import socket, sys
c = socket.create_connection((sys.argv[1], 7))
c.sendall(b"hello")
print(c.recv(100))`
	s := inside(l.A, underArgv("/usr/bin/python3", "-c", server, l.A.Addr())...)
	if err := l.A.WaitListen(7, startTime); err != nil {
		t.Fatal(err)
	}
	c := inside(l.B, underArgv("/usr/bin/python3", "-c", client, l.A.Addr())...)
	for _, p := range []*netnstest.Process{c, s} {
		if err := p.Wait(endTime); err != nil || !overSMC(p.Log()) {
			t.Errorf("%v\n%s", err, p.Log())
		}
	}
}
