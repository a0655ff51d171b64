// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"testing"
	"time"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// listenTwice is a program with two threads that both call listen() on one socket.
const listenTwice = `
import socket, threading
s = socket.socket()
s.bind(('127.0.0.1', 0))
threads = [threading.Thread(target=s.listen) for i in range(2)]
for t in threads: t.start()
for t in threads: t.join()
`

// TestListenTwice: two calls of listen() on one socket, answered at the same time, make one
// listener. The launcher keeps no descriptor of the other one.
func TestListenTwice(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	for round := range 2 { // what the first one opens for the process stays open
		gate := make(chan struct{})
		stack := &fakeStack{t: t, listenGate: gate}
		cfg := Config{Argv: []string{"timeout", "60", "python3", "-c", listenTwice}, Broker: stack.client()}
		before := socktest.OpenFiles(t)
		go func() {
			for end := time.Now().Add(patience); stack.listens.Load() < 2 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			close(gate)
		}()
		if res := launchedWith(t, t.Context(), cfg, ""); res.status != 0 || stack.listens.Load() != 2 {
			t.Fatalf("status %d after %d calls, %q", res.status, stack.listens.Load(), res.out)
		}
		for end := time.Now().Add(patience); round > 0 && socktest.OpenFiles(t) > before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d descriptors are open, %d were before", socktest.OpenFiles(t), before)
			}
		}
	}
}

// deferLater is a server that sets TCP_DEFER_ACCEPT after listen(), as Apache does.
const deferLater = `
import socket
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) >= 1
try: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, b'x')
except OSError as e: assert e.errno == 22, e
else: raise SystemExit('a short value is taken')
`

// TestDeferAcceptTold: before a program can rely on TCP_DEFER_ACCEPT, a stack that joins
// programs of the host knows of it.
func TestDeferAcceptTold(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	for _, local := range []bool{true, false} {
		stack := &fakeStack{t: t, local: local}
		want := int64(1)
		if local {
			want = 2
		}
		if res := launchedWith(t, t.Context(), Config{Argv: []string{"timeout", "60", "python3", "-c", deferLater}, Broker: stack.client()}, ""); res.status != 0 {
			t.Fatalf("local %v: status %d: %q", local, res.status, res.out)
		}
		if n, d := stack.listens.Load(), stack.defers.Load(); n != want || (d == 1) != local {
			t.Errorf("local %v: %d calls of Listen, %d with the option, want %d", local, n, d, want)
		}
	}
}
