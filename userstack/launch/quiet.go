// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"
	"time"
)

const (
	// quietAfter is for how long no connection may begin or end before Quiet is
	// called.
	quietAfter = 2 * time.Second
	// quietConns is how many have to have begun or ended; fewer are waited for as
	// long as quietWait.
	quietConns = 64
	quietWait  = time.Minute
)

// quiet calls f when connections have come to rest. Its timer runs only until
// then.
type quiet struct {
	f func() // nil: nothing is to be called

	mu     sync.Mutex
	conns  int // that began or ended since f was called
	seen   int // of these, when the timer was set
	timer  *time.Timer
	armed  bool
	closed bool
	called time.Time
}

// count notes that a connection has begun or ended.
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
		q.timer = time.AfterFunc(d, q.tick)
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
