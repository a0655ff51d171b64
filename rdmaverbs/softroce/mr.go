// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"os"
	"sync/atomic"

	"smcr/rdmaverbs"
)

// mr is a memory region. Each access to its bytes, for a received packet or for
// a batch being sent, is between acquire and release, so that Close can wait
// for the access.
type mr struct {
	pd     *pd
	buf    []byte
	addr   uint64 // with which a peer names the first byte, see [newAddr]
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

// Addr is the address with which a peer names the first byte. It is random and not an
// address of the process.
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

// slice returns n bytes at addr, an address of the peer's choice. It returns false if they are
// not all within the region.
func (m *mr) slice(addr uint64, n int) ([]byte, bool) {
	off := addr - m.addr
	if addr < m.addr || off > uint64(len(m.buf)) || uint64(n) > uint64(len(m.buf))-off {
		return nil, false
	}
	return m.buf[off : off+uint64(n) : off+uint64(n)], true
}

// newAddr returns the address of a region of n bytes for the peer: a random one at the
// start of a page. With it, a peer learns nothing about the memory of the process.
func newAddr(n int) uint64 {
	page := uint64(os.Getpagesize())
	for {
		if at := randomUint64() &^ (page - 1); at != 0 && at <= ^uint64(0)-uint64(n) {
			return at
		}
	}
}
