// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs"

	"pgregory.net/rapid"
)

func TestPSN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := psn(rapid.Uint32Range(0, psnMask).Draw(t, "psn"))
		n := rapid.IntRange(-psnHalf, psnHalf-1).Draw(t, "distance")
		q := p.add(n)
		if q > psnMask {
			t.Fatalf("%#x has more than 24 bits", q)
		}
		if d := q.sub(p); d != n {
			t.Fatalf("distance %d, want %d", d, n)
		}
		if q.add(-n) != p {
			t.Fatal("add is not undone")
		}
		if n != -psnHalf && (q.before(p) != (n < 0) || p.before(q) != (n > 0)) {
			t.Fatalf("order of %#x and %#x", p, q)
		}
		k := rapid.IntRange(0, psnHalf-1).Draw(t, "length")
		if got, want := q.in(p, p.add(k)), n >= 0 && n < k; got != want {
			t.Fatalf("%#x in [%#x, +%d): %v", q, p, k, got)
		}
	})
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192, 14: 67108864, 15: 134217728, 31: 4096 << 31, 32: 0,
	} {
		if got := ackTimeout(code); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
}

func TestWindow(t *testing.T) {
	w := newWindow(256)
	w.onLoss(1000)
	w.onLoss(1000) // the same event
	if w.size != 128 {
		t.Fatalf("window %d after a loss, want 128", w.size)
	}
	w.acked(100, 900)
	w.onLoss(1100) // still before the packets that were sent at the first loss
	if w.size != 128 {
		t.Fatalf("window %d, want one reduction", w.size)
	}
	w.acked(100, 1000)
	w.onLoss(1200)
	if w.size != 66 {
		t.Fatalf("window %d after a second loss, want 66", w.size)
	}
	w.acked(300, 1300)
	w.onTimeout(1400)
	if w.size != windowMin {
		t.Fatalf("window %d after silence, want %d", w.size, windowMin)
	}
	w.answered(false)
	// It doubles to half the last size, then grows slowly.
	w.acked(4, 1400)
	w.acked(8, 1410)
	if w.size != 16 {
		t.Errorf("window %d, want it doubled twice", w.size)
	}
	for range 10000 {
		w.acked(w.size, 1400)
	}
	if w.size != 256 {
		t.Errorf("window %d in the end, want the limit", w.size)
	}
	// A suspected loss that was none changes nothing.
	w.onTimeout(1500)
	w.onTimeout(1500)
	if w.answered(true); w.size != 256 {
		t.Errorf("window %d after a silence without loss", w.size)
	}
	w.onSuspectedLoss(1500)
	if w.answered(false); w.size != 128 {
		t.Errorf("window %d after a probe that found a loss", w.size)
	}
}

func TestRoundTrip(t *testing.T) {
	r := newRoundTrip()
	if d := r.probeDelay(); d != probeInitial {
		t.Errorf("probe delay %v before the first round trip, want %v", d, probeInitial)
	}
	var now instant
	measure := func(p psn, rtt time.Duration) {
		r.begin(now, p)
		r.begin(now.add(rtt/2), p+1) // only one packet is timed
		r.acknowledged(now.add(rtt), p)
		now = now.add(rtt)
		r.acknowledged(now, p+1)
	}
	for i := range psn(50) {
		measure(i, time.Millisecond)
	}
	if d := r.probeDelay(); d != probeMin {
		t.Errorf("probe delay %v with a steady round trip, want %v", d, probeMin)
	}
	r.begin(now, 100)
	r.cancel()
	if r.acknowledged(now.add(time.Second), 101); r.probeDelay() != probeMin {
		t.Errorf("probe delay %v after a packet that was sent twice", r.probeDelay())
	}
	measure(102, 100*time.Millisecond)
	if d := r.probeDelay(); d < 50*time.Millisecond {
		t.Errorf("probe delay %v after a late answer", d)
	}
}

// TestCQ compares the ring with a slice.
func TestCQ(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCQ(new(Device), rapid.IntRange(1, 5).Draw(t, "depth"), nil)
		if err := c.attach(rapid.IntRange(0, 4).Draw(t, "attached")); err != nil {
			t.Fatal(err)
		}
		var want []uint64
		next := uint64(0)
		for range 50 {
			if rapid.Bool().Draw(t, "push") {
				wake, _ := c.push(rdmaverbs.WC{ID: next})
				if wake != (len(want) == 0) {
					t.Fatalf("wake %v with %d queued", wake, len(want))
				}
				want = append(want, next)
				next++
				continue
			}
			wcs := make([]rdmaverbs.WC, rapid.IntRange(0, 4).Draw(t, "poll"))
			n := c.Poll(wcs)
			if n != min(len(wcs), len(want)) {
				t.Fatalf("polled %d of %d", n, len(want))
			}
			for i, wc := range wcs[:n] {
				if wc.ID != want[i] {
					t.Fatalf("completion %d, want %d", wc.ID, want[i])
				}
			}
			want = want[n:]
		}
	})
}

// TestTimers checks that queue pairs are called in time and in order, with
// deadlines that move.
func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		now := func() instant { return instant(time.Since(epoch)) }
		type call struct {
			q  *qp
			at time.Duration
		}
		var calls []call
		tm := newTimers(now, func(q *qp) { calls = append(calls, call{q, time.Since(epoch)}) })
		q := make([]*qp, 5)
		for i := range q {
			q[i] = &qp{timerIndex: -1}
		}
		ms := func(n int) instant { return instant(n) * instant(time.Millisecond) }
		tm.set(q[0], ms(30))
		tm.set(q[1], ms(10))
		tm.set(q[2], ms(20))
		tm.set(q[0], ms(40)) // not later than known: ignored
		tm.set(q[2], ms(5))  // earlier
		tm.set(q[3], ms(15))
		tm.remove(q[3])
		time.Sleep(time.Second)
		tm.set(q[4], ms(1)) // long ago
		time.Sleep(time.Second)
		tm.close()
		want := []call{{q[2], 5 * time.Millisecond}, {q[1], 10 * time.Millisecond}, {q[0], 30 * time.Millisecond}, {q[4], time.Second}}
		if !slices.Equal(calls, want) {
			t.Errorf("called %v, want %v", calls, want)
		}
	})
}
