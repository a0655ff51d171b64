// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestAbortOnce: a connection is reset once. What would also be a reason later changes
// neither the error nor the end of AbortWait.
func TestAbortOnce(t *testing.T) {
	r := newRig(t, settings{unopened: true})
	r.c.p.Establish(Remote{Token: peerToken, Size: elemSize, LinkGone: true})
	r.wait(peerMoveWait - 5*time.Second)
	r.c.Abort(r.now)
	r.expect("cdc+A")
	r.wait(5 * time.Second) // the peer should have moved the connection by now
	r.expect("")
	if !errors.Is(r.c.ReadErr(), ErrAborted) {
		t.Errorf("%v, want %v", r.c.ReadErr(), ErrAborted)
	}
	r.wait(5*time.Second - time.Millisecond)
	if len(r.ended) != 0 {
		t.Errorf("ended %v before AbortWait is over", r.ended)
	}
	r.wait(time.Millisecond)
	r.over(ErrAborted)
}

// TestAbortAfterClose: a connection that is reset while its data goes out waits for AbortWait,
// and the delivery of that data changes nothing of it.
func TestAbortAfterClose(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.c.Close(r.now)
	r.c.Abort(r.now)
	r.expect("cdc cdc+A")
	r.wait(time.Second)
	r.done()
	r.wait(9*time.Second - time.Millisecond)
	if len(r.ended) != 0 {
		t.Errorf("ended %v before AbortWait is over", r.ended)
	}
	r.wait(time.Millisecond)
	r.over(ErrAborted)
}

// TestAbortSaysNothingElse: the message that resets a connection has no producer flags, even
// if the peer was asked for its cursor before.
func TestAbortSaysNothingElse(t *testing.T) {
	r := newRig(t, settings{stopsAtUrgent: true})
	r.urge(10)
	r.expect("cdc+P+U+R")
	r.send(10)
	r.c.Abort(r.now)
	r.expect("cdc+A")
	if r.last.Flags != 0 || r.last.State != wire.ConnAbnormalClose {
		t.Errorf("flags %#x, state %#x", r.last.Flags, r.last.State)
	}
}

// TestElementAfterEnd: after the end of the last link, and of a peer that has given up its
// element, no message comes that could write to the element of this side.
func TestElementAfterEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(*rig)
		want error
	}{
		"last link":          {func(r *rig) { r.c.p.End(ErrReset) }, ErrReset},
		"given up":           {func(r *rig) { r.c.p.Evict() }, ErrReset},
		"given up, closed":   {func(r *rig) { r.c.Close(r.now); r.c.p.Evict() }, nil},
		"given up, shutdown": {func(r *rig) { r.c.CloseWrite(r.now); r.c.p.Evict() }, ErrReset},
		"given up, aborted":  {func(r *rig) { r.c.Abort(r.now); r.c.p.Evict() }, ErrAborted},
		"given up, closed and reset": {func(r *rig) {
			r.c.Close(r.now)
			r.flag(wire.ConnAbnormalClose)
			r.c.p.Evict()
		}, ErrReset},
	} {
		r := newRig(t, settings{})
		tt.end(r)
		if r.peerWrites || !r.left {
			t.Errorf("%s: left %v, the element is lost: %v", name, r.left, r.peerWrites)
		}
		r.over(tt.want)
		if tt.want != nil && !errors.Is(r.c.ReadErr(), tt.want) {
			t.Errorf("%s: %v, want %v", name, r.c.ReadErr(), tt.want)
		}
		if !slices.Contains(r.wakes, WakeRead) || !slices.Contains(r.wakes, WakeWrite) {
			t.Errorf("%s: wakes %v", name, r.wakes)
		}
		if _, ok := r.c.p.Deadline(); ok {
			t.Errorf("%s: a timer is left", name)
		}
	}
}

// TestUrgentAfterClose: a program that has closed is not told of urgent data.
func TestUrgentAfterClose(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Close(r.now)
	r.wakes = nil
	r.give(10, prodUrgent)
	if slices.Contains(r.wakes, WakeUrgent) || slices.Contains(r.wakes, WakeRead) {
		t.Errorf("wakes %v", r.wakes)
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) {
		t.Errorf("%v", err)
	}
}

// TestBadMessageDoesNotCount: nothing of a message with a cursor that cannot be is taken: its
// C does not end the connection before the answer to A.
func TestBadMessageDoesNotCount(t *testing.T) {
	for name, edit := range map[string]func(*rig, *wire.CDC){
		"producer": func(r *rig, m *wire.CDC) { m.Prod.Count = elemSize + 1 },
		"consumer": func(r *rig, m *wire.CDC) { m.Cons = r.tx(1) },
	} {
		r := newRig(t, settings{})
		m := r.cdc()
		m.State = wire.ConnClosed
		edit(r, &m)
		r.recv(m)
		r.expect("cdc+A")
		r.done()
		if i := r.c.Info(); r.state() != smc.StatePeerAbortWait || i.RxState != 0 || r.at().LastSeq != 0 {
			t.Errorf("%s: state %s, flags %#x, message %d", name, r.state(), i.RxState, r.at().LastSeq)
		}
		m = r.cdc()
		m.State = wire.ConnAbnormalClose
		r.recv(m)
		r.over(ErrReset)
	}
}
