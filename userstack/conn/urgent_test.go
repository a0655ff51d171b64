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

const prodUrgent = wire.ProdUrgentPending | wire.ProdUrgentPresent

// TestUrgentScenario5 is RFC 7609, figure 20: nothing follows an urgent byte
// before the peer has confirmed it.
func TestUrgentScenario5(t *testing.T) {
	r := newRig(t, settings{})
	r.urge(500)
	r.expect("cdc+P+U")
	if m := r.last; m.Prod.Count != 500 {
		t.Errorf("producer cursor %d, want one past the urgent byte", m.Prod.Count)
	}
	r.done()
	r.send(1000)
	r.expect("")
	r.got(499)
	r.expect("")
	r.got(1)
	r.expect("cdc")
	if m := r.last; m.Prod.Count != 1500 {
		t.Errorf("producer cursor %d, want 1500", m.Prod.Count)
	}
}

// TestUrgentScenario6 is RFC 7609, figure 21: urgent data before a closed
// window is announced, and sent when the window opens. In the figure, the peer knows
// already that the writer is blocked.
func TestUrgentScenario6(t *testing.T) {
	for name, waiting := range map[string]int{"figure": 100, "not blocked before": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, settings{})
			for range 4 {
				r.send(4096)
				r.done()
			}
			r.acts = nil
			if waiting > 0 {
				r.send(waiting)
				r.expect("cdc+B")
				r.done()
			}
			r.urge(500)
			r.expect("cdc+B+P")
			r.send(1000)
			r.done()
			r.expect("")
			r.got(16384)
			r.expect("cdc+P+U")
			if n := r.last.Prod; n != r.tx(uint64(16384+waiting+500)) {
				t.Errorf("producer cursor %+v, want the urgent byte", n)
			}
			r.done()
			r.expect("")
			r.got(waiting + 500)
			r.expect("cdc")
		})
	}
}

// TestUrgentMarks: a mark that has not gone out moves on; one that has makes
// the next wait.
func TestUrgentMarks(t *testing.T) {
	r := newRig(t, settings{})
	r.urge(1)
	r.expect("cdc+P+U")
	r.send(10)
	r.urge(1)
	r.send(10)
	r.urge(1)
	r.send(3)
	r.done()
	r.expect("")
	r.got(1)
	r.expect("cdc+P+U")
	if m := r.last; m.Prod.Count != 1+10+1+10+1 {
		t.Errorf("producer cursor %d: the second mark should have moved to the third", m.Prod.Count)
	}
	r.done()
	r.got(22)
	r.expect("cdc")
}

// TestUrgentUpdates: other messages carry no urgent flags while the byte is
// not confirmed, because Linux takes them for another one.
func TestUrgentUpdates(t *testing.T) {
	r := newRig(t, settings{})
	r.urge(1)
	r.expect("cdc+P+U")
	r.give(16384, wire.ProdWriterBlocked)
	r.c.Consumed(r.now, 16384)
	r.expect("cdc")
}

// TestUrgentWait: a peer that takes everything but never confirms the urgent
// byte does not hold up what follows for ever.
func TestUrgentWait(t *testing.T) {
	const wait = time.Minute // Timers.UrgentWait
	tests := []struct {
		name  string
		steps func(r *rig)
		want  smc.ConnState
	}{
		{"nothing follows", func(r *rig) { r.got(9) }, smc.StateActive},
		{"data before it is unread", func(r *rig) { r.send(1); r.got(8) }, smc.StateActive},
		{"data follows", func(r *rig) { r.send(1); r.got(9) }, smc.StatePeerAbortWait},
		{"data follows later", func(r *rig) { r.got(9); r.wait(2 * time.Minute); r.send(1) }, smc.StatePeerAbortWait},
		{"confirmed", func(r *rig) { r.send(1); r.got(9); r.got(1) }, smc.StateActive},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, settings{})
			r.urge(10)
			r.done()
			tt.steps(r)
			r.wait(wait - time.Millisecond)
			if r.c.State() != smc.StateActive {
				t.Fatalf("early: %s", r.c.State())
			}
			r.wait(2 * time.Millisecond)
			if r.c.State() != tt.want {
				t.Errorf("state %s, want %s", r.c.State(), tt.want)
			}
			if tt.want == smc.StatePeerAbortWait && !errors.Is(r.c.WriteErr(), ErrUrgentTimeout) {
				t.Errorf("error %v", r.c.WriteErr())
			}
		})
	}
}

// TestUrgentWaitBeginsOnce: data that is produced during the wait does not prolong it.
func TestUrgentWaitBeginsOnce(t *testing.T) {
	r := newRig(t, settings{})
	r.urge(10)
	r.done()
	r.got(9)
	r.send(1)
	r.wait(30 * time.Second)
	r.send(1)
	r.wait(30*time.Second - time.Millisecond)
	if r.state() != smc.StateActive {
		t.Errorf("early: %s", r.state())
	}
	if r.wait(time.Millisecond); r.state() != smc.StatePeerAbortWait {
		t.Errorf("state %s", r.state())
	}
}

// TestUrgentWithoutData: flags that say that the byte is there do so only with data.
func TestUrgentWithoutData(t *testing.T) {
	for _, f := range []wire.ProducerFlags{prodUrgent, wire.ProdUrgentPresent} {
		r := newRig(t, settings{})
		r.give(3, 0)
		r.wakes = nil
		r.give(0, f)
		if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) || len(r.wakes) != 0 || r.c.AtMark() {
			t.Errorf("flags %#x: %v, wakes %v, at mark %v", f, err, r.wakes, r.c.AtMark())
		}
		if a, _ := r.c.RecvData(); len(a) != 3 {
			t.Errorf("flags %#x: %d bytes can be read, want 3", f, len(a))
		}
	}
}

// TestUrgentArrives follows what a reader sees: the byte is kept aside, reads
// stop at the mark, and the peer learns at once that it may go on.
func TestUrgentArrives(t *testing.T) {
	r := newRig(t, settings{})
	copy(r.mem, "abcUdefV")
	kinds := func() bool { return slices.Contains(r.wakes, WakeUrgent) }
	data := func() string {
		a, b := r.c.RecvData()
		return string(a) + string(b)
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) || r.c.AtMark() {
		t.Errorf("before: %v, at mark %v", err, r.c.AtMark())
	}
	r.give(0, wire.ProdUrgentPending)
	r.give(0, wire.ProdUrgentPending)
	if len(r.wakes) != 1 {
		t.Errorf("announced twice: wakes %v", r.wakes)
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrUrgentPending) || !kinds() {
		t.Errorf("announced: %v", err)
	}
	r.acts, r.wakes = nil, nil
	r.give(4, prodUrgent)
	if !kinds() {
		t.Error("no wake-up")
	}
	r.expect("")
	if u, err := r.c.Urgent(true); u != 'U' || err != nil {
		t.Errorf("peek: %q, %v", u, err)
	}
	if u, err := r.c.Urgent(false); u != 'U' || err != nil {
		t.Errorf("urgent byte: %q, %v", u, err)
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) {
		t.Errorf("twice: %v", err)
	}
	if got := data(); got != "abc" {
		t.Errorf("before the mark: %q", got)
	}
	r.c.Consumed(r.now, 2)
	r.expect("")
	if r.c.AtMark() {
		t.Error("at the mark early")
	}
	r.c.Consumed(r.now, 1)
	r.expect("cdc")
	if m := r.last; m.Cons.Count != 4 {
		t.Errorf("consumer cursor %d, want 4", m.Cons.Count)
	}
	if !r.c.AtMark() || data() != "" {
		t.Errorf("at mark %v, data %q", r.c.AtMark(), data())
	}
	r.done()
	r.give(3, 0)
	if !r.c.AtMark() || data() != "def" {
		t.Errorf("behind the mark: %v, data %q", r.c.AtMark(), data())
	}
	r.c.Consumed(r.now, 3)
	if r.c.AtMark() {
		t.Error("still at the mark")
	}
	// Alone it is confirmed on arrival, read or not.
	r.acts = nil
	r.give(1, prodUrgent)
	r.expect("cdc")
	if m := r.last; m.Cons.Count != 8 {
		t.Errorf("consumer cursor %d, want 8", m.Cons.Count)
	}
	if err := r.c.ReadErr(); err != nil || data() != "" {
		t.Errorf("%v, %q", err, data())
	}
	r.flag(wire.ConnSendingDone)
	if u, err := r.c.Urgent(false); u != 'V' || err != nil {
		t.Errorf("after the end of file: %q, %v", u, err)
	}
	r.done()
	r.c.Close(r.now)
	r.expect("cdc+C") // no unread data, no reset
}

// TestUrgentInline: with the option the byte stays in the stream; reads stop
// before it, and reading it confirms it.
func TestUrgentInline(t *testing.T) {
	r := newRig(t, settings{})
	copy(r.mem, "abcUdef")
	r.c.SetUrgentInline(true)
	if r.c.UrgentInline() {
		t.Error("no byte has come")
	}
	r.give(4, prodUrgent)
	if !r.c.UrgentInline() {
		t.Error("the byte does not stay in the stream")
	}
	a, _ := r.c.RecvData()
	if string(a) != "abc" || r.c.AtMark() {
		t.Errorf("%q, at mark %v", a, r.c.AtMark())
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) {
		t.Errorf("urgent byte inline: %v", err)
	}
	r.c.Consumed(r.now, 3)
	r.expect("")
	if a, _ = r.c.RecvData(); string(a) != "U" || !r.c.AtMark() {
		t.Errorf("%q, at mark %v", a, r.c.AtMark())
	}
	r.c.SetUrgentInline(false) // too late for this one
	r.c.Consumed(r.now, 1)
	r.expect("cdc")
	if r.c.AtMark() {
		t.Error("still at the mark")
	}
}
