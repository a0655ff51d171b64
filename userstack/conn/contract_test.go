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

// TestEventTime: what a program does and takes effect at once is an event of the group at the
// time that the program gives.
func TestEventTime(t *testing.T) {
	for name, call := range map[string]func(*rig, time.Time){
		"send":     func(r *rig, now time.Time) { _, _, _ = r.c.SendSpace(1, 1); r.c.Produced(now, 1) },
		"push":     func(r *rig, now time.Time) { r.c.Push(now) },
		"uncork":   func(r *rig, now time.Time) { r.c.SetCork(now, true); r.c.SetCork(now, false) },
		"read":     func(r *rig, now time.Time) { r.c.Consumed(now, 1) },
		"shutdown": func(r *rig, now time.Time) { r.c.CloseWrite(now) },
		"close":    func(r *rig, now time.Time) { r.c.Close(now) },
		"abort":    func(r *rig, now time.Time) { r.c.Abort(now) },
		"overlaid": func(r *rig, now time.Time) { r.mem[0]++; r.c.AbortOverlaid(now) },
	} {
		r := newRig(t, settings{eye: true})
		r.give(1, 0)
		now := r.now.Add(time.Hour)
		if call(r, now); !r.begun.Equal(now) {
			t.Errorf("%s: an event at %s, want %s", name, r.begun, now)
		}
	}
	r := newRig(t, settings{})
	if r.c.SetKeepAlive(r.now, time.Minute); !r.armed.Equal(r.now.Add(time.Minute)) {
		t.Errorf("the group was told of a timer at %s", r.armed)
	}
}

// TestDeadline: of several timers the earliest counts, wherever it stands in their list.
func TestDeadline(t *testing.T) {
	for idle, want := range map[time.Duration]time.Duration{time.Millisecond: time.Millisecond, time.Hour: 500 * time.Millisecond} {
		r := newRig(t, settings{})
		r.c.SetKeepAlive(r.now, idle)
		r.c.TCPClosed(r.now, false)
		if at, ok := r.c.p.Deadline(); !ok || at.Sub(r.now) != want {
			t.Errorf("keepalive after %s: a timer after %s, %v", idle, at.Sub(r.now), ok)
		}
	}
}

// TestNothingAfterEnd: calls that come after the end of a connection change nothing of it. They
// are no events of its group, and start no timers.
func TestNothingAfterEnd(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"last link":  func(r *rig) { r.c.p.End(ErrReset) },
		"discarded":  func(r *rig) { r.c.p.Discard(r.now) },
		"resetting":  func(r *rig) { r.flag(wire.ConnAbnormalClose) },
		"aborting":   func(r *rig) { r.c.Abort(r.now) },
		"not opened": func(r *rig) { r.c = New(&r.cfg, r, 0x1111, r.mem, EyeNone, sendSize, DefaultChunk) },
	} {
		for what, call := range map[string]func(*rig){
			"abort":     func(r *rig) { r.c.Abort(r.now) },
			"TCP ended": func(r *rig) { r.c.TCPClosed(r.now, true) },
			"ended":     func(r *rig) { r.c.p.Transmit() },
			"shutdown":  func(r *rig) { r.c.CloseWrite(r.now) },
			"close":     func(r *rig) { r.c.Close(r.now) },
		} {
			if what == "shutdown" && name == "not opened" || what == "close" && (name == "resetting" || name == "aborting") {
				continue // these count
			}
			r := newRig(t, settings{})
			r.linkDown = true
			r.send(10)
			end(r)
			r.linkDown = false
			r.acts, r.events = nil, 0
			before, _ := r.c.p.Deadline()
			state := r.state()
			call(r)
			if at, _ := r.c.p.Deadline(); !at.Equal(before) || r.events != 0 || r.state() != state {
				t.Errorf("%s, then %s: a timer at %s, before at %s; %d events, state %s", name, what, at, before, r.events, r.state())
			}
			if got := r.sent(); name != "resetting" && name != "aborting" && got != "" {
				t.Errorf("%s, then %s: sent %q", name, what, got)
			}
		}
	}
}

// TestCloseTwice: to close again is no event, and does not begin CloseWait again.
func TestCloseTwice(t *testing.T) {
	for name, before := range map[string]func(*rig){
		"in order":        func(r *rig) {},
		"unread data":     func(r *rig) { r.give(1, 0) },
		"reset by a peer": func(r *rig) { r.flag(wire.ConnAbnormalClose) },
	} {
		r := newRig(t, settings{})
		before(r)
		r.c.Close(r.now)
		at, _ := r.c.p.Deadline()
		r.now = r.now.Add(time.Second)
		r.c.Close(r.now)
		if again, _ := r.c.p.Deadline(); r.events != 1 || !again.Equal(at) {
			t.Errorf("%s: %d events, a timer at %s and then %s", name, r.events, at, again)
		}
	}
}

// TestEndTwice: a connection ends once, and is announced once.
func TestEndTwice(t *testing.T) {
	r := newRig(t, settings{})
	r.c.p.End(ErrReset)
	r.c.p.End(ErrReset)
	r.c.p.Evict()
	r.over(ErrReset)
}

// TestTurn: a connection whose turn has not come on its link posts nothing. One that finds no
// room waits for it, and no other does.
func TestTurn(t *testing.T) {
	r := newRig(t, settings{})
	r.c.SetNoDelay(r.now, true)
	r.noTurn = true
	r.send(10)
	r.expect("")
	r.noTurn = false
	r.c.p.Transmit()
	r.expect("cdc")
	if r.waits != 0 {
		t.Errorf("waits for room %d times", r.waits)
	}
	r.done()
	r.room = 1
	if r.send(10); r.waits != 1 {
		t.Errorf("waits for room %d times, want once", r.waits)
	}
	r.room = 2
	r.fail()
	if r.expect("cdc+F cdc"); r.waits != 1 {
		t.Errorf("waits for room %d times after failover", r.waits)
	}
}

// TestOutstanding: no more than two messages of a connection are under way. What is produced
// meanwhile goes out in one.
func TestOutstanding(t *testing.T) {
	r := newRig(t, settings{})
	r.c.SetNoDelay(r.now, true)
	if r.c.p.Outstanding() {
		t.Error("a message is outstanding before there was any")
	}
	for range 4 {
		r.send(1)
	}
	if r.expect("cdc cdc"); !r.c.p.Outstanding() || r.at().Outstanding != 2 {
		t.Errorf("outstanding %v, %d messages", r.c.p.Outstanding(), r.at().Outstanding)
	}
	r.deliver()
	if r.expect("cdc"); !r.c.p.Outstanding() || r.at().Written != 4 {
		t.Errorf("outstanding %v, %+v", r.c.p.Outstanding(), r.at())
	}
	if r.done(); r.c.p.Outstanding() {
		t.Error("a message is outstanding after all were delivered")
	}
}

// TestMemoryOnce: the memory goes back when the driver has let go of the connection and the last
// message is delivered or lost, whichever comes last.
func TestMemoryOnce(t *testing.T) {
	deliver := func(r *rig) { r.done() }
	lose := func(r *rig) {
		lost := r.outstanding[0]
		r.outstanding = nil
		r.c.p.Undelivered(lost)
	}
	release := func(r *rig) { r.c.p.Release() }
	discard := func(r *rig) { r.c.p.Discard(r.now) }
	for name, steps := range map[string][2]func(*rig){
		"delivered, released": {deliver, release}, "released, delivered": {release, deliver},
		"lost, released": {lose, release}, "released, lost": {release, lose},
		"delivered, discarded": {deliver, discard}, "discarded, delivered": {discard, deliver}, "discarded, lost": {discard, lose},
	} {
		for _, ended := range []bool{true, false} {
			r := newRig(t, settings{})
			r.send(10)
			if ended {
				r.c.p.End(ErrReset)
			} else if name != "discarded, delivered" && name != "discarded, lost" {
				continue
			}
			_, _, _ = r.c.SendSpace(10, 10)
			if steps[0](r); r.freed || len(r.chunks) != 1 {
				t.Errorf("%s: the element is given back early: %v, %d chunks", name, r.freed, len(r.chunks))
			}
			if steps[1](r); !r.freed || len(r.chunks) != 0 || !r.left || r.peerWrites {
				t.Errorf("%s: the element is given back: %v, %d chunks are left; left %v, peer writes %v", name, r.freed, len(r.chunks), r.left, r.peerWrites)
			}
			r.c.p.Discard(r.now) // once more
		}
	}
}

// TestReservedMemory: space that a producer has is given back with the rest, and not before,
// although all other data of its chunk is delivered.
func TestReservedMemory(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	a, _, _ := r.c.SendSpace(10, 10)
	if r.done(); len(r.chunks) != 1 {
		t.Fatalf("%d chunks while space is reserved", len(r.chunks))
	}
	copy(a, "0123456789")
	r.c.Produced(r.now, 10)
	if w := r.acts[len(r.acts)-2]; string(w.k.Mem[w.off:w.off+w.n]) != "0123456789" {
		t.Errorf("wrote %q", w.k.Mem[w.off:w.off+w.n])
	}
	_, _, _ = r.c.SendSpace(10, 10)
	r.done()
	if r.c.DropSpace(); len(r.chunks) != 0 {
		t.Errorf("%d chunks after the space was dropped", len(r.chunks))
	}
	_, _, _ = r.c.SendSpace(10, 10)
	r.c.p.End(ErrReset)
	if r.c.p.Release(); len(r.chunks) != 0 {
		t.Errorf("%d chunks after the end", len(r.chunks))
	}
}

// TestChunkOfRest: a chunk is as large as what does not fit in the one before.
func TestChunkOfRest(t *testing.T) {
	r := newRig(t, settings{chunk: 600})
	r.send(100)
	if a, b, err := r.c.SendSpace(700, 700); len(a) != 500 || len(b) != 600 || err != nil {
		t.Errorf("%d and %d bytes of room, %v, want 500 and 600", len(a), len(b), err)
	}
}

// TestPlaced: what a producer places waits until it says that it is done.
func TestPlaced(t *testing.T) {
	r := newRig(t, settings{})
	_, _, _ = r.c.SendSpace(10, 10)
	r.c.Placed(5)
	r.expect("")
	r.c.Produced(r.now, 0)
	r.expect("cdc")
	r.done()
	if r.c.ProducedUrgent(r.now, 0); r.c.p.out.urgent.at != 0 {
		t.Errorf("an urgent mark at %d, although nothing was placed", r.c.p.out.urgent.at)
	}
	_, _, _ = r.c.SendSpace(10, 10)
	r.c.Placed(5)
	r.c.ProducedUrgent(r.now, 0)
	r.expect("cdc+P+U")

	r = newRig(t, settings{}) // the connection ends in between
	_, _, _ = r.c.SendSpace(10, 10)
	r.c.Placed(5)
	r.c.CloseWrite(r.now)
	r.expect("cdc")
	if r.c.ProducedUrgent(r.now, 0); r.c.p.out.urgent.at != 0 {
		t.Errorf("an urgent mark at %d after the end", r.c.p.out.urgent.at)
	}
}

// TestAwaitSpace: a producer to whom the room is too little is woken when a quarter is free, as
// one that found none. One that may not send any more is not.
func TestAwaitSpace(t *testing.T) {
	for _, shut := range []bool{false, true} {
		r := newRig(t, settings{})
		if r.c.SendSize() != sendSize || r.c.SendChunk() != sendSize {
			t.Errorf("a buffer of %d bytes in chunks of %d", r.c.SendSize(), r.c.SendChunk())
		}
		r.send(sendSize - 10)
		r.c.AwaitSpace()
		if shut {
			r.c.CloseWrite(r.now)
		}
		r.wakes = nil
		if r.done(); slices.Contains(r.wakes, WakeWrite) == shut {
			t.Errorf("shut %v: wakes %v", shut, r.wakes)
		}
	}
}

// TestCorkSettings: cork and no delay do what they say, and their end too.
func TestCorkSettings(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.send(5) // waits for the delivery
	r.expect("cdc")
	if at, ok := r.c.p.Deadline(); ok {
		t.Errorf("a timer at %s without cork", at)
	}
	r.c.SetNoDelay(r.now, false)
	r.c.SetCork(r.now, true)
	r.expect("")
	r.done()
	r.expect("") // it waits for the cork now
	r.c.SetCork(r.now, false)
	r.expect("cdc")
	r.done()
	r.send(5)
	r.expect("cdc") // at once
	r.done()
	r.c.Push(r.now) // nothing waits
	r.c.SetCork(r.now, true)
	r.send(5)
	r.expect("")
	r.c.SetCork(r.now, false)
	r.expect("cdc")
	r.done()
	r.got(int(r.at().Written))
	for range 4 {
		r.send(sendSize)
		r.done()
	}
	r.c.SetCork(r.now, true)
	r.send(sendSize - 10)
	if at, ok := r.c.p.Deadline(); ok {
		t.Errorf("a timer at %s, although the data waits for the peer", at)
	}
}

// TestUnopened: a connection that is not open sends nothing. What it was given to send goes out
// when it opens.
func TestUnopened(t *testing.T) {
	r := newRig(t, settings{unopened: true})
	if r.c.Protocol() != &r.c.p || r.c.Token() != 0x1111 || r.state() != smc.StateInit || r.at().Live {
		t.Errorf("token %#x, state %s, live %v", r.c.Token(), r.state(), r.at().Live)
	}
	if r.mem[0] != 0 {
		t.Error("an element without eye catcher has one")
	}
	r.send(10)
	r.c.CloseWrite(r.now)
	r.expect("")
	r.c.p.Establish(Remote{Token: peerToken, Size: elemSize})
	r.expect("cdc")
	r.done()
	r.expect("cdc+D")
	if !r.at().Live {
		t.Error("the connection has no positions")
	}
	r = newRig(t, settings{unopened: true})
	r.c.CloseWrite(r.now)
	r.expect("")
	r.c.p.Establish(Remote{Token: peerToken, Size: elemSize})
	r.expect("cdc+D")
	r.done()
	if r.c.p.Discard(r.now); r.at().Live {
		t.Error("a connection without memory has positions")
	}
}

// TestReadAfterEnd: nothing is read of a connection that was discarded, closed or reset by this
// side, whatever came before.
func TestReadAfterEnd(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"discarded": func(r *rig) { r.c.p.Discard(r.now) },
		"aborted":   func(r *rig) { r.c.Abort(r.now) },
		"closed":    func(r *rig) { r.c.Close(r.now) },
	} {
		r := newRig(t, settings{eye: true})
		r.give(10, prodUrgent)
		r.give(5, 0)
		if name == "closed" {
			r.c.Consumed(r.now, 9)
			r.c.Consumed(r.now, 5)
		}
		end(r)
		r.mem[0]++
		read := r.at().Read
		if a, b := r.c.RecvData(); len(a)+len(b) != 0 || r.c.Overlaid() {
			t.Errorf("%s: %d bytes to read, overlaid %v", name, len(a)+len(b), r.c.Overlaid())
		}
		if r.c.Consumed(r.now, 1); r.at().Read != read {
			t.Errorf("%s: %d bytes are read, were %d", name, r.at().Read, read)
		}
		if _, err := r.c.Urgent(true); name != "discarded" && !errors.Is(err, ErrNoUrgent) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "aborted" && (!errors.Is(r.c.RecvEnd(), ErrAborted) || errors.Is(r.c.RecvEnd(), ErrReset)) {
			t.Errorf("%s: %v, want %v", name, r.c.RecvEnd(), ErrAborted)
		}
	}
	// What a reset by the peer leaves ends at the urgent mark, too.
	r := newRig(t, settings{})
	r.give(10, prodUrgent)
	r.give(5, 0)
	r.flag(wire.ConnAbnormalClose)
	if err := r.c.RecvEnd(); !errors.Is(err, ErrUrgentMark) {
		t.Errorf("%v, want %v", err, ErrUrgentMark)
	}
}
