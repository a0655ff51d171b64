// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// lateServer accepts connections only on command, and then prints what it reads.
const lateServer = `
import select, socket, sys, threading, hashlib
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], 7100)); s.listen(64)
print('listening', flush=True)
sys.stdin.readline()
def serve(c):
    n = int(c.makefile('rb', 0).readline())
    h = hashlib.sha256()
    while n > 0:
        b = c.recv(min(n, 65536))
        if not b: break
        h.update(b); n -= len(b)
    c.sendall(h.hexdigest().encode() + b'\n')
    c.close()
for i in range(int(sys.argv[2])):
    if not select.select([s], [], [], 5)[0]: print('not readable', flush=True)
    c, a = s.accept()
    assert c.getpeername() == a, (c.getpeername(), a)
    print('accepted', '%s:%d' % a, flush=True)
    threading.Thread(target=serve, args=(c,)).start()
s.setblocking(False)
try:
    s.accept()
    print('one more', flush=True)
except BlockingIOError:
    print('no more', flush=True)
`

// lateClient first sends more than the buffers can hold, and then reads.
const lateClient = `
import socket, sys, hashlib, threading
s = socket.create_connection((sys.argv[1], 7100), timeout=60)
print('from', '%s:%d' % s.getsockname(), flush=True)
data = bytes([int(sys.argv[2])]) * 3000000
t = threading.Thread(target=s.sendall, args=(b'%d\n' % len(data) + data,)); t.start()
got = s.makefile('rb').readline().decode().strip(); t.join()
print('intact' if got == hashlib.sha256(data).hexdigest() else 'differs: %r' % got, flush=True)
`

// TestLateAccept: a server that accepts after ten seconds gets its SMC-R clients in their
// order, with the data that they sent. A TCP client among them stays TCP.
func TestLateAccept(t *testing.T) {
	t.Parallel()
	const smc = 6
	l := newLab(t, "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	cmd := l.A.Command(t.Context(), bin("smcr"), "run", "--mode", "user", "-v", "--", "/usr/bin/python3", "-u", "-c", lateServer, l.A.Addr(), fmt.Sprint(smc+1))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	server := l.A.GoCmd(t, cmd)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	var clients []*netnstest.Process
	begin := time.Now()
	for i := range smc + 1 {
		argv := []string{"/usr/bin/python3", "-u", "-c", lateClient, l.A.Addr(), fmt.Sprint(i)}
		var c *netnstest.Process
		if i == 3 {
			c = l.B.Go(t, argv[0], argv[1:]...)
		} else {
			c = l.under(l.B, argv...)
		}
		if err := c.WaitOutput("from", startTime); err != nil {
			t.Fatal(err, c.Log())
		}
		clients = append(clients, c)
	}
	time.Sleep(time.Until(begin.Add(10 * time.Second))) // Real time: a peer does not wait so long for an answer.
	for _, h := range []*netnstest.Host{l.A, l.B} {
		rows, err := l.rows(h, "connection")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, row := range rows {
			if row["mode"] == "SMCR" {
				n++
			}
		}
		if n != smc {
			t.Errorf("%d connections over SMC-R on %s before accept, want %d: %v", n, h.Name, smc, rows)
		}
	}
	if _, err := fmt.Fprintln(in); err != nil {
		t.Fatal(err)
	}
	var order []string
	for i, c := range clients {
		if err := c.Wait(startTime); err != nil || !strings.Contains(c.Log(), "intact") {
			t.Errorf("client %d: %v\n%s", i, err, c.Log())
		}
		if i != 3 {
			wantSummary(t, c.Log(), 1)
		}
		for line := range strings.Lines(c.Log()) {
			if from, ok := strings.CutPrefix(line, "from "); ok {
				order = append(order, "accepted "+from)
			}
		}
	}
	wantEnd(t, server)
	log := server.Log()
	if want := "listening\n" + strings.Join(order, "") + "no more\n"; !strings.HasPrefix(log, want) {
		t.Errorf("the server says\n%s\nwant\n%s", log, want)
	}
	// A client that does not announce SMC is not counted.
	if want := fmt.Sprintf("smcr: %d connections over SMC-R, 0 over TCP", smc); !strings.Contains(log, want) {
		t.Errorf("the server says\n%s\nwant %q", log, want)
	}
	l.wantNoConnections(l.A, l.B)
}
