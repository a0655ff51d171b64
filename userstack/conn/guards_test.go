// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestAnswerAfterMissingMessage: a peer moves a connection that is being reset, and names a
// message that never comes. Its answer to the reset counts all the same.
func TestAnswerAfterMissingMessage(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Abort(r.now)
	r.expect("cdc+A")
	r.done()
	r.recv(wire.CDC{Seq: 5, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
	r.wait(time.Second)
	r.seq = 5
	r.flag(wire.ConnAbnormalClose)
	if r.state() != smc.StateClosed || r.peerWrites {
		t.Errorf("%s after the answer, the peer may still write: %t", r.state(), r.peerWrites)
	}
}

// TestFullBufferWakes: a producer that finds no space is woken when there is some, also
// while it has more to report.
func TestFullBufferWakes(t *testing.T) {
	r := newRig(t, settings{})
	r.send(sendSize / 2)
	_, _, _ = r.c.SendSpace(sendSize/2, sendSize/2)
	r.c.Placed(sendSize / 2)
	if a, _, _ := r.c.SendSpace(1, 1); a != nil {
		t.Fatalf("%d bytes in a full buffer", len(a))
	}
	r.wakes = nil
	r.deliver()
	if len(r.wakes) != 1 || r.wakes[0] != WakeWrite {
		t.Errorf("woken: %v, want once for writing", r.wakes)
	}
}

// TestReleaseOfOpenConnection: its memory stays, because the peer writes to it.
func TestReleaseOfOpenConnection(t *testing.T) {
	r := newRig(t, settings{})
	r.c.p.Release()
	if r.freed {
		t.Fatal("the element of an open connection is given back")
	}
	r.give(10, 0)
	r.c.Abort(r.now)
	r.done()
	r.flag(wire.ConnAbnormalClose)
	if r.c.p.Release(); !r.freed {
		t.Error("the element of a connection that has ended is not given back")
	}
}
