// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"math"
	"math/bits"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"

	"pgregory.net/rapid"
)

// newTestPD is a domain of a device without a wire.
func newTestPD() *pd { return &pd{dev: new(Device)} }

// register registers buf, and closes the region at the end of the test if the test
// does not do it.
func (p *pd) register(t testing.TB, buf []byte) *mr {
	t.Helper()
	m, err := p.RegisterMR(buf, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m.(*mr)
}

// TestMRTable compares the table with a map.
func TestMRTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table mrTable
		want := map[uint32]*mr{}
		var keys []uint32
		for range 600 {
			switch k := rapid.IntRange(0, 4).Draw(t, "step"); {
			case k < 3:
				m := new(mr)
				if err := table.insert(m); err != nil {
					t.Fatal(err)
				}
				if m.key == 0 || want[m.key] != nil {
					t.Fatalf("key %#x", m.key)
				}
				want[m.key] = m
				keys = append(keys, m.key)
			case len(keys) > 0:
				i := rapid.IntRange(0, len(keys)-1).Draw(t, "which")
				if m := want[keys[i]]; m != nil {
					table.remove(m)
					delete(want, keys[i])
				}
			}
		}
		for _, k := range keys {
			if m := table.find(k); m != want[k] {
				t.Fatalf("key %#x finds %p, want %p", k, m, want[k])
			}
			if m := table.find(k + 1); m != want[k+1] {
				t.Fatalf("key %#x, which is beside one in use, finds %p", k+1, m)
			}
		}
		if m := table.find(0); m != nil {
			t.Fatalf("key 0 finds %p", m)
		}
		if table.open != len(want) || 2*table.used > len(*table.slots.Load()) {
			t.Fatalf("%d regions and %d used slots of %d, want %d regions", table.open, table.used, len(*table.slots.Load()), len(want))
		}
	})
}

// TestMRTableConcurrent: a region is found from its registration to its close, while
// others are registered and closed.
func TestMRTableConcurrent(t *testing.T) {
	p := newTestPD()
	buf := make([]byte, 64)
	stays := p.register(t, buf)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if m := p.dev.mrs.find(stays.key); m != stays {
					t.Errorf("found %p, want %p", m, stays)
					return
				}
			}
		})
	}
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			var open []*mr
			for i := range 5000 {
				m, err := p.RegisterMR(buf, 0)
				if err != nil {
					t.Error(err)
					return
				}
				open = append(open, m.(*mr))
				if p.dev.mrs.find(m.RKey()) != m {
					t.Errorf("key %#x is not found", m.RKey())
					return
				}
				if i%100 != 99 {
					continue
				}
				for _, m := range open {
					m.Close()
					if p.dev.mrs.find(m.key) != nil {
						t.Errorf("key %#x is found after close", m.key)
					}
				}
				open = open[:0]
			}
		})
	}
	writers.Wait()
	close(done)
	wg.Wait()
}

// TestMRKeys: keys differ, none is used again soon, and each of their 32 bits is
// random, also for regions that are registered one after the other.
func TestMRKeys(t *testing.T) {
	p := newTestPD()
	buf := make([]byte, 64)
	const rounds = 1 << 14
	var ones, changes [32]int
	seen := map[uint32]bool{}
	last := uint32(0)
	for range rounds {
		m, err := p.RegisterMR(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		k := m.RKey()
		if k == 0 || k != m.LKey() || p.dev.mrs.find(k) != m {
			t.Fatalf("key %#x", k)
		}
		seen[k] = true
		for i := range 32 {
			ones[i] += int(k >> i & 1)
			changes[i] += int((k ^ last) >> i & 1)
		}
		last = k
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if p.dev.mrs.find(k) != nil {
			t.Fatalf("key %#x is found after close", k)
		}
	}
	// Of 2^14 random numbers of 32 bits, 0.03 pairs are equal on average.
	if len(seen) < rounds-3 {
		t.Errorf("%d different keys of %d", len(seen), rounds)
	}
	checkRandomBits(t, "key", ones[:], changes[:], rounds)
	if err := p.Close(); err != nil {
		t.Errorf("domain does not close: %v", err)
	}
}

// TestMRKeysKept: a key is not used again as long as it is among the keysKept that
// were closed last.
func TestMRKeysKept(t *testing.T) {
	var table mrTable
	var closed []uint32
	for range 2*keysKept + 10 {
		m := new(mr)
		if err := table.insert(m); err != nil {
			t.Fatal(err)
		}
		table.remove(m)
		closed = append(closed, m.key)
	}
	kept := map[uint32]bool{}
	for _, k := range table.kept {
		kept[k] = true
	}
	for _, k := range closed[len(closed)-keysKept:] {
		if !kept[k] {
			t.Errorf("key %#x may be used again", k)
		}
	}
	if len(kept) != keysKept {
		t.Errorf("%d keys are kept, want %d", len(kept), keysKept)
	}
}

// checkRandomBits checks that each bit of n numbers is as often set as not, and
// differs from that of the number before as often as not. A fair bit is 8 standard
// deviations away once in 10^15 tests.
func checkRandomBits(t *testing.T, what string, ones, changes []int, n int) {
	t.Helper()
	far := 4 * int(math.Sqrt(float64(n)))
	for i := range ones {
		for _, k := range []int{ones[i], changes[i]} {
			if d := k - n/2; d < -far || d > far {
				t.Errorf("bit %d of the %s: set %d times of %d, changed %d times", i, what, ones[i], n, changes[i])
			}
		}
	}
}

// TestMRAddr: the address that a peer gets is random, at the start of a page, and not
// that of the memory. A region does not reach beyond the last address.
func TestMRAddr(t *testing.T) {
	p := newTestPD()
	buf, err := rdmaverbs.AllocBuffer(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer rdmaverbs.FreeBuffer(buf)
	page := uint64(os.Getpagesize())
	low := bits.TrailingZeros64(page)
	const rounds = 1 << 12
	var ones, changes [64]int
	seen := map[uint64]bool{}
	last := uint64(0)
	for range rounds {
		m, err := p.RegisterMR(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		a := m.Addr()
		if a == 0 || a%page != 0 || a+uint64(len(buf)) < a {
			t.Fatalf("address %#x of %d bytes", a, len(buf))
		}
		if a == uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) {
			t.Fatalf("address %#x is that of the memory", a)
		}
		seen[a] = true
		for i := range 64 {
			ones[i] += int(a >> i & 1)
			changes[i] += int((a ^ last) >> i & 1)
		}
		last = a
		m.Close()
	}
	if len(seen) != rounds {
		t.Errorf("%d different addresses of %d", len(seen), rounds)
	}
	checkRandomBits(t, "address", ones[low:], changes[low:], rounds)
}

// TestGuessedKey: a peer that guesses a key, or uses a key with another address, writes and
// reads nothing. Each guess is counted and ends its queue pair.
func TestGuessedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pair := newSimNetwork(1, simFaults{delay: time.Microsecond}).pair(t)
		guesses := uint64(0)
		guess := func(op rdmaverbs.Opcode, target func(m *mr) (addr uint64, key uint32)) {
			t.Helper()
			a, b := verbstest.Connect(t, pair, verbstest.Config{})
			remote, mem := b.MR(64, verbstest.All)
			local, data := a.MR(8, verbstest.All)
			copy(mem, "secret")
			copy(data, "forged")
			addr, key := target(remote.(*mr))
			a.Send(rdmaverbs.SendWR{ID: 1, Op: op, SG: [2]rdmaverbs.SGE{{MR: local, Len: 8}}, RemoteAddr: addr, RKey: key})
			a.Fails(a.SendCQ, 1, rdmaverbs.StatusRemAccessErr)
			if s := b.QP.State(); s != rdmaverbs.QPSErr {
				t.Errorf("state %d", s)
			}
			if !strings.HasPrefix(string(mem), "secret") || !strings.HasPrefix(string(data), "forged") {
				t.Errorf("%q at the peer, %q here", data, mem)
			}
			guesses++
			if r := b.Dev.(*Device).Refused(); r != (rdmaverbs.Refused{Key: guesses}) {
				t.Errorf("counted %+v, want %d guesses", r, guesses)
			}
		}
		for _, op := range []rdmaverbs.Opcode{rdmaverbs.OpWrite, rdmaverbs.OpRead} {
			for bit := range 32 {
				guess(op, func(m *mr) (uint64, uint32) { return m.addr, m.key ^ 1<<bit })
			}
			guess(op, func(m *mr) (uint64, uint32) { return m.addr, 0 })
			guess(op, func(m *mr) (uint64, uint32) { return 0, m.key })
			guess(op, func(m *mr) (uint64, uint32) { return m.addr + 57, m.key })
			guess(op, func(m *mr) (uint64, uint32) {
				return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.buf)))), m.key
			})
		}
	})
}

func TestMRLimit(t *testing.T) {
	p := newTestPD()
	buf := make([]byte, 64)
	n := 0
	var last rdmaverbs.MR
	var err error
	for err == nil {
		var m rdmaverbs.MR
		if m, err = p.RegisterMR(buf, 0); err == nil {
			last = m
			n++
		}
	}
	if !errors.Is(err, rdmaverbs.ErrNoResources) || n != maxMR {
		t.Errorf("%d regions, then %v", n, err)
	}
	last.Close()
	if m, err := p.RegisterMR(buf, 0); err != nil || p.dev.mrs.find(m.RKey()) != m {
		t.Errorf("after one was closed: %v", err)
	}
}

// BenchmarkFindMR looks up keys of a device with as many regions as an idle and as a
// busy stack has.
func BenchmarkFindMR(b *testing.B) {
	for _, n := range []struct {
		name    string
		regions int
	}{{"regions=8", 8}, {"regions=4096", 4096}} {
		b.Run(n.name, func(b *testing.B) {
			p := newTestPD()
			keys := make([]uint32, n.regions)
			for i := range keys {
				keys[i] = p.register(b, make([]byte, 64)).key
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if p.dev.mrs.find(keys[i]) == nil {
					b.Fatal("not found")
				}
				if i++; i == len(keys) {
					i = 0
				}
			}
		})
	}
}
