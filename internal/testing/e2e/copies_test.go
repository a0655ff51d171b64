// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestCopies: all descriptors of a socket show the same connection, which uses SMC-R.
func TestCopies(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3")
	script := filepath.Join(l.scripts("copies.py"), "copies.py")
	const server = `
import socket, threading
l = socket.create_server(("", 7000))
def echo(c):
    while b := c.recv(4096): c.sendall(b)
while True: threading.Thread(target=echo, args=(l.accept()[0],), daemon=True).start()`
	l.under(l.A, "python3", "-c", server)
	if err := l.A.WaitListen(7000, startTime); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{
		"one", "dup", "dup, non-blocking", "dup2", "dup3", "F_DUPFD", "dup, closed", "the copy connects",
		"fork, the child connects", "fork, the parent connects", "fork, ended", "fork, closed", "grandchild",
		"exec, inherited", "exec, close-on-exec", "SCM_RIGHTS", "thread", "CLONE_FILES", "the thread's own table",
		"during", "fork during", "during, non-blocking", "after",
	} {
		if testing.Short() && !slices.Contains([]string{"one", "dup2", "fork, the child connects", "SCM_RIGHTS", "after"}, kind) {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			p := l.under(l.B, "python3", script, kind, l.A.Addr()+":7000")
			if err := p.Wait(2 * time.Minute); err != nil {
				t.Fatalf("%v\n%s", err, p.Log())
			}
			wantSummary(t, p.Log(), 1)
		})
	}
}
