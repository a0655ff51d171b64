// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// blocking starts a program that keeps the stack from ending: connections that nobody answers, or data that it does not read.
func (l *lab) blocking(kind, addr string) *netnstest.Process {
	l.t.Helper()
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

// TestEnd: after SIGTERM a stack ends in order and in time, whatever programs do, and the next stack can start.
func TestEnd(t *testing.T) {
	for _, kind := range []string{"pending", "deaf"} {
		t.Run(kind, func(t *testing.T) {
			l := newLab(t, "/usr/bin/python3")
			stack := l.serve(l.A)
			l.serve(l.B)
			server := l.under(l.B, "/usr/bin/python3", "-u", "-c", endlessServer, l.B.Addr())
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			addr := l.B.Addr() + ":7400"
			if kind == "pending" {
				// Nobody has the address, so there is no answer.
				addr = "10.77.0.77:7400"
				if _, err := l.A.Output(t.Context(), "ip", "neigh", "replace", "10.77.0.77", "lladdr", "02:00:00:00:00:77", "dev", l.A.Links[0].Name); err != nil {
					t.Fatal(err)
				}
			}
			l.blocking(kind, addr)
			// Real time: the buffers fill in it, and nothing says when they are full.
			time.Sleep(500 * time.Millisecond)
			begin := time.Now()
			if err := stack.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
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
