// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// cutServer does on each connection what its first byte requests, and prints how the
// connection ended. "G" is the first byte of an HTTP request, whose answer has no length.
const cutServer = `
import os, socket, sys, threading
def say(s): os.write(1, (s + '\n').encode()) # whole lines from all threads
l = socket.create_server((sys.argv[1], 7))
say('listening')
def send(c):
    try:
        while True: c.sendall(b'x' * 65536)
    except OSError as e: return e.errno
def read(c):
    try:
        while True:
            if not c.recv(65536): return 'EOF'
    except OSError as e: return e.errno
def serve(c):
    what = c.recv(1).decode()
    if what in 'is': c.sendall(what.encode())
    if what == 'G': c.sendall(b'HTTP/1.0 200 OK\r\n\r\n')
    say(f"server {what} ended: {(send if what in 'Gs' else read)(c)}")
while True: threading.Thread(target=serve, args=(l.accept()[0],)).start()
`

// cutClient makes a connection of each kind, and prints how each ended.
const cutClient = `
import os, select, socket, sys, threading
def say(s): os.write(1, (s + '\n').encode()) # whole lines from all threads
def read(c):
    n = 0
    while True:
        try: b = c.recv(65536)
        except BlockingIOError: return None
        except OSError as e: return e.errno
        if not b: return 'EOF'
        n += len(b)
        if n > 1 << 20 and not full.is_set(): full.set()
def poll(c):
    c.setblocking(False)
    e = select.epoll(); e.register(c, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    while True:
        e.poll(60)
        r = read(c)
        if r is not None: return r
def send(c):
    try:
        while True: c.send(b'x' * 65536)
    except OSError as e: return e.errno
full = threading.Event()
def run(name, what, f):
    c = socket.create_connection((sys.argv[1], 7))
    c.sendall(what)
    if what != b'r': c.recv(1)
    t = threading.Thread(target=lambda: say(f'client {name} ended: {f(c)}'))
    t.start()
    return t
ts = [run('idle', b'i', read), run('idle epoll', b'i', poll), run('writer', b'r', send), run('stream', b's', read), run('stream epoll', b's', poll)]
full.wait(60)
say('all up')
for t in ts: t.join()
`

// TestStackKilled kills a stack while programs read and write long streams, or wait. On
// neither host may a stream look complete.
func TestStackKilled(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"server", "client"} {
		t.Run("of "+side, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "python3", "curl")
			victim := l.serve(l.A)
			if stack := l.serve(l.B); side == "client" {
				victim = stack
			}
			server := l.under(l.A, "python3", "-u", "-c", cutServer, l.A.Addr())
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			client := l.under(l.B, "python3", "-u", "-c", cutClient, l.A.Addr())
			if err := client.WaitOutput("all up", time.Minute); err != nil {
				t.Fatal(err)
			}
			curl := l.under(l.B, "bash", "-c", "curl -sS -N http://"+l.A.Addr()+":7/ | { head -c 65536 | wc -c; cat >/dev/null; }; echo curl ended with ${PIPESTATUS[0]}.")
			if err := curl.WaitOutput("65536", time.Minute); err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(victim.Pid(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// curl ends with CURLE_RECV_ERROR although the answer could end anywhere for
			// curl.
			if err := curl.WaitOutput("curl ended with 56.", vanishedBusy); err != nil {
				t.Error(err)
			}
			for p, want := range map[*netnstest.Process][]string{
				client: {"client idle ", "client idle epoll", "client writer", "client stream ", "client stream epoll"},
				server: {"server i", "server r", "server s", "server G"},
			} {
				for _, w := range want {
					if err := p.WaitOutput(w, vanishedBusy); err != nil {
						t.Errorf("%q did not end: %v", w, err)
					}
				}
				// Writers also get EPIPE, as at the second write after a TCP reset.
				for line := range strings.Lines(p.Log()) {
					if strings.HasPrefix(line, "smcr: ") {
						continue // a line of smcr run
					}
					if _, how, ok := strings.Cut(line, "ended: "); ok && how != "104\n" && !(how == "32\n" && strings.ContainsAny(strings.Fields(line)[1], "wGs")) {
						t.Errorf("%s", line)
					}
				}
			}
		})
	}
}
