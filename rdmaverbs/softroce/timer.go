// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"container/heap"
	"sync"
	"time"
)

// timers calls queue pairs when their deadlines pass, with one goroutine and
// one heap for each device. A deadline in the heap only becomes earlier. If the
// deadline of a queue pair became later, the queue pair is called too early and
// sets its deadline again. So a packet that extends a deadline costs nothing
// here.
type timers struct {
	now    func() instant
	expire func(*qp)

	mu   sync.Mutex
	heap deadlines
	next instant // when the goroutine will look next
	kick chan struct{}
	quit chan struct{}
	done chan struct{}
}

func newTimers(now func() instant, expire func(*qp)) *timers {
	t := &timers{
		now:    now,
		expire: expire,
		next:   never,
		kick:   make(chan struct{}, 1),
		quit:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	go t.run() // No guard: expire has one.
	return t
}

// set schedules a call of q at time at or earlier. No lock of q is held. Any
// goroutine may call it.
func (t *timers) set(q *qp, at instant) {
	t.mu.Lock()
	switch {
	case q.timerIndex < 0:
		q.timerAt = at
		heap.Push(&t.heap, q)
	case at < q.timerAt:
		q.timerAt = at
		heap.Fix(&t.heap, q.timerIndex)
	}
	early := at < t.next
	if early {
		t.next = at
	}
	t.mu.Unlock()
	if early {
		select {
		case t.kick <- struct{}{}:
		default:
		}
	}
}

func (t *timers) remove(q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.timerIndex >= 0 {
		heap.Remove(&t.heap, q.timerIndex)
	}
}

// close stops the goroutine and waits for it.
func (t *timers) close() {
	close(t.quit)
	<-t.done
}

func (t *timers) run() {
	defer close(t.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := t.now()
		for q := t.pop(now); q != nil; q = t.pop(now) {
			t.expire(q)
		}
		t.mu.Lock()
		t.next = never
		if len(t.heap) > 0 {
			t.next = t.heap[0].timerAt
		}
		wait := time.Hour
		if t.next != never {
			wait = min(wait, t.next.since(t.now()))
		}
		t.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-t.kick:
		case <-t.quit:
			return
		}
	}
}

// pop removes and returns a queue pair whose deadline has passed, or returns
// nil.
func (t *timers) pop(now instant) *qp {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.heap) == 0 || t.heap[0].timerAt > now {
		return nil
	}
	return heap.Pop(&t.heap).(*qp)
}

// deadlines is a heap of queue pairs by timerAt.
type deadlines []*qp

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].timerAt < h[j].timerAt }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timerIndex, h[j].timerIndex = i, j
}

func (h *deadlines) Push(x any) {
	q := x.(*qp)
	q.timerIndex = len(*h)
	*h = append(*h, q)
}

func (h *deadlines) Pop() any {
	old := *h
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	q.timerIndex = -1
	return q
}
