// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync/atomic"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/internal/mempool"
	"smcr/userstack/simfabric"
)

// afterTrim is longer than a stack keeps unused memory.
const afterTrim = 3 * trimAfter

// held returns the memory of the buffers of a stack: RMBs and send buffers, used or kept
// for reuse.
func held(t *testing.T, s *side) (rmbs, sends, pool int) {
	t.Helper()
	add := func(sum *int, b []byte) {
		n := rdmaverbs.HeldBytes(b)
		if n < 0 {
			t.Skip("the system does not tell which pages take memory")
		}
		*sum += n
	}
	s.regions(func(r *region) {
		if r.lnk != nil {
			add(&rmbs, r.mem)
		} else {
			add(&sends, r.mem)
		}
	})
	for _, mem := range s.MemoryKept() {
		add(&pool, mem)
	}
	return rmbs, sends, pool
}

// TestTrimBurst: many connections fill their buffers and close. Some time later the
// stacks have returned the memory, have called Quiet once, and do nothing more. New
// connections work as before.
func TestTrimBurst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		var quiet atomic.Int32
		b.client.OnQuiet(func() { quiet.Add(1) })
		const n = 100 // more than the pools can keep
		type pair struct{ c, s *end }
		var open []pair
		for range n {
			c, s := b.connect()
			open = append(open, pair{c, s})
		}
		for i, p := range open {
			b.exchange(p.c, p.s, pattern(uint64(i), 150<<10))
			b.exchange(p.s, p.c, pattern(uint64(n+i), 150<<10))
		}
		for _, s := range []*side{b.client, b.server} {
			if rmbs, _, _ := held(t, s); rmbs < n*64<<10 {
				t.Errorf("%s: the RMBs take %d bytes: the connections have not used them", s.id, rmbs)
			}
		}
		for _, p := range open {
			b.finish(p.c, p.s)
		}
		time.Sleep(afterTrim)
		for _, s := range []*side{b.client, b.server} {
			if rmbs, sends, pool := held(t, s); rmbs+sends+pool > 0 {
				t.Errorf("%s: RMBs take %d bytes, send buffers %d, the pool %d", s.id, rmbs, sends, pool)
			}
			if s.s.trim.armed.Load() {
				t.Errorf("%s: the timer still runs", s.id)
			}
		}
		if q := quiet.Load(); q != 1 {
			t.Errorf("Quiet was called %d times", q)
		}
		c, s := b.connect()
		b.exchange(c, s, pattern(1, 150<<10))
		b.exchange(s, c, pattern(2, 150<<10))
		b.finish(c, s)
	})
}

// TestTrimIdle: an idle connection has no send memory, whatever it has sent before. Small
// messages use only the beginning of a chunk.
func TestTrimIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, nil)
		c, s := b.connect()
		for i := range 100 {
			b.exchange(c, s, pattern(uint64(i), 1000))
			b.exchange(s, c, pattern(uint64(i), 1000))
			time.Sleep(time.Millisecond) // until the message is confirmed
		}
		_, small, _ := held(t, b.client)
		if small == 0 || small > 16<<10 {
			t.Errorf("messages of 1000 bytes take %d bytes of the send buffer", small)
		}
		for i := range 3 {
			b.exchange(c, s, pattern(uint64(i), 300<<10))
			time.Sleep(afterTrim)
			if _, sends, _ := held(t, b.client); sends > 0 {
				t.Errorf("the send buffer of an idle connection takes %d bytes", sends)
			}
			if b.client.s.trim.armed.Load() {
				t.Error("the timer still runs")
			}
		}
		b.finish(c, s)
	})
}

// TestElementsAreZero: no connection finds a byte of an earlier one in its RMB element.
// This includes bytes that the earlier program read or did not read, and bytes that its
// peer wrote without an announcement, before or after the element was released.
func TestElementsAreZero(t *testing.T) {
	for _, wait := range []time.Duration{0, afterTrim} {
		t.Run(wait.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, nil)
				keep, keeps := b.connect() // keeps the group and its RMB
				var rmb *region
				b.server.regions(func(r *region) {
					if r.lnk != nil {
						rmb = r
					}
				})
				g := b.server.Groups()[0]
				for i, n := range []int{1, 5000, 64 << 10, 200 << 10} {
					c, s := b.connect()
					dirty := 0
					g.do(func(time.Time) {
						for _, v := range rmb.mem[64<<10:] { // the first element is in use
							if v != 0 {
								dirty++
							}
						}
					})
					if dirty > 0 {
						t.Errorf("round %d: %d bytes are not zero", i, dirty)
					}
					b.exchange(c, s, pattern(uint64(i), n))
					g.do(func(time.Time) { rmb.mem[64<<10+100+50<<10] = 1 }) // in the second element, without an announcement
					b.finish(c, s)
					time.Sleep(wait)
					g.do(func(time.Time) { rmb.mem[64<<10+33<<10] = 2 }) // after the element was released
				}
				b.finish(keep, keeps)
			})
		})
	}
}

// TestTrimAllocs: the work of the trimmer for each message allocates nothing.
func TestTrimAllocs(t *testing.T) {
	var s shared
	s.pool = mempool.New(s.trim.poke)
	defer s.trim.close()
	s.trim.poke()
	if n := testing.AllocsPerRun(100, s.trim.poke); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPinnedMemoryStays: a device that accesses memory by itself has pinned the RMBs (RFC
// 7609, section 4.2). Their pages are not given back, because the device would still use the
// old ones.
func TestPinnedMemoryStays(t *testing.T) {
	for _, pinned := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			b := newBedOn(t, simfabric.Config{Pinned: pinned}, nil)
			keep, keeps := b.connect() // keeps the group and its RMB
			c, s := b.connect()
			b.exchange(c, s, pattern(1, 200<<10))
			b.exchange(s, c, pattern(2, 200<<10))
			b.finish(c, s)
			before, _, _ := held(t, b.server)
			if before < 64<<10 {
				t.Fatalf("RMBs take %d bytes", before)
			}
			time.Sleep(afterTrim)
			after, _, _ := held(t, b.server)
			if kept := after == before; kept != pinned {
				t.Errorf("pinned %v: RMBs took %d bytes and take %d", pinned, before, after)
			}
			b.finish(keep, keeps)
		})
	}
}
