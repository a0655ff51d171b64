// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"testing"
	"time"

	"smcr/internal/testing/socktest"
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
