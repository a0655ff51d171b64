// SPDX-License-Identifier: Apache-2.0

package e2e

import "testing"

// sourcePortClient uses one source port for connections that follow each other at once: first
// without SO_REUSEADDR to a port on which nobody listens, then with it to a server that closes first.
const sourcePortClient = `
import errno, socket, sys, time
def run(port, reuse, rounds):
    for i in range(rounds):
        s = socket.socket()
        if reuse: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((sys.argv[2], 7410 + reuse))
            s.connect((sys.argv[1], port))
            while s.recv(10): pass
            yield 'ok'
        except OSError as e: yield errno.errorcode[e.errno]
        s.close()
print('refused', *sorted(set(run(7499, False, 30))))
print('served', *sorted(set(run(7400, True, 20))))
`

// TestSourcePort: what a program has closed does not keep its port in use, neither after a
// connect() that failed nor below an SMC-R connection that the peer has closed first.
func TestSourcePort(t *testing.T) {
	l := newLab(t, "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.A, "/usr/bin/python3", "-u", "-c", `
import socket, sys
l = socket.create_server((sys.argv[1], 7400))
print('listening', flush=True)
while True:
    c, _ = l.accept(); c.sendall(b'hi'); c.close()`, l.A.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err, server.Log())
	}
	client := l.under(l.B, "/usr/bin/python3", "-u", "-c", sourcePortClient, l.A.Addr(), l.B.Addr())
	if err := client.WaitOutput("refused ECONNREFUSED\nserved ok\n", endTime); err != nil {
		t.Errorf("%v\n%s", err, client.Log())
	}
}
