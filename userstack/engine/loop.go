// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by the methods of a closed Loop.
var ErrClosed = errors.New("engine: the loop is closed")

const (
	// maxEvents is how many events one round takes from epoll.
	maxEvents = 256

	// idleMost is how long tasks for idle times wait while there are none.
	idleMost = 100 * time.Microsecond

	// DefaultSpin is how long after activity the loop looks for more before it
	// sleeps.
	DefaultSpin = 50 * time.Microsecond
)

// Loop is an event loop on a thread of its own.
type Loop struct {
	epoll int
	event int // eventfd: ends a sleep
	spin  time.Duration
	done  chan struct{}
	tid   atomic.Int64 // of its thread

	mu       sync.Mutex
	tasks    queue
	last     queue
	idle     queue
	idleAt   time.Time     // when the first task of idle was scheduled
	idleMost time.Duration // the constant, but in tests
	watches  map[uint64]*Watch
	nextID   uint64
	sleeping bool // the loop will not look at tasks before event is written
	closed   bool
	ended    bool // no function is called any more

	drivers // goroutines in the place of the thread

	one uint64 // what is written to event

	// Used by the loop's thread alone.
	events [maxEvents]unix.EpollEvent
}

// queue holds tasks to be run, in the order in which they were scheduled.
type queue struct{ in, out []*Task }

// Task is a function to be run in a round of a loop.
type Task struct {
	l      *Loop
	q      *queue
	f      func()
	queued bool // guarded by l.mu
}

// Watch is a descriptor that a loop looks at.
type Watch struct {
	l  *Loop
	id uint64
	f  func(events uint32)
}

// New starts a loop. spin is how long it looks for more after activity before
// it sleeps; zero is not at all.
func New(spin time.Duration) (*Loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("engine: epoll: %w", err)
	}
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("engine: eventfd: %w", err)
	}
	l := &Loop{epoll: ep, event: ev, spin: spin, idleMost: idleMost, one: 1, done: make(chan struct{}), watches: map[uint64]*Watch{}}
	if err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ev, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
		l.call, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		unix.Close(ep)
		unix.Close(ev)
		return nil, fmt.Errorf("engine: epoll: %w", err)
	}
	go l.run()
	return l, nil
}

// Close stops the loop and waits for the round under way. Nothing is called
// afterwards.
func (l *Loop) Close() error {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.wake()
	l.handBack()
	l.mu.Unlock()
	<-l.done
	if was {
		return ErrClosed
	}
	return nil
}

// Task makes a task of f for the second part of a round.
func (l *Loop) Task(f func()) *Task { return &Task{l: l, q: &l.tasks, f: f} }

// IdleTask makes a task of f for when the loop has nothing else to do and is
// about to sleep, or has been busy for idleMost since Schedule.
func (l *Loop) IdleTask(f func()) *Task { return &Task{l: l, q: &l.idle, f: f} }

// LastTask makes a task of f for the third part of a round.
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
			l.rouse()
		}
	}
	l.mu.Unlock()
}

// wake ends a sleep. mu is held.
func (l *Loop) wake() {
	l.sleeping = false
	if l.ended {
		return
	}
	// EAGAIN: it is awake anyway.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(l.event), uintptr(unsafe.Pointer(&l.one)), unsafe.Sizeof(l.one))
}

// Watch calls f with what epoll reports of fd: events is as of epoll_ctl(2).
// fd must stay open until Stop.
func (l *Loop) Watch(fd int, events uint32, f func(events uint32)) (*Watch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.closed {
		return nil, ErrClosed
	}
	l.nextID++
	w := &Watch{l: l, id: l.nextID, f: f}
	ev := unix.EpollEvent{Events: events}
	setID(&ev, w.id)
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return nil, fmt.Errorf("engine: %w", os.NewSyscallError("epoll_ctl", err))
	}
	l.watches[w.id] = w
	return w, nil
}

// Stop ends the watch of fd, the descriptor that it was made with and which is
// still open. A call of its function may be under way.
func (w *Watch) Stop(fd int) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	if w.l.watches[w.id] != w {
		return
	}
	delete(w.l.watches, w.id)
	if !w.l.ended {
		_ = unix.EpollCtl(w.l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// The 64 bits of data of an event are cut in two in package unix.
func setID(ev *unix.EpollEvent, id uint64) { ev.Fd, ev.Pad = int32(id), int32(id>>32) }

func getID(ev *unix.EpollEvent) uint64 { return uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32 }

// run is the loop's goroutine.
func (l *Loop) run() {
	// Waking this thread is what a packet waits for. Without the lock each
	// sleep would hand the goroutine to the scheduler.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := int64(unix.Gettid())
	defer close(l.done)
	defer l.end()
	var busy time.Time // of the last activity
	for {
		n, ok := l.wait(&busy)
		if !ok {
			return
		}
		l.turn.Lock()
		l.tid.Store(tid)
		l.round(l.events[:n])
		l.tid.Store(0)
		l.turn.Unlock()
	}
}

// round acts on events and runs the tasks. turn is held.
func (l *Loop) round(events []unix.EpollEvent) {
	for i := range events {
		l.dispatch(&events[i])
	}
	l.runTasks(&l.tasks)
	l.runTasks(&l.last)
	if l.idleDue() {
		l.runTasks(&l.idle)
	}
}

// runIdle runs the tasks for idle times. It is called by the loop's thread.
func (l *Loop) runIdle() {
	l.turn.Lock()
	l.tid.Store(int64(unix.Gettid()))
	l.runTasks(&l.idle)
	l.tid.Store(0)
	l.turn.Unlock()
}

// idleDue reports whether tasks have waited long enough for an idle moment.
func (l *Loop) idleDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.idle.in) > 0 && time.Since(l.idleAt) > l.idleMost
}

// end frees the descriptors.
func (l *Loop) end() {
	l.turn.Lock() // whoever drives has seen that the loop is closed
	defer l.turn.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	unix.Close(l.epoll)
	unix.Close(l.event)
	unix.Close(l.call)
}

// wait returns the events of the next round. It sleeps if there is neither an
// event nor a task. ok is false when the loop is closed.
func (l *Loop) wait(busy *time.Time) (n int, ok bool) {
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
			*busy = time.Time{}
			continue
		}
		n = l.poll(l.events[:])
		if n > 0 || waiting {
			*busy = time.Time{}
			return n, true
		}
		if l.spin > 0 {
			if busy.IsZero() {
				*busy = time.Now()
			}
			if time.Since(*busy) < l.spin {
				if l.idleDue() {
					l.runIdle()
				}
				_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				continue
			}
		}
		l.runIdle()
		l.mu.Lock()
		if l.closed || l.away || l.pending() {
			l.mu.Unlock()
			continue
		}
		l.sleeping, l.inEpoll = true, true
		l.mu.Unlock()
		n, _ = unix.EpollWait(l.epoll, l.events[:], -1)
		l.mu.Lock()
		l.sleeping, l.inEpoll = false, false
		l.mu.Unlock()
		*busy = time.Time{}
		return max(n, 0), true
	}
}

// poll asks for events without waiting. It is no entry into the scheduler.
func (l *Loop) poll(events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func (l *Loop) dispatch(ev *unix.EpollEvent) {
	id := getID(ev)
	if id == 0 {
		drain(l.event)
		return
	}
	l.mu.Lock()
	w := l.watches[id]
	l.mu.Unlock()
	if w != nil {
		w.f(ev.Events)
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
