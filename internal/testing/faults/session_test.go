// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSessionLost ends the session between the launcher of a client and its stack, which
// runs on, while a connection is being made: the kernel has no memory for any message of the
// launcher any more. The launcher says so, and all connections are TCP. A socket that still
// has the mark of the stack would announce SMC, and its data would stay behind the gate.
func TestSessionLost(t *testing.T) {
	skipShort(t)
	l := newServedLab(t)
	if err := l.Cut(0); err != nil {
		t.Fatal(err)
	}
	// The first message is the hello. The second one passes the first connection, which
	// waits for the SYN-ACK when the session ends.
	i := inject(t, l.B, "sendmsg", request{Call: "sendmsg", Errno: int(unix.ENOBUFS), At: 3, Times: math.MaxInt32},
		l.clientArgs(sweepConns, "-bytes", sweepBytes, "-limit", trafficTime.String())...)
	if err := i.WaitOutput("because the kernel had no memory for a message", startTime); err != nil {
		t.Fatal(err)
	}
	if err := l.Uncut(0); err != nil {
		t.Fatal(err)
	}
	err := i.Wait(trafficTime)
	r := outcome(sweepConns, i.Log(), !ended(i.Process), err)
	r.Runs = 1
	r.Fault, r.Traffic = "ENOBUFS of sendmsg without end", "launcher of the client, connections not made yet"
	r.Outcome = "the connections are TCP"
	if a := i.last(t); a.Failed < 2 {
		t.Errorf("%d calls failed", a.Failed)
	}
	if r.Failed > 0 || r.TCP != sweepConns {
		t.Errorf("%+v\n%s", r, i.Log())
	}
	if err := l.settle(&r); err != nil {
		t.Error(err)
	}
	finish(t, r)
}
