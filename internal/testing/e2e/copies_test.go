// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCopies: all descriptors of a socket show the same connection.
func TestCopies(t *testing.T) {
	besideOthers(t)
	l := newLab(t, "python3")
	script, err := filepath.Abs("testdata/copies.py")
	if err != nil {
		t.Fatal(err)
	}
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
	const overSMC, overTCP = "1 connection over SMC-R, 0 over TCP", "1 over TCP: the socket was duplicated before connect"
	for _, tt := range []struct{ kind, want string }{
		{"one", overSMC},
		{"dup", overTCP},
		{"dup, non-blocking", overTCP},
		{"dup2", overTCP},
		{"dup3", overTCP},
		{"F_DUPFD", overTCP},
		{"dup, closed", overSMC},
		{"the copy connects", overTCP},
		{"fork, the child connects", overTCP},
		{"fork, the parent connects", overTCP},
		{"fork, ended", overSMC},
		{"fork, closed", overSMC},
		{"grandchild", overTCP},
		{"exec, inherited", overTCP},
		{"exec, close-on-exec", overSMC},
		{"SCM_RIGHTS", overTCP},
		{"thread", overSMC},
		{"CLONE_FILES", overSMC},
		{"the thread's own table", overTCP},
		{"during", ""}, // a race decides
		{"fork during", ""},
		{"during, non-blocking", ""},
		{"after", ""},
	} {
		if testing.Short() && !slices.Contains([]string{"one", "dup2", "fork, the child connects", "SCM_RIGHTS", "after"}, tt.kind) {
			continue
		}
		t.Run(tt.kind, func(t *testing.T) {
			if wired && tt.want != "" {
				tt.want = overSMC // a copy is the same socket
			}
			p := l.under(l.B, "python3", script, tt.kind, l.A.Addr()+":7000")
			if err := p.Wait(2 * time.Minute); err != nil {
				t.Fatalf("%v\n%s", err, p.Log())
			}
			if !strings.Contains(p.Log(), tt.want) {
				t.Errorf("want %q:\n%s", tt.want, p.Log())
			}
		})
	}
}
