// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
)

// deferredServer has TCP_DEFER_ACCEPT. It prints how each connection came: with data or without,
// and whether before or after the client sent something. Its arguments: ADDRESS HOW.
const deferredServer = `
import select, socket, sys, time
s = socket.create_server((sys.argv[1], 7400))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 3) # the kernel makes 3 s of it
s.setblocking(sys.argv[2] == 'block')
print('listening', flush=True)
def accept():
    if sys.argv[2] == 'block': return s.accept()
    while True:
        select.select([s], [], [])
        try: return s.accept()
        except BlockingIOError: pass
for i in range(3):
    c, a = accept()
    t = time.time()
    c.setblocking(False)
    try: d = c.recv(100)
    except BlockingIOError: d = None
    print('accepted', d, flush=True)
    c.setblocking(True)
    if d is None: d = c.recv(100)
    c.sendall(b'%f ' % t + d)
    c.close()
`

// deferredClient connects three times: one is silent for 1 s, one sends at once, one is silent
// for 4 s, which is longer than the server wants to wait.
const deferredClient = `
import socket, sys, threading, time
def run(name, silent):
    begin = time.time()
    c = socket.create_connection((sys.argv[1], 7400))
    time.sleep(silent)
    c.sendall(name.encode())
    t, back = c.recv(100).decode().split()
    print(name, back == name, 'accepted after %.1f s' % (float(t) - begin), flush=True)
run('late', 1); run('prompt', 0); run('silent', 4.5)
`

// TestDeferAccept: with TCP_DEFER_ACCEPT, accept() returns when the first data of the client is
// there, and not because of the messages of SMC, or when the time is over.
func TestDeferAccept(t *testing.T) {
	t.Parallel()
	l := newLab(t, "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	for _, how := range []string{"block", "select"} {
		t.Run(how, func(t *testing.T) {
			l := *l
			l.t = t
			server := l.under(l.A, "/usr/bin/python3", "-u", "-c", deferredServer, l.A.Addr(), how)
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err, server.Log())
			}
			client := l.under(l.B, "/usr/bin/python3", "-u", "-c", deferredClient, l.A.Addr())
			if err := client.Wait(endTime); err != nil {
				t.Error(err)
			}
			_ = server.Wait(endTime)
			t.Logf("%s%s", server.Log(), client.Log())
			if want := "accepted b'late'\naccepted b'prompt'\naccepted None\n"; !strings.Contains(server.Log(), want) {
				t.Errorf("the server says %q, want %q", server.Log(), want)
			}
			wantSummary(t, client.Log(), 3)
		})
	}
}
