// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"
	"time"

	"smcr/guard"
)

const (
	// quietAfter is how long no connection must begin or end before Quiet is
	// called.
	quietAfter = 2 * time.Second
	// quietConns is the number of connections that must have begun or ended.
	// With fewer, Quiet is called only after quietWait.
	quietConns = 64
	quietWait  = time.Minute
)

// quiet calls f when no connections begin or end any more. Its timer runs only
// until then.
type quiet struct {
	f     func() // may be nil
	guard *guard.Guard

	mu     sync.Mutex
	conns  int // connections that began or ended since the last call of f
	seen   int // value of conns when the timer was set
	timer  *time.Timer
	armed  bool
	closed bool
	called time.Time
}

// count is called when a connection has begun or ended.
func (q *quiet) count() {
	if q.f == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.conns++
	if !q.armed {
		q.arm(quietAfter)
	}
}

// arm sets the timer. mu is held.
func (q *quiet) arm(d time.Duration) {
	if q.closed {
		return
	}
	q.armed, q.seen = true, q.conns
	if q.timer == nil {
		q.timer = time.AfterFunc(d, q.guard.Func("the return of memory", q.tick))
		return
	}
	q.timer.Reset(d)
}

func (q *quiet) tick() {
	if q.due() {
		q.f()
	}
}

func (q *quiet) due() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	now := time.Now()
	wait := quietWait - now.Sub(q.called)
	switch {
	case q.closed:
	case q.conns != q.seen:
		q.arm(quietAfter)
	case q.conns < quietConns && wait > 0:
		q.arm(wait)
	default:
		q.conns, q.called = 0, now
		return true
	}
	return false
}

func (q *quiet) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
}
