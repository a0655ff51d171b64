// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestContainersStoppedStack: a stack of the machine that does not answer does not keep
// programs of two other network namespaces from local connections.
func TestContainersStoppedStack(t *testing.T) {
	other := newContainers(t)
	for _, h := range []*netnstest.Host{other.A, other.B} {
		stack := other.serve(h)
		if err := stack.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := stack.Signal(unix.SIGCONT); err != nil {
				t.Error(err)
			}
			terminate(t, stack)
		}()
	}
	l := newContainers(t)
	a, b := l.serve(l.A), l.serve(l.B)
	server := l.probeServer()
	// After this, the stacks have opened their devices.
	terminate(t, l.localClient(l.B, l.probeArgv()...))
	client := l.localClient(l.B, l.probeArgv()...)
	terminate(t, client)
	wantLocal(t, client.Log(), 3, 0)
	terminate(t, server)
	terminate(t, a)
	terminate(t, b)
}
