// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"slices"
	"testing"
	"time"

	"smcr/userstack/wire"
)

// panics reports whether f panics.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// TestNothingProduced: a producer that places nothing leaves nothing behind: no memory, no
// urgent mark, no message.
func TestNothingProduced(t *testing.T) {
	for name, produce := range map[string]func(*rig){
		"none":           func(r *rig) { r.c.Produced(r.now, 0) },
		"none, urgent":   func(r *rig) { r.c.ProducedUrgent(r.now, 0) },
		"less than none": func(r *rig) { r.c.Produced(r.now, -1) },
		"dropped":        func(r *rig) { r.c.DropSpace() },
	} {
		r := newRig(t, settings{})
		r.send(10)
		r.done()
		r.acts = nil
		_, _, _ = r.c.SendSpace(10, 10)
		produce(r)
		if len(r.chunks) != 0 || r.c.p.out.urgent.at != 0 {
			t.Errorf("%s: %d chunks are kept, urgent mark %d", name, len(r.chunks), r.c.p.out.urgent.at)
		}
		r.expect("")
	}
}

// TestNothingConsumed: a reader that takes nothing changes nothing: it is not woken again for
// what it has seen, and the peer is not told.
func TestNothingConsumed(t *testing.T) {
	for _, n := range []int{0, -1} {
		r := newRig(t, settings{})
		r.give(elemSize, wire.ProdWriterBlocked)
		r.c.RecvData()
		r.wakes = nil
		r.c.Consumed(r.now, n)
		if len(r.wakes) != 0 || r.at().Read != 0 {
			t.Errorf("%d bytes: wakes %v, %d bytes are read", n, r.wakes, r.at().Read)
		}
		r.expect("")
		r.c.Consumed(r.now, 1)
		if !slices.Equal(r.wakes, []Wake{WakeRead}) {
			t.Errorf("wakes %v while more waits", r.wakes)
		}
	}
}

// TestMoreThanThereIs: a driver that counts wrong is stopped before it spoils the stream.
func TestMoreThanThereIs(t *testing.T) {
	r := newRig(t, settings{})
	a, b, _ := r.c.SendSpace(10, 10)
	if n := len(a) + len(b); panics(func() { r.c.Placed(n) }) || !panics(func() { r.c.Produced(r.now, 1) }) {
		t.Error("more is produced than was reserved")
	}
	r = newRig(t, settings{})
	r.give(10, 0)
	if !panics(func() { r.c.Consumed(r.now, 11) }) || panics(func() { r.c.Consumed(r.now, 10) }) {
		t.Error("more is consumed than there was")
	}
}

// TestSendMemory: chunks are taken when they are needed, and each is given back when all of
// it is delivered.
func TestSendMemory(t *testing.T) {
	r := newRig(t, settings{chunk: 600})
	r.c.SetNoDelay(r.now, true)
	a, _, _ := r.c.SendSpace(100, 100)
	again, _, _ := r.c.SendSpace(100, 100)
	if &a[0] != &again[0] || len(r.chunks) != 1 {
		t.Errorf("reserved again: %d chunks, the same memory: %v", len(r.chunks), &a[0] == &again[0])
	}
	a, _, _ = r.c.SendSpace(600, 600)
	again, _, _ = r.c.SendSpace(600, 600)
	if &a[0] != &again[0] {
		t.Error("a whole chunk, reserved again, is another one")
	}
	if a, b, err := r.c.SendSpace(700, 700); len(a)+len(b) < 700 || err != nil || len(r.chunks) != 1 {
		t.Errorf("more than a chunk: %d bytes in %d chunks, %v", len(a)+len(b), len(r.chunks), err)
	}
	r.c.DropSpace()
	r.send(600)
	r.send(600)
	if len(r.chunks) != 2 {
		t.Fatalf("%d chunks, want 2", len(r.chunks))
	}
	first := r.outstanding[0]
	r.outstanding = r.outstanding[1:]
	if r.c.p.Delivered(first); len(r.chunks) != 1 {
		t.Errorf("%d chunks after the delivery of the first one", len(r.chunks))
	}
	if r.done(); len(r.chunks) != 0 {
		t.Errorf("%d chunks after the delivery of all", len(r.chunks))
	}
}

// TestSendMemoryLimits: no chunk is taken for room that is not asked for, or that the send
// buffer does not have.
func TestSendMemoryLimits(t *testing.T) {
	r := newRig(t, settings{chunk: 600})
	r.send(100)
	if a, b, _ := r.c.SendSpace(0, 0); len(a)+len(b) != 0 {
		t.Errorf("%d bytes of room for nothing", len(a)+len(b))
	}
	if a, b, _ := r.c.SendSpace(500, 500); len(a) != 500 || len(b) != 0 || len(r.chunks) != 1 {
		t.Errorf("%d and %d bytes of room in %d chunks, want the rest of one", len(a), len(b), len(r.chunks))
	}
	for _, n := range []int{500, 600, 600, 600, 600, 600} {
		r.send(n)
	}
	if a, b, _ := r.c.SendSpace(5000, 5000); len(a)+len(b) != sendSize-3600 {
		t.Errorf("%d bytes of room, want %d", len(a)+len(b), sendSize-3600)
	}
	for k := range r.chunks {
		if len(k.Mem) == sendSize {
			t.Errorf("a chunk of %d bytes for the last %d", len(k.Mem), sendSize-3600)
		}
	}
}

// TestNoSpaceAfterEnd: a producer that may not send gets no room, and loses what it had.
func TestNoSpaceAfterEnd(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"shutdown":    func(r *rig) { r.c.CloseWrite(r.now) },
		"close":       func(r *rig) { r.c.Close(r.now) },
		"reset":       func(r *rig) { r.flag(wire.ConnAbnormalClose) },
		"peer closes": func(r *rig) { r.flag(wire.ConnClosed) },
	} {
		r := newRig(t, settings{})
		_, _, _ = r.c.SendSpace(10, 10)
		end(r)
		if a, b, err := r.c.SendSpace(10, 10); len(a)+len(b) != 0 || err != nil || len(r.chunks) != 0 {
			t.Errorf("%s: %d bytes of room, %v, %d chunks", name, len(a)+len(b), err, len(r.chunks))
		}
		r.acts = nil
		r.c.Produced(r.now, 10)
		if r.at().Produced != 0 {
			t.Errorf("%s: %d bytes are produced", name, r.at().Produced)
		}
	}
}

// TestNoSendMemory: without memory for another chunk, what the last one has room for is
// enough, unless the producer needs more.
func TestNoSendMemory(t *testing.T) {
	r := newRig(t, settings{chunk: 600})
	r.send(100)
	r.noMemory = true
	if a, b, err := r.c.SendSpace(100, 1000); len(a) != 500 || len(b) != 0 || err != nil {
		t.Errorf("%d and %d bytes, %v, want the 500 that are left", len(a), len(b), err)
	}
	if a, b, err := r.c.SendSpace(500, 1000); len(a) != 500 || len(b) != 0 || err != nil {
		t.Errorf("%d and %d bytes, %v, want the 500 that are left", len(a), len(b), err)
	}
	if a, b, err := r.c.SendSpace(501, 1000); len(a)+len(b) != 0 || !errors.Is(err, errNoMemory) {
		t.Errorf("%d bytes, %v, want none", len(a)+len(b), err)
	}
	if !panics(func() { r.c.Produced(r.now, 1) }) {
		t.Error("space is reserved after an error")
	}
}

// TestOverlaid: a reader finds that the eye catcher was overwritten. It gets no data, and
// resets the connection (RFC 7609, section 4.4.1).
func TestOverlaid(t *testing.T) {
	r := newRig(t, settings{eye: true})
	r.give(10, 0)
	if r.c.AbortOverlaid(r.now); r.c.Overlaid() || r.c.ReadErr() != nil {
		t.Fatalf("overlaid %v, %v before anything has happened", r.c.Overlaid(), r.c.ReadErr())
	}
	r.mem[1]++
	if a, b := r.c.RecvData(); len(a)+len(b) != 0 || !r.c.Overlaid() {
		t.Errorf("%d bytes to read, overlaid %v", len(a)+len(b), r.c.Overlaid())
	}
	r.c.AbortOverlaid(r.now)
	r.expect("cdc+A")
	if err := r.c.ReadErr(); !errors.Is(err, ErrReset) || !errors.Is(err, ErrProtocol) || r.c.Overlaid() {
		t.Errorf("%v, overlaid %v", err, r.c.Overlaid())
	}
}

// TestOverlaidMessage: a message that arrives after the eye catcher was overwritten resets
// the connection, and what it says does not count.
func TestOverlaidMessage(t *testing.T) {
	r := newRig(t, settings{eye: true})
	r.mem[3]++
	m := r.cdc()
	m.Prod, m.State = r.rx(10), wire.ConnClosed
	r.c.p.Receive(m)
	r.expect("cdc+A")
	if at := r.at(); at.LastSeq != 0 || at.Received != 0 || r.c.Info().RxState != 0 || !errors.Is(r.c.ReadErr(), ErrProtocol) {
		t.Errorf("%+v, flags %#x, %v", at, r.c.Info().RxState, r.c.ReadErr())
	}
}

// TestGroupGoesOn: whatever may end a connection lets the group see to its own work.
func TestGroupGoesOn(t *testing.T) {
	for name, call := range map[string]func(*rig){
		"shutdown":               func(r *rig) { r.c.CloseWrite(r.now) },
		"close":                  func(r *rig) { r.c.Close(r.now) },
		"close with unread data": func(r *rig) { r.give(1, 0); r.c.Close(r.now) },
		"abort":                  func(r *rig) { r.c.Abort(r.now) },
		"overlaid":               func(r *rig) { r.mem[0]++; r.c.AbortOverlaid(r.now) },
		"close after a reset":    func(r *rig) { r.flag(wire.ConnAbnormalClose); r.c.Close(r.now) },
		"rest after a reset":     func(r *rig) { r.give(1, 0); r.flag(wire.ConnAbnormalClose); r.c.Consumed(r.now, 1) },
	} {
		r := newRig(t, settings{eye: true})
		if call(r); r.events != 1 {
			t.Errorf("%s: %d events", name, r.events)
		}
	}
}

// TestCorkTimer: the timer of a corked connection runs only while something waits.
func TestCorkTimer(t *testing.T) {
	r := newRig(t, settings{})
	r.c.SetCork(r.now, true)
	r.send(sendSize / 2)
	r.expect("cdc")
	if at, ok := r.c.p.Deadline(); ok {
		t.Errorf("a timer of %v runs with nothing to send", at.Sub(r.now))
	}
	r.done()
	r.send(10)
	r.wait(corkDelay / 2)
	r.send(10) // does not begin the wait again
	if at, ok := r.c.p.Deadline(); !ok || at.Sub(r.now) != corkDelay/2 {
		t.Errorf("timer %v, %v, want %v", at.Sub(r.now), ok, corkDelay/2)
	}
}

// TestCorkTwice: to set what is set sends nothing that waits for another reason.
func TestCorkTwice(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.send(5)
	r.expect("cdc")
	r.c.SetCork(r.now, false)
	r.expect("")
	r.done()
	r.expect("cdc")
}

// TestCorkPushed: when the wait of a corked connection is over, all that waits goes out, also
// if the peer's window takes only a part of it at first.
func TestCorkPushed(t *testing.T) {
	r := newRig(t, settings{})
	for _, n := range []int{4096, 4096, 4096, 2396} {
		r.send(n)
		r.done()
	}
	r.acts = nil
	r.c.SetCork(r.now, true)
	r.send(2000) // the window takes 1700
	r.expect("")
	r.wait(corkDelay)
	r.expect("cdc+B")
	r.done()
	r.got(elemSize)
	r.expect("cdc")
	if at := r.at(); at.Written != at.Produced {
		t.Errorf("%d of %d bytes are written", at.Written, at.Produced)
	}
}

// TestKeepAlive: the link is tested each time that the connection was not used for so long,
// until that is switched off (RFC 7609, section 4.5.3).
func TestKeepAlive(t *testing.T) {
	r := newRig(t, settings{})
	r.c.SetKeepAlive(r.now, time.Minute)
	for i := range 3 {
		r.wait(time.Minute - time.Millisecond)
		if r.tests != i {
			t.Fatalf("%d tests, want %d", r.tests, i)
		}
		if r.wait(time.Millisecond); r.tests != i+1 {
			t.Fatalf("%d tests, want %d", r.tests, i+1)
		}
	}
	r.c.SetKeepAlive(r.now, 0)
	if r.wait(time.Hour); r.tests != 3 {
		t.Errorf("%d tests, the last ones after it was switched off", r.tests)
	}
	r.c.p.End(ErrReset)
	r.c.SetKeepAlive(r.now, time.Minute)
	if _, ok := r.c.p.Deadline(); ok {
		t.Error("a timer runs after the end")
	}
}

// TestInfo: what a diagnosis shows of a connection.
func TestInfo(t *testing.T) {
	r := newRig(t, settings{eye: true})
	r.give(100, wire.ProdCursorRequest)
	r.c.Consumed(r.now, 60)
	r.done()
	if got := r.c.Info(); got.RxFlags != wire.ProdCursorRequest {
		t.Errorf("flags %#x of the peer", got.RxFlags)
	}
	r.send(50)
	r.done()
	r.send(20)
	r.c.SetCork(r.now, true)
	r.send(7)
	r.got(30)
	at := func(n uint32) wire.Cursor { return wire.Cursor{Count: n} }
	want := Info{
		Token: 0x1111, SendBuf: sendSize, RMBE: elemSize, PeerRMBE: elemSize,
		RxProd: at(104), RxCons: at(64), TxProd: at(74), TxCons: at(34), TxPrep: at(77), TxSent: at(70), TxFin: at(50),
	}
	if got := r.c.Info(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.flag(wire.ConnSendingDone)
	r.done()
	r.urge(1)
	r.c.CloseWrite(r.now)
	if got := r.c.Info(); got.RxState != wire.ConnSendingDone || got.TxFlags != prodUrgent || got.TxState != 0 {
		t.Errorf("flags %#x, states %#x and %#x", got.TxFlags, got.RxState, got.TxState)
	}
	r.done()
	if got := r.c.Info(); got.TxState != wire.ConnSendingDone {
		t.Errorf("state %#x", got.TxState)
	}
	r = newRig(t, settings{unopened: true})
	if got := r.c.Info(); got != (Info{Token: 0x1111, SendBuf: sendSize, RMBE: elemSize}) {
		t.Errorf("not established: %+v", got)
	}
}

// TestInfoAfterEnd: a connection that has given its memory back has no positions in its send
// buffer.
func TestInfoAfterEnd(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.done()
	if i := r.c.Info(); i.TxPrep.Count != 10 || i.TxSent.Count != 10 || i.TxFin.Count != 10 {
		t.Errorf("%+v", i)
	}
	r.c.p.Discard(time.Time{})
	if i := r.c.Info(); i.TxPrep != (wire.Cursor{}) || i.TxSent != (wire.Cursor{}) || i.TxFin != (wire.Cursor{}) || i.RMBE != 0 {
		t.Errorf("after the end: %+v", i)
	}
	if a, b, err := r.c.SendSpace(1, 1); len(a)+len(b) != 0 || err != nil {
		t.Errorf("%d bytes of room after the end, %v", len(a)+len(b), err)
	}
}
