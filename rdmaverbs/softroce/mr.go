// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"smcr/rdmaverbs"
)

// mr is a memory region. Each access to its bytes, for a received packet or for
// a batch being sent, is between acquire and release, so that Close can wait
// for the access.
type mr struct {
	pd     *pd
	buf    []byte
	addr   uint64
	access rdmaverbs.Access
	key    uint32

	// state is the number of present accesses. Close sets the bit mrClosing in
	// it; after that the number only falls.
	state atomic.Int64
	idle  chan struct{} // closed when the last access after Close ends
}

const mrClosing = 1 << 62

// LKey is the region's key. Local and remote key are the same.
func (m *mr) LKey() uint32 { return m.key }

// RKey is the key that a peer presents.
func (m *mr) RKey() uint32 { return m.key }

// Addr is the address of the first byte.
func (m *mr) Addr() uint64 { return m.addr }

// Len is the length in bytes.
func (m *mr) Len() int { return len(m.buf) }

// acquire begins an access. It reports whether the region is open.
func (m *mr) acquire() bool {
	for {
		s := m.state.Load()
		if s&mrClosing != 0 {
			return false
		}
		if m.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}

func (m *mr) release() {
	if m.state.Add(-1) == mrClosing {
		close(m.idle)
	}
}

// Close invalidates the key of the region and waits until no packet reads or
// writes its memory. Work requests that still use the region fail with
// StatusLocProtErr. A second Close fails with rdmaverbs.ErrClosed.
func (m *mr) Close() error {
	for {
		s := m.state.Load()
		if s&mrClosing != 0 {
			return fmt.Errorf("softroce: memory region %#x: %w", m.key, rdmaverbs.ErrClosed)
		}
		if !m.state.CompareAndSwap(s, s|mrClosing) {
			continue
		}
		if s != 0 {
			<-m.idle
		}
		m.pd.dev.mrs.remove(m)
		m.pd.release()
		return nil
	}
}

// slice returns n bytes at virtual address addr. It returns false if they are
// not all within the region.
func (m *mr) slice(addr uint64, n int) ([]byte, bool) {
	off := addr - m.addr
	if addr < m.addr || off > uint64(len(m.buf)) || uint64(n) > uint64(len(m.buf))-off {
		return nil, false
	}
	return m.buf[off : off+uint64(n) : off+uint64(n)], true
}

// A key is a slot number and 16 random bits. So the key of a region that was
// closed opens the next region in the same slot only with a probability of 1 to
// 65535.
const (
	mrSlotBits = 16
	maxMR      = 1<<mrSlotBits - 1
)

// mrTable finds memory regions by key.
type mrTable struct {
	mu    sync.RWMutex
	slots []mrSlot
	free  []uint32 // slot numbers; the one that is unused for the longest time is first
}

type mrSlot struct {
	mr  *mr
	tag uint16 // random part of the slot's present or last key
}

func (t *mrTable) insert(m *mr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch {
	case len(t.slots) < maxMR && len(t.free) < mrReuseDelay:
		if len(t.slots) == 0 {
			t.slots = append(t.slots, mrSlot{}) // key 0 is not used
		}
		i = uint32(len(t.slots))
		t.slots = append(t.slots, mrSlot{})
	case len(t.free) > 0:
		i = t.free[0]
		t.free = t.free[1:]
	default:
		return fmt.Errorf("softroce: %d memory regions are registered: %w", maxMR-1, rdmaverbs.ErrNoResources)
	}
	s := &t.slots[i]
	for {
		if tag := uint16(rand.Uint32()); tag != s.tag {
			s.tag = tag
			break
		}
	}
	s.mr = m
	m.key = uint32(s.tag)<<mrSlotBits | i
	return nil
}

// mrReuseDelay is the number of free slots that must be there before one is
// used again.
const mrReuseDelay = 64

func (t *mrTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := m.key & (1<<mrSlotBits - 1)
	if t.slots[i].mr == m {
		t.slots[i].mr = nil
		t.free = append(t.free, i)
	}
}

// find returns the region with that key, or nil.
func (t *mrTable) find(key uint32) *mr {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i := key & (1<<mrSlotBits - 1)
	if int(i) >= len(t.slots) {
		return nil
	}
	if m := t.slots[i].mr; m != nil && m.key == key {
		return m
	}
	return nil
}
