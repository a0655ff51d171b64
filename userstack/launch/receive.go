// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Most calls have a goroutine, because a look into the program may last without
// limit (see looks). For calls that can be answered within some microseconds, a
// goroutine and its wake-ups cost more than the answer. So the goroutine that
// receives notifications answers these calls itself. It is watched meanwhile:
// if an answer takes too long, another goroutine takes its place.
//
//	what happens                          | then
//	an answer takes more than a tick      | another goroutine receives; the first ends after
//	                                      | its answer; for shutTime each call has a goroutine
//	maxStuck are in answers at a time     | each call has a goroutine
const (
	// receiverTick is the interval at which the receiver is checked while it
	// answers calls. An answer may take one to two ticks.
	receiverTick = 10 * time.Millisecond
	shutTime     = 10 * time.Second
	maxStuck     = 4
)

// receiver receives the notifications of a supervisor.
type receiver struct {
	s     *supervisor
	ended chan error // what serve returns

	// turn is odd while the receiver answers a call. The receiver and the watch
	// both try to make it even. If the receiver is first, it continues; if the
	// watch is first, it starts another goroutine.
	turn    atomic.Uint64
	watched atomic.Bool
	stuck   atomic.Int32
	shut    atomic.Int64 // the receiver answers no calls before this time: nanoseconds after begin
	begin   time.Time

	mu     sync.Mutex
	timer  *time.Timer
	seen   uint64 // turn, at the last tick
	closed bool
}

// serve answers notifications until the last filtered task is gone.
func (s *supervisor) serve() error {
	r := &receiver{s: s, ended: make(chan error, 1), begin: time.Now()}
	s.receiver = r
	defer r.close()
	go r.run() // No guard: each call has one.
	return <-r.ended
}

// run receives notifications until the end, or until another goroutine has
// taken its place.
func (r *receiver) run() {
	replaced, threadChanged := false, false
	err := r.s.l.serve(r.s.stop, func(n *notif) bool {
		replaced = !r.handle(n)
		threadChanged = n.threadChanged
		return !replaced && !threadChanged
	})
	switch {
	case replaced:
		r.stuck.Add(-1)
	case threadChanged:
		// This goroutine ends with its thread.
		go r.run() // No guard: each call has one.
	default:
		r.ended <- err
	}
}

// handle answers n, or starts a goroutine for it. It returns false if another
// goroutine has taken the caller's place.
func (r *receiver) handle(n *notif) bool {
	if !r.open() || !r.s.mayBeQuick(n) {
		r.s.answerWith(n, func() { r.s.dispatch(n) })
		return true
	}
	turn := r.turn.Add(1)
	r.watch()
	n.here = true
	done := false
	if r.s.tasks.guard.Do(callTask, func() { done = r.s.answerHere(n) }) != nil {
		r.s.fail(n, unix.ECONNABORTED) // too late if the call has its answer
		done = true
	}
	n.here = false
	goesOn := r.turn.CompareAndSwap(turn, turn+1)
	select {
	case <-r.s.looks.over: // the rest of the supervisor may be gone
		return goesOn
	default:
	}
	if !done {
		r.s.answerWith(n, func() { r.s.dispatch(n) })
	}
	return goesOn
}

// open reports whether the receiver may answer calls.
func (r *receiver) open() bool {
	shut := r.shut.Load()
	return r.stuck.Load() < maxStuck && (shut == 0 || time.Since(r.begin) > time.Duration(shut))
}

// watch starts the timer that checks the receiver.
func (r *receiver) watch() {
	if r.watched.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.watched.Swap(true) {
		return
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(receiverTick, r.s.tasks.guard.Func("the watch on the answers to calls", r.tick))
		return
	}
	r.timer.Reset(receiverTick)
}

func (r *receiver) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	turn := r.turn.Load()
	switch {
	case turn != r.seen:
		r.seen = turn
	case turn%2 == 0:
		// No answer since the last tick. A call that arrives now starts the
		// timer again.
		r.watched.Store(false)
		if r.turn.Load() == turn || r.watched.Swap(true) {
			return
		}
	default:
		r.stuck.Add(1)
		r.shut.Store(int64(time.Since(r.begin) + shutTime))
		if !r.turn.CompareAndSwap(turn, turn+1) {
			r.stuck.Add(-1) // it has just ended
			break
		}
		r.s.log.Debug("a program's memory or descriptor keeps the launcher waiting")
		go r.run() // No guard: each call has one.
	}
	r.timer.Reset(receiverTick)
}

func (r *receiver) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// wait waits for goroutines that are still in an answer, as long as for looks.
func (r *receiver) wait() {
	for r.stuck.Load() > 0 {
		select {
		case <-r.s.looks.over:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// mayBeQuick reports whether answerHere may be able to answer n.
func (s *supervisor) mayBeQuick(n *notif) bool {
	if n.PID == 0 {
		return false
	}
	switch n.Nr {
	case unix.SYS_CONNECT:
		return !s.landlock.Load()
	case unix.SYS_ACCEPT4, sysAccept:
		return s.sockets.anyListener()
	}
	return false
}

// answerHere answers n if this takes only microseconds. Otherwise it returns
// false.
func (s *supervisor) answerHere(n *notif) bool {
	if s.l.stores.earlier(n) != nil {
		return false
	}
	if n.Nr == unix.SYS_CONNECT {
		return s.connectHere(n)
	}
	return s.acceptHere(n)
}
