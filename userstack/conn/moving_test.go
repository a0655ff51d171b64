// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestFailoverValidation: the receiver resets a connection that has missed
// a message, after a moment for one that is only late.
func TestFailoverValidation(t *testing.T) {
	verify := func(r *rig, seq uint16) {
		r.recv(wire.CDC{Seq: seq, Token: r.c.Token(), Flags: wire.ProdFailoverVerify, Prod: wire.Cursor{Count: 1 << 31}})
	}
	setup := func() *rig {
		r := newRig(t, settings{})
		r.give(100, 0)
		r.give(100, 0)
		return r
	}
	r := setup()
	verify(r, 2)
	verify(r, 1)
	r.give(10, 0)
	if r.wait(time.Second); r.c.State() != smc.StateActive || r.at().Received != 210 {
		t.Errorf("nothing missed: %s, %d bytes", r.c.State(), r.at().Received)
	}

	r = setup()
	verify(r, 3)
	late := r.cdc()
	late.Prod.Count += 50
	next := r.cdc()
	next.Prod.Count += 80
	r.recv(next)
	if r.at().Received != 200 {
		t.Error("newer message processed before the check")
	}
	r.recv(late)
	if r.at().Received != 280 {
		t.Errorf("%d bytes after the late message, want 280", r.at().Received)
	}
	if r.wait(time.Second); r.c.State() != smc.StateActive {
		t.Errorf("late message: %s", r.c.State())
	}

	// The missing message has 200 ms: it may be behind the validation, in the completion
	// queue of the old link.
	const patience = 200 * time.Millisecond
	r = setup()
	verify(r, 3)
	r.wait(patience - time.Millisecond)
	if r.give(50, 0); r.at().Received != 250 {
		t.Errorf("%d bytes after the last moment, want 250", r.at().Received)
	}
	if r.wait(time.Second); r.c.State() != smc.StateActive {
		t.Errorf("message at the last moment: %s", r.c.State())
	}

	r = setup()
	verify(r, 3)
	if r.wait(patience - time.Millisecond); r.c.State() != smc.StateActive {
		t.Errorf("before the time is over: %s", r.c.State())
	}
	if r.wait(time.Millisecond); r.c.State() != smc.StatePeerAbortWait || !errors.Is(r.c.ReadErr(), ErrReset) {
		t.Errorf("missed message: %s, %v", r.c.State(), r.c.ReadErr())
	}

	// After failover the producer may repeat what has arrived.
	r = setup()
	verify(r, 2)
	m := r.cdc()
	m.Prod.Count -= 50
	r.recv(m)
	if r.c.State() != smc.StateActive || r.at().Received != 200 {
		t.Errorf("repeated data: %s, %d bytes", r.c.State(), r.at().Received)
	}
}
