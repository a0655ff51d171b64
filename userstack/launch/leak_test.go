// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// A launch leaves no descriptor behind, however its connections went.
func TestNoDescriptorLeft(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	refused := closedPort(t)
	run := func() {
		probe(t, &fakeStack{}, "latency", addr)
		probe(t, &fakeStack{clcDelay: 30 * ms}, "nonblocking", addr, "smc")
		probe(t, &fakeStack{clcDelay: 30 * ms}, "closeearly", addr)
		probe(t, &fakeStack{decline: "no link", clcDelay: 30 * ms}, "serverfirst", echoServer(t, "tcp4", "127.0.0.1:0", "hi"), "hi")
		probe(t, &fakeStack{noPeer: true, estDelay: 30 * ms}, "blocking", addr, "native")
		probe(t, &fakeStack{}, "refused", refused, errnoArg(unix.ECONNREFUSED))
		probe(t, &fakeStack{}, "goecho", "127.0.0.1:0")
	}
	run() // what the runtime and the test keep
	before := socktest.OpenFiles(t)
	run()
	const perRound = 7 + 7 + 7 + 1 // sessions, both ends and a pidfd, and the second greeter: open until the test ends
	after := socktest.OpenFiles(t)
	for end := time.Now().Add(patience); after > before+perRound && time.Now().Before(end); {
		time.Sleep(20 * ms) // the peers of the echo servers close
		after = socktest.OpenFiles(t)
	}
	if after > before+perRound {
		t.Errorf("%d descriptors, %d a round before", after, before)
	}
}
