// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"smcr/userstack/internal/rounds"
)

// ErrClosed is returned by the methods of a closed Loop.
var ErrClosed = errors.New("engine: the loop is closed")

// idleMost is how long tasks for idle times wait.
const idleMost = 100 * time.Microsecond

// Loop is an event loop on a thread of its own.
type Loop struct {
	src  rounds.Source
	spin time.Duration
	done chan struct{}
	ep   *epoll // src, or nil in a simulation

	mu       sync.Mutex
	tasks    queue
	late     queue
	last     queue
	idle     queue
	idleAt   time.Time     // when the first task of idle was scheduled
	idleMost time.Duration // the constant, but in tests
	sleeping bool          // the loop will not look at tasks before it is woken
	closed   bool
	ended    bool // no function is called any more

	rounds uint // of the thread

	drivers // goroutines in the place of the thread
}

// schedulerRounds is after how many rounds Go's scheduler gets a chance to see that
// the loop's goroutine is not stuck. Go's monitor thread takes a goroutine that has not
// been scheduled for 10 ms for one that is, and the P from it in each of its system
// calls. That costs a tenth of a core.
const schedulerRounds = 64

// queue holds tasks to be run, in the order in which they were scheduled.
type queue struct{ in, out []*Task }

// Task is a function to be run in a round of a loop.
type Task struct {
	l      *Loop
	q      *queue
	f      func()
	queued bool // guarded by l.mu
}

// New starts a loop. spin is how long it looks for more after activity before
// it sleeps; zero is not at all.
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

// NewOn starts a loop with another source of events than the kernel, which the
// loop owns from now on. It has no descriptors: Watch fails.
func NewOn(src rounds.Source, spin time.Duration) *Loop {
	l := makeLoop(src, spin)
	go l.run()
	return l
}

func makeLoop(src rounds.Source, spin time.Duration) *Loop {
	return &Loop{src: src, spin: spin, idleMost: idleMost, done: make(chan struct{})}
}

// Close stops the loop and waits for the round under way. Nothing is called
// afterwards.
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

// Task makes a task of f for the second part of a round.
func (l *Loop) Task(f func()) *Task { return &Task{l: l, q: &l.tasks, f: f} }

// IdleTask makes a task of f for when idleMost has passed since Schedule.
func (l *Loop) IdleTask(f func()) *Task { return &Task{l: l, q: &l.idle, f: f} }

// LateTask makes a task of f for the third part of a round.
func (l *Loop) LateTask(f func()) *Task { return &Task{l: l, q: &l.late, f: f} }

// LastTask makes a task of f for the fourth part of a round.
func (l *Loop) LastTask(f func()) *Task { return &Task{l: l, q: &l.last, f: f} }

// Schedule has the task run once, in the present round or the next. It does
// nothing if that is scheduled already, or the loop is closed.
func (t *Task) Schedule() {
	l := t.l
	l.mu.Lock()
	if !t.queued && !l.ended {
		t.queued = true
		if t.q == &l.idle && len(t.q.in) == 0 {
			l.idleAt = time.Now()
		}
		t.q.in = append(t.q.in, t)
		if l.helpers == 0 { // else they run it
			l.callThread()
		}
	}
	l.mu.Unlock()
}

// wake ends a sleep. mu is held.
func (l *Loop) wake() {
	l.sleeping = false
	if !l.ended {
		l.src.Wake()
	}
}

// Watch calls f with what epoll reports of fd: events is as of epoll_ctl(2).
// fd must stay open until Stop.
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
		for i := range n {
			l.src.Handle(i)
		}
		l.runParts()
		l.endTurn()
		l.turn.Unlock()
		if l.rounds++; l.rounds%schedulerRounds == 0 && l.ep != nil {
			runtime.Gosched()
		}
	}
}

// runParts runs what follows events in a round. turn is held.
func (l *Loop) runParts() {
	l.runTasks(&l.tasks)
	l.runTasks(&l.late)
	l.runTasks(&l.last)
	if l.idleDue() {
		l.runTasks(&l.idle)
	}
}

// acts and rests make the loop's thread the one that Sync takes for that of the
// round. turn is held in between.
func (l *Loop) beginTurn() {
	if l.ep != nil {
		l.ep.tid.Store(l.ep.thread)
	}
}

func (l *Loop) endTurn() {
	if l.ep != nil {
		l.ep.tid.Store(0)
	}
}

// runIdle runs the tasks for idle times. It is called by the loop's thread.
func (l *Loop) runIdle() {
	l.turn.Lock()
	l.beginTurn()
	l.runTasks(&l.idle)
	l.endTurn()
	l.turn.Unlock()
}

// idleDue reports whether tasks have waited long enough for an idle moment.
func (l *Loop) idleDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.idle.in) > 0 && time.Since(l.idleAt) >= l.idleMost
}

// end frees the source.
func (l *Loop) end() {
	l.turn.Lock() // whoever drives has seen that the loop is closed
	defer l.turn.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.src.Close()
}

// wait returns the events of the next round. It sleeps if there is neither an
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
		// Idle tasks have their time also while the loop sleeps: what comes until
		// then often makes them superfluous.
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
		n = l.src.Sleep(most)
		l.mu.Lock()
		l.sleeping, l.inEpoll = false, false
		l.mu.Unlock()
		if n == 0 && most > 0 {
			continue // the time is over, or there is a task
		}
		spin.ends(time.Now)
		return n, true
	}
}

// runTasks runs the tasks that are scheduled in q now. Those that they schedule
// run in the next round, or in the next part of this one.
func (l *Loop) runTasks(q *queue) {
	l.mu.Lock()
	q.in, q.out = q.out[:0], q.in
	for _, t := range q.out {
		t.queued = false
	}
	l.mu.Unlock()
	for i, t := range q.out {
		t.f()
		q.out[i] = nil
	}
}
