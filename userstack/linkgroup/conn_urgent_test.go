// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

const prodUrgent = wire.ProdUrgentPending | wire.ProdUrgentPresent

// urge produces n bytes of which the last is urgent.
func (r *rig) urge(n int) {
	produceUrgent(r.c, r.s.now, n)
	r.take()
}

// TestUrgentScenario5 is RFC 7609, figure 20: nothing follows an urgent byte
// before the peer has confirmed it.
func TestUrgentScenario5(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.urge(500)
	r.expect("cdc+P+U")
	if m, _ := wire.ParseCDC(r.last); m.Prod.Count != 500 {
		t.Errorf("producer cursor %d, want one past the urgent byte", m.Prod.Count)
	}
	r.done()
	r.send(1000)
	r.expect("")
	r.got(499)
	r.expect("")
	r.got(1)
	r.expect("cdc")
	if m, _ := wire.ParseCDC(r.last); m.Prod.Count != 1500 {
		t.Errorf("producer cursor %d, want 1500", m.Prod.Count)
	}
}

// TestUrgentScenario6 is RFC 7609, figure 21: urgent data before a closed
// window is announced, and sent when the window opens.
func TestUrgentScenario6(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	for range 4 {
		r.send(4096)
		r.done()
	}
	r.acts = nil
	r.urge(500)
	r.expect("cdc+B+P")
	r.send(1000)
	r.done()
	r.expect("")
	r.got(16384)
	r.expect("cdc+P+U")
	r.done()
	r.expect("")
	r.got(500)
	r.expect("cdc")
}

// TestUrgentMarks: a mark that has not gone out moves on; one that has makes
// the next wait.
func TestUrgentMarks(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
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
	if m, _ := wire.ParseCDC(r.last); m.Prod.Count != 1+10+1+10+1 {
		t.Errorf("producer cursor %d: the second mark should have moved to the third", m.Prod.Count)
	}
	r.done()
	r.got(22)
	r.expect("cdc")
}

// TestUrgentUpdates: other messages carry no urgent flags while the byte is
// not confirmed, because Linux takes them for another one.
func TestUrgentUpdates(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	r.urge(1)
	r.expect("cdc+P+U")
	r.give(16384, wire.ProdWriterBlocked)
	r.c.Consumed(r.s.now, 16384)
	r.expect("cdc")
}

// TestUrgentWait: a peer that takes everything but never confirms the urgent
// byte does not hold up what follows for ever.
func TestUrgentWait(t *testing.T) {
	wait := DefaultTimers(smc.Server).UrgentWait
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
			r := newRig(t, smc.Server, noTest)
			r.open()
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

// TestUrgentArrives follows what a reader sees: the byte is kept aside, reads
// stop at the mark, and the peer learns at once that it may go on.
func TestUrgentArrives(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	copy(r.c.mem, "abcUdefV")
	kinds := func() (urgent bool) {
		for _, k := range r.kinds() {
			urgent = urgent || k == ActWakeUrgent.String()
		}
		return urgent
	}
	data := func() string {
		a, b := r.c.RecvData()
		return string(a) + string(b)
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) || r.c.AtMark() {
		t.Errorf("before: %v, at mark %v", err, r.c.AtMark())
	}
	r.give(0, wire.ProdUrgentPending)
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrUrgentPending) || !kinds() {
		t.Errorf("announced: %v", err)
	}
	r.acts = nil
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
	r.c.Consumed(r.s.now, 2)
	r.expect("")
	if r.c.AtMark() {
		t.Error("at the mark early")
	}
	r.c.Consumed(r.s.now, 1)
	r.expect("cdc")
	if m, _ := wire.ParseCDC(r.last); m.Cons.Count != 4 {
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
	r.c.Consumed(r.s.now, 3)
	if r.c.AtMark() {
		t.Error("still at the mark")
	}
	// Alone it is confirmed on arrival, read or not.
	r.acts = nil
	r.give(1, prodUrgent)
	r.expect("cdc")
	if m, _ := wire.ParseCDC(r.last); m.Cons.Count != 8 {
		t.Errorf("consumer cursor %d, want 8", m.Cons.Count)
	}
	if err := r.c.ReadErr(); err != nil || data() != "" {
		t.Errorf("%v, %q", err, data())
	}
	r.do("D")
	if u, err := r.c.Urgent(false); u != 'V' || err != nil {
		t.Errorf("after the end of file: %q, %v", u, err)
	}
	r.done()
	r.do("close")
	r.expect("cdc+C") // no unread data, no reset
}

// TestUrgentInline: with the option the byte stays in the stream; reads stop
// before it, and reading it confirms it.
func TestUrgentInline(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	copy(r.c.mem, "abcUdef")
	r.c.SetUrgentInline(true)
	r.give(4, prodUrgent)
	a, _ := r.c.RecvData()
	if string(a) != "abc" || r.c.AtMark() {
		t.Errorf("%q, at mark %v", a, r.c.AtMark())
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) {
		t.Errorf("urgent byte inline: %v", err)
	}
	r.c.Consumed(r.s.now, 3)
	r.expect("")
	if a, _ = r.c.RecvData(); string(a) != "U" || !r.c.AtMark() {
		t.Errorf("%q, at mark %v", a, r.c.AtMark())
	}
	r.c.SetUrgentInline(false) // too late for this one
	r.c.Consumed(r.s.now, 1)
	r.expect("cdc")
	if r.c.AtMark() {
		t.Error("still at the mark")
	}
}

// TestUrgentFailover: an urgent byte that was lost with its link is announced
// again on the other.
func TestUrgentFailover(t *testing.T) {
	s, srv, cli := pair(t, 1, 2, 2, noTest)
	c := srv.c
	a, _, _ := c.SendSpace(4, 0)
	copy(a, "abcU")
	c.ProducedUrgent(s.now, 4)
	srv.h.acts = c.g.TakeActions(srv.h.acts)
	c.g.LinkFailed(s.now, c.link, errors.New("cable"))
	srv.h.drain()
	s.settle()
	if u, err := cli.c.Urgent(false); u != 'U' || err != nil {
		t.Errorf("urgent byte %q, %v", u, err)
	}
	if a, _ := cli.c.RecvData(); string(a) != "abc" {
		t.Errorf("data %q", a)
	}
}

// TestUrgentRandom sends urgent bytes both ways among data, with readers of
// all habits and a link that fails: no byte is lost, repeated or out of its
// place, and nobody stops.
func TestUrgentRandom(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s, srv, cli := pair(t, seed, 2, 2, noTest)
			s.maxDelay = []time.Duration{0, 50 * time.Microsecond, time.Millisecond}[seed%3]
			const total = 60000
			type end struct {
				*app
				marks map[uint64]bool
				pos   uint64
			}
			ends := [2]*end{{app: srv, marks: map[uint64]bool{}}, {app: cli, marks: map[uint64]bool{}}}
			for i, e := range ends {
				e.c.SetUrgentInline(seed&4 != 0)
				other := ends[1-i]
				var step func()
				step = func() {
					if a, b, _ := e.c.SendSpace(1, 3000); e.wrote < total && len(a)+len(b) > 0 {
						n := min(1+s.rng.IntN(3000), len(a)+len(b), total-int(e.wrote))
						for k := range n {
							p := a
							j := k
							if k >= len(a) {
								p, j = b, k-len(a)
							}
							p[j] = streamByte(e.id, e.h.role, e.wrote)
							e.wrote++
						}
						if s.rng.IntN(4) == 0 {
							e.marks[e.wrote-1] = true
							e.c.ProducedUrgent(s.now, n)
						} else {
							e.c.Produced(s.now, n)
						}
					}
					if u, err := e.c.Urgent(false); err == nil && u != streamByte(e.id, other.h.role, e.c.urgent-1) {
						t.Fatalf("urgent byte %#x", u)
					}
					for s.rng.IntN(3) > 0 {
						a, _ := e.c.RecvData()
						if len(a) == 0 {
							break
						}
						for ; e.pos < e.c.rcons; e.pos++ {
							if !other.marks[e.pos] || e.c.uinline {
								t.Fatalf("byte %d was taken out of the stream", e.pos)
							}
						}
						n := 1 + s.rng.IntN(len(a))
						for k, got := range a[:n] {
							if want := streamByte(e.id, other.h.role, e.pos+uint64(k)); got != want {
								t.Fatalf("byte %d: %#x, want %#x", e.pos+uint64(k), got, want)
							}
						}
						e.pos += uint64(n)
						e.c.Consumed(s.now, n)
					}
					e.h.drain()
					if e.wrote < total || e.c.rcons < total {
						s.after(time.Duration(s.rng.IntN(300))*time.Microsecond, step)
					}
				}
				step()
			}
			if seed%2 == 0 {
				s.after(3*time.Millisecond, func() {
					srv.h.g.LinkFailed(s.now, srv.h.g.links[int(seed/2)%2], errors.New("broken"))
					srv.h.drain()
				})
			}
			s.run(20*time.Second, func() bool { return srv.c.rcons == total && cli.c.rcons == total })
			for _, e := range ends {
				if e.c.rcons != total || e.wrote != total {
					t.Errorf("%s: read %d, wrote %d, state %s", e.h.role, e.c.rcons, e.wrote, e.c.State())
				}
			}
		})
	}
}
