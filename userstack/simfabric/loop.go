// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"smcr/rdmaverbs"
	"smcr/userstack/engine"
)

// Loop is a loop of package engine in the time of a world. It serves the devices of
// [Host.ProviderOn] and the sockets of [Loop.Pair] in rounds:
//
//   - Completions and events of sockets are announced at the beginning of a round.
//   - What is posted is sent in the last part of the round.
//
// Its thread can be delayed wherever a real thread can be delayed, see [Config.Stall].
type Loop struct {
	*engine.Loop
	src  *source
	send *engine.Task
	out  []*qp // queue pairs with requests that are not sent yet; guarded by World.mu
}

// NewLoop starts a loop for the host. See [engine.New] for spin.
func (h *Host) NewLoop(spin time.Duration) *Loop {
	w := h.w
	w.mu.Lock()
	w.lastID++
	src := &source{
		w: w, rng: w.random(atLoop, uint32(w.lastID)),
		wake: make(chan struct{}, 1), resume: make(chan struct{}, 1),
	}
	w.sources = append(w.sources, src)
	w.mu.Unlock()
	l := &Loop{Loop: engine.NewOn(src, spin), src: src}
	l.send = l.LastTask(l.transmit)
	return l
}

// ProviderOn returns the RDMA devices of the host, served by l. The loop must not end
// before the devices are closed.
func (h *Host) ProviderOn(l *Loop) rdmaverbs.Provider { return provider{h, l} }

// transmit sends what was posted.
func (l *Loop) transmit() {
	w := l.src.w
	w.mu.Lock()
	defer w.unlock()
	now := time.Now()
	for i, q := range l.out {
		q.transmit(now)
		l.out[i] = nil
	}
	l.out = l.out[:0]
}

// source has the events of a Loop. It implements rounds.Source.
type source struct {
	w      *World
	rng    *rand.Rand
	wake   chan struct{} // ends a sleep
	woken  atomic.Bool   // Wake was called
	resume chan struct{} // ends a stall
	now    []*watch      // the events of this round
	self   atomic.Value  // the goroutine of the loop

	// The fields below are guarded by w.mu.
	ready  []*watch // events for the next round
	yields uint64   // the number of beginnings and ends of Yield
}

// watch is a source of events for a loop. Several events before a round count as one.
type watch struct {
	src *source

	// The fields below are guarded by World.mu.
	f      func() // called without World.mu
	queued bool
}

// raise adds an event of w. World.mu is held.
func (w *watch) raise() {
	if !w.queued {
		w.queued = true
		w.src.ready = append(w.src.ready, w)
		kick(w.src.wake)
	}
}

// Enter implements rounds.Source.
func (s *source) Enter() (leave func()) {
	s.self.Store(goroutine())
	s.count(1)
	return func() { s.count(-1) }
}

func (s *source) count(n int) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.count.Loops += n
}

// Here implements rounds.Source.
func (s *source) Here() bool { return s.self.Load() == any(goroutine()) }

// goroutine returns the name of the calling goroutine.
func goroutine() string {
	var b [40]byte
	id, _, _ := strings.Cut(string(b[:runtime.Stack(b[:], false)]), " [")
	return id
}

// Poll implements rounds.Source.
func (s *source) Poll() int {
	s.stall()
	return s.take()
}

func (s *source) take() int {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.now, s.ready = s.ready, s.now[:0]
	for _, w := range s.now {
		w.queued = false
	}
	return len(s.now)
}

// Sleep implements rounds.Source.
func (s *source) Sleep(most time.Duration) int {
	s.stall()
	over := false // guarded by w.mu
	if most > 0 {
		s.w.mu.Lock()
		s.w.at(time.Now().Add(most), func(time.Time) {
			over = true
			kick(s.wake)
		})
		s.w.mu.Unlock()
	}
	for {
		n := s.take()
		s.w.mu.Lock()
		late := over
		s.w.mu.Unlock()
		if s.woken.Swap(false) || n > 0 || late {
			return n
		}
		<-s.wake
	}
}

// yieldMost is the longest time of a Yield.
const yieldMost = 20 * time.Microsecond

// Yield implements rounds.Source. It sleeps, because time passes only while all
// goroutines sleep.
func (s *source) Yield() {
	s.w.mu.Lock()
	s.yields++
	now := s.yields
	s.w.mu.Unlock()
	over := func() {
		if s.yields == now {
			kick(s.wake)
		}
	}
	if s.later(yieldMost, over) {
		<-s.wake
	}
	s.w.mu.Lock()
	s.yields++
	s.w.mu.Unlock()
}

// Handle implements rounds.Source.
func (s *source) Handle(i int) {
	s.w.mu.Lock()
	f := s.now[i].f
	s.w.mu.Unlock()
	f()
	s.now[i] = nil
}

// Wake implements rounds.Source.
func (s *source) Wake() {
	s.woken.Store(true)
	kick(s.wake)
}

func kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Close implements rounds.Source.
func (s *source) Close() {}

// stallEvery is the reciprocal of the probability that the thread is delayed.
const stallEvery = 6

// stall sometimes delays the thread.
func (s *source) stall() {
	if s.w.cfg.Stall > 0 && s.rng.IntN(stallEvery) == 0 && s.later(s.w.cfg.Stall, func() { kick(s.resume) }) {
		<-s.resume
	}
}

// later calls f after a time of at most most, with World.mu held. It returns false if the
// world has ended.
func (s *source) later(most time.Duration, f func()) bool {
	d := time.Duration(1 + s.rng.Int64N(int64(most)))
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.closed {
		return false
	}
	s.w.at(time.Now().Add(d), func(time.Time) { f() })
	return true
}

// release lets a loop end after the end of the world. World.mu is held.
func (s *source) release() {
	s.woken.Store(true)
	kick(s.resume)
	kick(s.wake)
}
