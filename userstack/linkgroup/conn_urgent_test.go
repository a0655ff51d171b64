// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"smcr/userstack/wire"
)

const prodUrgent = wire.ProdUrgentPending | wire.ProdUrgentPresent

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
	s.runUntilIdle()
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
					if u, err := e.c.Urgent(false); err == nil && u != streamByte(e.id, other.h.role, lastMark(other.marks, e.c.Positions().Received)) {
						t.Fatalf("urgent byte %#x", u)
					}
					for s.rng.IntN(3) > 0 {
						a, _ := e.c.RecvData()
						if len(a) == 0 {
							break
						}
						for ; e.pos < e.c.Positions().Read; e.pos++ {
							if !other.marks[e.pos] || e.c.UrgentInline() {
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
					if e.wrote < total || e.c.Positions().Read < total {
						s.after(time.Duration(s.rng.IntN(300))*time.Microsecond, step)
					}
				}
				step()
			}
			if seed%2 == 0 {
				s.after(3*time.Millisecond, func() {
					srv.h.g.LinkFailed(s.now, srv.h.g.links.list[int(seed/2)%2], errors.New("broken"))
					srv.h.drain()
				})
			}
			s.run(20*time.Second, func() bool { return srv.c.Positions().Read == total && cli.c.Positions().Read == total })
			for _, e := range ends {
				if e.c.Positions().Read != total || e.wrote != total {
					t.Errorf("%s: read %d, wrote %d, state %s", e.h.role, e.c.Positions().Read, e.wrote, e.c.State())
				}
			}
		})
	}
}

// lastMark returns the last of the marked positions before end.
func lastMark(marks map[uint64]bool, end uint64) (last uint64) {
	for pos := range marks {
		if pos < end {
			last = max(last, pos)
		}
	}
	return last
}
