// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"sync/atomic"
	"time"

	"smcr/guard"
	"smcr/userstack/internal/mempool"
)

const (
	// trimAfter is how long memory must be unused before it is given back. A page that is
	// needed again costs some microseconds.
	trimAfter = 2 * time.Second
	// quietConns is how many connections must begin or end before the Go heap is collected at
	// once. For fewer, the trimmer waits for quietWait.
	quietConns = 64
	quietWait  = time.Minute
)

// trimmer gives back memory that has not been used for a while. Its timer runs only while
// there is such memory, so an idle stack does nothing.
//
//	what                                | goes back when unused for trimAfter
//	------------------------------------+-------------------------------------
//	buffers in the pool                 | to the system
//	RMB elements that no connection has | their pages
//	send memory                         | see sendSlab
//	the Go heap                         | see quiet
type trimmer struct {
	guard  *guard.Guard
	groups func(now time.Time) (again bool) // gives back unused memory of the link groups
	pool   *mempool.Pool
	armed  atomic.Bool
	conns  atomic.Uint64 // connections that began or ended

	mu     sync.Mutex
	quiet  func() // called after there were some, when no more do
	timer  *time.Timer
	closed bool

	run        sync.Mutex // held by tick
	last, told uint64     // conns at the last tick, and when quiet was called
	toldAt     time.Time
}

// poke makes the trimmer run after a while.
func (t *trimmer) poke() {
	if t.armed.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.armed.Swap(true) {
		return
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(trimAfter, t.tick)
		return
	}
	t.timer.Reset(trimAfter)
}

// count counts a connection that has begun or ended.
func (t *trimmer) count() {
	t.conns.Add(1)
	t.poke()
}

// onQuiet makes the trimmer call f after many connections have begun or ended, when no more
// do.
func (t *trimmer) onQuiet(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quiet = f
}

func (t *trimmer) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (t *trimmer) tick() {
	t.run.Lock()
	defer t.run.Unlock()
	again := false
	if t.guard.Do("the return of memory", func() { again = t.trim(time.Now()) }) != nil {
		return // the timer is set: it does not run again
	}
	t.armed.Store(false)
	// A poke in the meantime has been served, or sets the timer again.
	if again || t.conns.Load() != t.last {
		t.poke()
	}
}

// trim gives back what is possible, and reports whether something is left for later.
func (t *trimmer) trim(now time.Time) (again bool) {
	again = t.groups(now)
	again = t.pool.Trim(now.Add(-trimAfter)) || again

	n := t.conns.Load()
	still := n == t.last
	t.last = n
	t.mu.Lock()
	quiet := t.quiet
	t.mu.Unlock()
	switch more := n - t.told; {
	case more == 0 || quiet == nil:
	case still && (more >= quietConns || now.Sub(t.toldAt) >= quietWait):
		t.told, t.toldAt = n, now
		quiet()
	default:
		again = true
	}
	return again
}
