// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"io"
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

// TestDeferred: of several messages that come before the one that a validation names, the
// newest counts, whatever their order.
func TestDeferred(t *testing.T) {
	for name, order := range map[string][]int{"in order": {0, 1}, "reordered": {1, 0}} {
		r := newRig(t, settings{})
		r.recv(wire.CDC{Seq: 1, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
		late := r.cdc()
		var next [2]wire.CDC
		for i := range next {
			next[i] = r.cdc()
			next[i].Prod = r.rx(uint64(10 + i))
		}
		for _, i := range order {
			r.recv(next[i])
		}
		if r.recv(late); r.at().Received != 11 || r.at().LastSeq != next[1].Seq {
			t.Errorf("%s: %d bytes, message %d", name, r.at().Received, r.at().LastSeq)
		}
	}
}

// TestDeferredAgain: a message that was deferred once and then processed does not stand in the
// way of one that is deferred half a round of sequence numbers later.
func TestDeferredAgain(t *testing.T) {
	r := newRig(t, settings{})
	for range 2 {
		r.recv(wire.CDC{Seq: r.seq + 1, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
		late, next := r.cdc(), r.cdc()
		next.Prod = r.rx(r.at().Received + 10)
		want := r.at().Received + 10
		r.recv(next)
		if r.recv(late); r.at().Received != want {
			t.Fatalf("%d bytes, want %d", r.at().Received, want)
		}
		for range 2 {
			r.seq += 20000
			r.give(0, 0)
		}
	}
	if r.state() != smc.StateActive {
		t.Errorf("state %s", r.state())
	}
}

// TestStillMissing: a message before the one that a validation names does not take its place.
func TestStillMissing(t *testing.T) {
	r := newRig(t, settings{})
	r.recv(wire.CDC{Seq: 2, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
	r.give(10, 0)
	if r.at().Received != 10 {
		t.Errorf("%d bytes of an earlier message", r.at().Received)
	}
	if r.wait(validateWait); r.state() != smc.StatePeerAbortWait {
		t.Errorf("state %s", r.state())
	}
}

// TestLinkDeletedInOrder: a connection whose link is being deleted moves to another one, if
// there is one, as soon as all that was sent is delivered.
func TestLinkDeletedInOrder(t *testing.T) {
	for _, other := range []bool{true, false} {
		r := newRig(t, settings{})
		r.c.SetNoDelay(r.now, true)
		r.send(10)
		r.send(10)
		r.acts = nil
		r.linkDown, r.other = true, other
		r.send(10)
		r.expect("")
		if other {
			r.c.p.PlanMove() // which the deletion of the link overtakes
		}
		first := r.outstanding[0]
		r.outstanding = r.outstanding[1:]
		r.c.p.Delivered(first)
		r.expect("")
		r.deliver()
		if got, want := r.sent(), map[bool]string{true: "cdc+F cdc"}[other]; got != want {
			t.Errorf("another link %v: sent %q, want %q", other, got, want)
		}
		r = newRig(t, settings{}) // the link is not deleted
		r.other = other
		r.send(10)
		r.done()
		r.expect("cdc")
	}
}

// TestPlannedMoveFails: if the other link is not active any more at the end of the pause, the
// connection goes on where it is.
func TestPlannedMoveFails(t *testing.T) {
	r := newRig(t, settings{})
	r.stays = true
	r.c.p.PlanMove()
	r.send(10)
	r.wait(movePause - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc")
}

// TestMovedBeforeFirstContact: nothing was sent before the first contact is complete, so there
// is nothing to be validated after it.
func TestMovedBeforeFirstContact(t *testing.T) {
	r := newRig(t, settings{})
	r.notOpen, r.linkDown = true, true
	r.send(10)
	r.c.p.Moved()
	r.notOpen, r.linkDown = false, false
	r.c.p.Transmit()
	r.expect("cdc")
}

// TestValidationBeforeEstablish: a peer may move a connection before this side has opened it.
// The time for a message that is missing begins when it is open.
func TestValidationBeforeEstablish(t *testing.T) {
	open := func(r *rig) { r.c.p.Establish(Remote{Token: peerToken, Size: elemSize}) }
	r := newRig(t, settings{unopened: true})
	first := wire.CDC{Seq: 1, Token: r.c.Token(), Prod: wire.Cursor{Count: 5}}
	verify := wire.CDC{Seq: 1, Token: r.c.Token(), Flags: wire.ProdFailoverVerify}
	r.c.p.Receive(verify)
	if _, ok := r.c.p.Deadline(); ok {
		t.Error("a timer runs before the connection is open")
	}
	open(r)
	r.wait(validateWait - time.Millisecond)
	if r.recv(first); r.at().Received != 5 {
		t.Errorf("%d bytes of the message at the last moment", r.at().Received)
	}
	if r.wait(time.Second); r.state() != smc.StateActive {
		t.Errorf("state %s", r.state())
	}

	r = newRig(t, settings{unopened: true})
	r.c.p.Receive(verify)
	open(r)
	if r.wait(validateWait); r.state() != smc.StatePeerAbortWait {
		t.Errorf("without the message: state %s", r.state())
	}
	r = newRig(t, settings{unopened: true})
	r.c.p.Receive(wire.CDC{Seq: 2, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
	r.c.p.Receive(first)
	open(r)
	if r.wait(validateWait); r.state() != smc.StatePeerAbortWait {
		t.Errorf("with the message before it: state %s", r.state())
	}

	newer := wire.CDC{Seq: 2, Token: r.c.Token(), Prod: wire.Cursor{Count: 8}}
	for name, tt := range map[string]struct {
		early []wire.CDC // before the connection is open
		want  uint64     // bytes of them that are received
	}{
		"the message came before":                           {[]wire.CDC{first, verify}, 5},
		"others came after it, the newest of which is kept": {[]wire.CDC{first, newer, verify}, 8},
		"it comes between the two":                          {[]wire.CDC{verify, first}, 5},
		"another one comes after it":                        {[]wire.CDC{verify, first, newer}, 8},
		"another one comes before it":                       {[]wire.CDC{verify, newer, first}, 8},
		"they come in the other order, behind a third one": {[]wire.CDC{
			{Seq: 3, Token: first.Token, Prod: wire.Cursor{Count: 9}}, newer, first, {Seq: 2, Token: first.Token, Flags: wire.ProdFailoverVerify},
		}, 9},
		"they come in the other order": {[]wire.CDC{newer, first, {Seq: 2, Token: first.Token, Flags: wire.ProdFailoverVerify}}, 8},
	} {
		r := newRig(t, settings{unopened: true})
		for _, m := range tt.early {
			r.c.p.Receive(m)
		}
		if open(r); r.at().Received != tt.want {
			t.Errorf("%s: %d bytes, want %d", name, r.at().Received, tt.want)
		}
		if r.wait(time.Second); r.state() != smc.StateActive {
			t.Errorf("%s: state %s", name, r.state())
		}
	}
}

// TestMovedBeforeEstablish: a connection that changes links before it is open has nothing to
// be validated.
func TestMovedBeforeEstablish(t *testing.T) {
	r := newRig(t, settings{unopened: true})
	r.c.p.Moved()
	r.c.p.Establish(Remote{Token: peerToken, Size: elemSize})
	r.expect("")
	r.send(1)
	r.expect("cdc")
}

// TestLinkFailsDuringPlannedMove: a link that fails ends a planned move, and the connection
// goes on over the next link at once.
func TestLinkFailsDuringPlannedMove(t *testing.T) {
	for name, pausing := range map[string]bool{"draining": false, "pausing": true} {
		r := newRig(t, settings{})
		r.c.SetNoDelay(r.now, true)
		r.send(10)
		r.c.p.PlanMove()
		if pausing {
			r.done()
			r.send(10)
		}
		r.fail()
		if got := r.sent(); got != "cdc+F cdc" {
			t.Errorf("%s: sent %q", name, got)
		}
		r.done()
		r.wait(time.Second)
		r.expect("")
	}
}

// TestReadDuringFailover: the peer has read, as its cursor says, what is to be written again
// after failover. It is not written again, because other data may have its place.
func TestReadDuringFailover(t *testing.T) {
	setup := func() *rig {
		r := newRig(t, settings{})
		r.send(100)
		r.room = 1 // enough for the validation
		r.fail()
		r.expect("cdc+F")
		if at := r.at(); at.Written != 0 || at.Announced != 100 {
			t.Fatalf("%+v", at)
		}
		return r
	}
	r := setup()
	r.got(60)
	if at := r.at(); at.Written != 60 || at.Announced != 100 || at.PeerRead != 60 {
		t.Errorf("60 bytes are read: %+v", at)
	}
	r.room = 2
	r.c.p.Transmit()
	if w := r.acts[0]; w.n != 40 || w.at != 60 {
		t.Errorf("%d bytes are written again at %d, want 40 at 60", w.n, w.at)
	}

	r = setup()
	r.got(100)
	if at := r.at(); at.Written != 100 || r.c.p.out.unfinished() {
		t.Errorf("all is read: %+v, unfinished %v", at, r.c.p.out.unfinished())
	}
	// The peer may close with the same message: nothing waits for it.
	r = setup()
	m := r.cdc()
	m.Cons, m.State = r.tx(100), wire.ConnClosed
	if r.recv(m); r.c.ReadErr() != io.EOF {
		t.Errorf("%v, want %v", r.c.ReadErr(), io.EOF)
	}
}
