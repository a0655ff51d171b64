// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"smcr/userstack/internal/rounds"
)

// ErrClosed is returned by the methods of a closed Loop.
var ErrClosed = errors.New("engine: the loop is closed")

// idleMost is how long the tasks of IdleTask wait.
const idleMost = 100 * time.Microsecond

// Loop is an event loop with its own thread.
type Loop struct {
	src    rounds.Source
	spin   time.Duration
	done   chan struct{}
	ep     *epoll // src, or nil in a simulation
	faults faults

	mu       sync.Mutex
	tasks    queue
	late     queue
	last     queue
	idle     queue
	idleAt   time.Time     // when the first task of idle was scheduled
	idleMost time.Duration // the constant idleMost, except in tests
	sleeping bool          // the loop must be woken to see new tasks
	closed   bool
	ended    bool // the loop calls no function any more

	rounds atomic.Uint64 // rounds that the thread has run
	sleeps atomic.Uint64 // how often the thread has slept

	drivers // goroutines that run rounds in place of the thread
}

// schedulerRounds is how many rounds the loop runs between two calls of Go's scheduler.
// If a goroutine has not been scheduled for 10 ms, Go's monitor thread regards it as stuck
// and takes the P from it in each system call. This would cost a tenth of a core.
const schedulerRounds = 64

// queue holds tasks in the order in which they were scheduled.
type queue struct{ in, out []*Task }

// Task is a function to be run in a round of a loop.
type Task struct {
	l      *Loop
	q      *queue
	f      func()
	queued bool // guarded by l.mu
}

// New starts a loop with the events of the kernel. After activity the loop looks for new
// events for the time spin before it sleeps. If spin is 0, it sleeps at once. Errors wrap a
// syscall.Errno.
func New(spin time.Duration) (*Loop, error) {
	p, err := newEpoll()
	if err != nil {
		return nil, err
	}
	l := makeLoop(p, spin)
	l.ep = p
	go l.run()
	return l, nil
}

// NewOn starts a loop with the events of src, which the loop closes at its end. The loop
// cannot watch descriptors: Watch fails. For spin see [New].
func NewOn(src rounds.Source, spin time.Duration) *Loop {
	l := makeLoop(src, spin)
	go l.run()
	return l
}

func makeLoop(src rounds.Source, spin time.Duration) *Loop {
	return &Loop{src: src, spin: spin, idleMost: idleMost, done: make(chan struct{})}
}

// Close stops the loop and waits for the end of the current round. The loop calls no
// function afterwards. A second Close returns ErrClosed.
func (l *Loop) Close() error {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.wake()
	l.returnToThread()
	l.mu.Unlock()
	<-l.done
	if was {
		return ErrClosed
	}
	return nil
}

// Task returns a task that calls f in the second part of a round.
func (l *Loop) Task(f func()) *Task { return &Task{l: l, q: &l.tasks, f: f} }

// IdleTask returns a task that calls f at the end of a round, or between two rounds, about
// 100 µs after Schedule.
func (l *Loop) IdleTask(f func()) *Task { return &Task{l: l, q: &l.idle, f: f} }

// LateTask returns a task that calls f in the third part of a round.
func (l *Loop) LateTask(f func()) *Task { return &Task{l: l, q: &l.late, f: f} }

// LastTask returns a task that calls f in the fourth part of a round.
func (l *Loop) LastTask(f func()) *Task { return &Task{l: l, q: &l.last, f: f} }

// Schedule makes the loop run the task once, in the current round or in the next one. It
// does nothing if the task is scheduled already or the loop is closed.
func (t *Task) Schedule() {
	l := t.l
	l.mu.Lock()
	if !t.queued && !l.ended {
		t.queued = true
		if t.q == &l.idle && len(t.q.in) == 0 {
			l.idleAt = time.Now()
		}
		t.q.in = append(t.q.in, t)
		if l.helpers == 0 { // otherwise a helper runs the task in Leave
			l.callThread()
		}
	}
	l.mu.Unlock()
}

// wake ends the sleep of the thread or of a driver. mu is held.
func (l *Loop) wake() {
	l.sleeping = false
	if !l.ended {
		l.src.Wake()
	}
}

// Watch makes the loop call f with the events that epoll reports for fd. events is what
// epoll_ctl(2) takes. fd must stay open until Stop. Errors: ErrClosed,
// errors.ErrUnsupported in a simulation, or one that wraps a syscall.Errno.
func (l *Loop) Watch(fd int, events uint32, f func(events uint32)) (*Watch, error) {
	if l.ep == nil {
		return nil, fmt.Errorf("engine: watch of a descriptor: %w", errors.ErrUnsupported)
	}
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	return l.ep.watch(fd, events, f)
}

// run is the loop's goroutine.
func (l *Loop) run() {
	defer l.src.Enter()()
	defer close(l.done)
	defer l.end()
	spin := spinner{most: l.spin}
	for {
		n, ok := l.wait(&spin)
		if !ok {
			return
		}
		l.turn.Lock()
		l.beginTurn()
		l.faults.each(eventTask, n, l.src.Handle)
		l.runParts()
		l.endTurn()
		l.turn.Unlock()
		if l.rounds.Add(1)%schedulerRounds == 0 && l.ep != nil {
			runtime.Gosched()
		}
	}
}

// runParts runs the parts 2 to 4 of a round. turn is held.
func (l *Loop) runParts() {
	l.runTasks(&l.tasks)
	l.runTasks(&l.late)
	l.runTasks(&l.last)
	if l.idleDue() {
		l.runTasks(&l.idle)
	}
}

// beginTurn records that the loop's thread runs the round: Sync must not wait if this
// thread calls it. turn is held until after endTurn.
func (l *Loop) beginTurn() {
	if l.ep != nil {
		l.ep.tid.Store(l.ep.thread.Load())
	}
}

// endTurn records that the loop's thread does not run a round any more.
func (l *Loop) endTurn() {
	if l.ep != nil {
		l.ep.tid.Store(0)
	}
}

// runIdle runs the idle tasks. It is called by the loop's thread.
func (l *Loop) runIdle() {
	l.turn.Lock()
	l.beginTurn()
	l.runTasks(&l.idle)
	l.endTurn()
	l.turn.Unlock()
}

// idleDue reports whether the idle tasks have waited for idleMost.
func (l *Loop) idleDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.idle.in) > 0 && time.Since(l.idleAt) >= l.idleMost
}

// end closes the source of events.
func (l *Loop) end() {
	l.turn.Lock() // a driver that had turn has seen that the loop is closed
	defer l.turn.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.src.Close()
}

// wait returns the number of events of the next round. It sleeps while there is neither an
// event nor a task. ok is false when the loop is closed.
func (l *Loop) wait(spin *spinner) (n int, ok bool) {
	for {
		l.mu.Lock()
		waiting := l.pending()
		closed, away := l.closed, l.away
		l.mu.Unlock()
		if closed {
			return 0, false
		}
		if away {
			l.stayAway()
			spin.since = time.Time{}
			continue
		}
		n = l.src.Poll()
		if n > 0 || waiting {
			spin.ends(time.Now)
			return n, true
		}
		now := time.Now()
		spin.begins(now)
		if spin.spins(now) {
			if l.idleDue() {
				l.runIdle()
			}
			now = time.Now()
			l.src.Yield()
			spin.yielded(now, time.Now())
			continue
		}
		l.mu.Lock()
		if l.closed || l.away || l.pending() {
			l.mu.Unlock()
			continue
		}
		// The time of idle tasks also runs while the loop sleeps. Events that come in
		// this time often make the tasks unnecessary.
		var most time.Duration
		if len(l.idle.in) > 0 {
			if most = l.idleMost - time.Since(l.idleAt); most <= 0 {
				l.mu.Unlock()
				l.runIdle()
				continue
			}
		}
		l.sleeping, l.inEpoll = true, true
		l.mu.Unlock()
		l.sleeps.Add(1)
		n = l.src.Sleep(most)
		l.mu.Lock()
		l.sleeping, l.inEpoll = false, false
		l.mu.Unlock()
		if n == 0 && most > 0 {
			continue // the time has passed, or there is a task
		}
		spin.ends(time.Now)
		return n, true
	}
}

// runTasks runs the tasks that are in q now. Tasks that they schedule run in a later part
// of this round or in the next round.
func (l *Loop) runTasks(q *queue) {
	l.mu.Lock()
	q.in, q.out = q.out[:0], q.in
	for _, t := range q.out {
		t.queued = false
	}
	l.mu.Unlock()
	l.faults.each(loopTask, len(q.out), func(i int) {
		t := q.out[i]
		q.out[i] = nil
		t.f()
	})
}
