// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"smcr/rdmaverbs"
)

// maxMR is the largest number of memory regions of a device.
const maxMR = 1 << 16

// keysKept is how many keys of closed regions are not used again for now. A peer
// that still has such a key does not reach the memory of a new region.
const keysKept = 1 << 10

// mrTable finds memory regions by key. All 32 bits of a key are random, so a key
// says nothing about other keys, and the table cannot use a part of it as an index.
//
// The table is a hash table with open addressing. Keys are random, so the low bits
// of a key are its hash value. find takes no lock: it reads the slots atomically.
// insert and remove hold mu. When the slots are half used, insert makes a new table;
// a find that still reads the old one may miss only a region that was registered
// after find began, or return a region that is closed, which [mr.acquire] refuses.
type mrTable struct {
	slots atomic.Pointer[mrSlots]

	mu   sync.Mutex
	open int      // regions in the table
	used int      // slots that are not empty
	kept []uint32 // keys of closed regions, a ring
	last int      // index in kept of the key that was put there last
}

// mrSlots is an array of slots, with a power of two as length. An empty slot ends a
// search. A slot whose region was closed has removedMR.
type mrSlots []atomic.Pointer[mr]

// removedMR has key 0, which no region has.
var removedMR = new(mr)

const minMRSlots = 64

// find returns the region with that key, or nil.
func (t *mrTable) find(key uint32) *mr {
	p := t.slots.Load()
	if p == nil || key == 0 {
		return nil
	}
	slots := *p
	mask := uint32(len(slots) - 1)
	for i := key & mask; ; i = (i + 1) & mask {
		if m := slots[i].Load(); m == nil || m.key == key {
			return m
		}
	}
}

// insert gives m a key and adds it. It fails with rdmaverbs.ErrNoResources if the
// table is full.
func (t *mrTable) insert(m *mr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == maxMR {
		return fmt.Errorf("softroce: %d memory regions are registered: %w", maxMR, rdmaverbs.ErrNoResources)
	}
	t.makeRoom()
	for m.key == 0 || t.find(m.key) != nil || slices.Contains(t.kept, m.key) {
		m.key = randomUint32()
	}
	t.put(*t.slots.Load(), m)
	t.open++
	return nil
}

// put stores m in the first slot that is free for its key. mu is held.
func (t *mrTable) put(slots mrSlots, m *mr) {
	mask := uint32(len(slots) - 1)
	for i := m.key & mask; ; i = (i + 1) & mask {
		switch slots[i].Load() {
		case nil:
			t.used++
			fallthrough
		case removedMR:
			slots[i].Store(m)
			return
		}
	}
}

// makeRoom replaces the slots if one more would make more than half of them used.
// mu is held.
func (t *mrTable) makeRoom() {
	var old mrSlots
	if p := t.slots.Load(); p != nil {
		if old = *p; 2*(t.used+1) <= len(old) {
			return
		}
	}
	n := minMRSlots
	for n < 4*(t.open+1) {
		n *= 2
	}
	slots := make(mrSlots, n)
	t.used = 0
	for i := range old {
		if m := old[i].Load(); m != nil && m != removedMR {
			t.put(slots, m)
		}
	}
	t.slots.Store(&slots)
}

// remove removes m, which is in the table.
func (t *mrTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	mask := uint32(len(slots) - 1)
	i := m.key & mask
	for slots[i].Load() != m {
		i = (i + 1) & mask
	}
	slots[i].Store(removedMR)
	t.open--
	if len(t.kept) < keysKept {
		t.kept = append(t.kept, m.key)
		return
	}
	t.last = (t.last + 1) % keysKept
	t.kept[t.last] = m.key
}

// randomUint32 returns 32 bits that nobody can predict.
func randomUint32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// randomUint64 returns 64 bits that nobody can predict.
func randomUint64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}
