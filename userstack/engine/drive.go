// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop has a thread of its own, but a program that embeds a stack has
// goroutines that run already, and each hand-over between these and the thread
// costs more than the work that is handed over. So goroutines may do the thread's
// work in its place:
//
//   - One that has caused a task runs it itself, if the thread sleeps (Enter and
//     Leave).
//   - One that waits for what a round will bring runs rounds until it has come
//     (Waiter.Drive). The thread stays away from epoll meanwhile, or each packet
//     would wake it.
//
// Rounds are run one at a time, by whoever holds turn:
//
//	state    | who looks for events and tasks  | a new task
//	---------+---------------------------------+------------------------------------
//	thread   | the thread; it may be asleep    | wakes it if it sleeps, unless there
//	         | (sleeping) in epoll             | is a helper, who runs it in Leave
//	driven   | a goroutine in Drive            | is found by that goroutine
//	free     | nobody: a driver left           | calls the thread back, unless there
//	         |                                 | is a helper
//
//	from   | event                                   | to
//	-------+-----------------------------------------+-------
//	thread | Drive                                   | driven
//	driven | what the driver waited for has come     | free
//	driven | nothing has come for the spin time, or  | thread
//	       | another connection's goroutine is served|
//	free   | Drive                                   | driven
//	free   | the thread looked twice, lookAgain apart,| thread
//	       | and nobody has driven between; or it was|
//	       | called                                  |
//
// A driver leaves the loop free and does not call the thread, because most
// programs write their answer at once and wait for the next request: to call the
// thread each time, and have it find nothing, is what driving is to avoid.
type drivers struct {
	turn sync.Mutex // held by who runs functions of the loop; taken before mu

	// Guarded by mu.
	helpers  int       // between Enter and Leave
	away     bool      // the thread leaves the loop alone: driven or free
	driving  bool      // driven
	wanted   bool      // another goroutine of the same owner is to drive
	inEpoll  bool      // the thread is in epoll_wait
	driven   uint64    // counts drives
	served   *Waiter   // whose wait ended last
	switched time.Time // when it began to be this one
	driver   *Waiter   // who drives, or drove last

	// Used by the driver, who holds turn.
	found [driveEvents]unix.EpollEvent
	crowd crowd
}

const (
	driveEvents = 32

	// sleepMost is how long a driver sleeps for an event before it leaves the loop
	// to the thread.
	sleepMost = time.Millisecond

	// holdMost is for how long after activity a driver that sleeps keeps its P.
	holdMost = 200 * time.Microsecond

	// lookAgain is how long the thread stays away at a time. Nobody looks at the
	// network for at most twice as long.
	lookAgain = time.Millisecond

	// alone is for how long an owner is the only one that waits, before its
	// goroutines drive: with several, the thread serves all without wake-ups of
	// goroutines that would only pass the loop on.
	alone = time.Millisecond
)

// pending says that there are tasks for a round. mu is held.
func (l *Loop) pending() bool { return len(l.tasks.in)+len(l.late.in)+len(l.last.in) > 0 }

// unattended says that nobody will look at tasks by himself soon. mu is held.
func (l *Loop) unattended() bool { return l.sleeping || l.away && !l.driving }

// rouse has the thread look at tasks if nobody else does. mu is held.
func (l *Loop) callThread() {
	if l.sleeping {
		l.wake()
	}
	l.returnToThread()
}

// handBack makes the loop the thread's again, if it is free. mu is held.
func (l *Loop) returnToThread() {
	if !l.away || l.driving {
		return
	}
	l.away = false
	if l.inEpoll {
		l.wake() // it has not noticed that it was away, and is to look at tasks
		return
	}
	if !l.ended {
		l.ep.signal(l.ep.call)
	}
}

// stayAway keeps the thread away from epoll until the loop is its own again.
func (l *Loop) stayAway() {
	p := unix.PollFd{Fd: int32(l.ep.call), Events: unix.POLLIN}
	seen := ^uint64(0)
	for {
		l.mu.Lock()
		if !l.driving && (l.driven == seen || l.pending() || l.closed) {
			l.away = false
		}
		seen = l.driven
		back := !l.away || l.closed
		l.mu.Unlock()
		drain(l.ep.call)
		if back {
			return
		}
		ts := unix.NsecToTimespec(int64(lookAgain)) // the call changes it
		_, _, _ = unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	}
}

// drain empties an eventfd.
func drain(fd int) {
	var count uint64
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
}

// Enter begins a section in which the calling goroutine has tasks scheduled, by
// posting to a queue pair for example. Leave, which has to follow, runs them in
// this goroutine if the loop sleeps. The section must not wait for the loop.
func (l *Loop) Enter() {
	if l.ep == nil {
		return
	}
	l.mu.Lock()
	l.helpers++
	l.mu.Unlock()
}

// Leave ends what Enter began. No lock may be held that a task of the loop takes.
func (l *Loop) Leave() {
	if l.ep == nil {
		return
	}
	l.mu.Lock()
	for l.pending() && l.unattended() && l.turn.TryLock() {
		l.mu.Unlock()
		l.help()
		l.mu.Lock()
	}
	l.helpers--
	if len(l.idle.in) > 0 && l.sleeping {
		l.callThread()
	}
	l.mu.Unlock()
}

// help runs the tasks once. It takes over turn and lets go of it.
func (l *Loop) help() {
	l.begin()
	defer l.finish()
	l.runTasks(&l.tasks)
	l.runTasks(&l.late)
	l.runTasks(&l.last)
}

// begin makes the calling goroutine the one that Sync takes for the loop. turn is
// held.
func (l *Loop) begin() {
	runtime.LockOSThread()
	l.ep.tid.Store(int64(unix.Gettid()))
}

// finish ends what begin began, and lets go of turn.
func (l *Loop) finish() {
	l.ep.tid.Store(0)
	l.turn.Unlock()
	runtime.UnlockOSThread()
}

// Attend has the thread look at the network soon if nobody does. It is for a
// goroutine that is about to wait for what a round will bring, but not by Drive.
func (l *Loop) Attend() {
	l.mu.Lock()
	l.returnToThread()
	l.mu.Unlock()
}

// A Waiter stands for an owner of goroutines, such as a connection, that wait for
// what rounds of a loop bring.
type Waiter struct {
	l *Loop

	tries tries // which waits drive; guarded by l.mu
}

// NewWaiter returns a Waiter for the loop.
func (l *Loop) NewWaiter() *Waiter { return &Waiter{l: l} }

// Drive runs rounds of the loop in the calling goroutine until ready reports true,
// and returns true then. It returns false when it is better to wait for a wake-up:
// nothing has happened for the loop's spin time, others wait for the loop too, or
// the loop is closed. The caller tells by Served when that wait is over.
//
// ready is called between rounds and must not block. It is not called by others,
// so what makes it true outside of a round is noticed at the end of the round.
func (w *Waiter) Drive(ready func() bool) bool {
	l := w.l
	if l.ep == nil {
		return false
	}
	l.mu.Lock()
	if !w.mayDrive() {
		l.returnToThread()
		l.mu.Unlock()
		return false
	}
	l.mu.Unlock()
	l.turn.Lock()
	l.begin()
	defer l.finish()
	l.mu.Lock()
	if l.closed || l.driving {
		if l.pending() {
			l.callThread()
		}
		l.mu.Unlock()
		return false
	}
	l.driving, l.away, l.sleeping, l.wanted = true, true, false, false
	l.driver = w
	l.driven++
	l.mu.Unlock()
	var busy time.Time // of the last activity
	n := 0             // events found
	for {
		if n > 0 || l.due() {
			for i := range n {
				l.ep.handle(&l.found[i])
			}
			l.runParts()
			busy = time.Time{}
		}
		got := ready()
		now := time.Now()
		if busy.IsZero() {
			busy = now
		}
		l.mu.Lock()
		switch {
		case l.pending():
		case got || l.closed || l.wanted || l.recentlyShared(w, now) || now.Sub(busy) >= l.spin+sleepMost:
			w.park(got)
			l.mu.Unlock()
			return got
		case now.Sub(busy) >= l.spin || l.crowd.crowded(now):
			if l.inEpoll {
				l.wake() // two threads there would wake for each packet
			}
			l.mu.Unlock()
			n = l.doze(ready, now.Sub(busy))
			continue
		}
		idle := len(l.idle.in) > 0 && now.Sub(l.idleAt) >= l.idleMost
		l.mu.Unlock()
		if idle {
			l.runTasks(&l.idle)
		}
		if n = l.ep.poll(l.found[:]); n == 0 && !got {
			l.yield()
		}
	}
}

// due says that there are tasks.
func (l *Loop) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending() && !l.closed
}

// shared says that others than w have been served just now. l.mu is held.
func (l *Loop) recentlyShared(w *Waiter, now time.Time) bool {
	return l.served != w && now.Sub(l.switched) < alone
}

// yield lets others have the core.
func (l *Loop) yield() {
	start := time.Now()
	l.src.Yield()
	l.crowd.yielded(start, time.Now())
}

// doze has the driver sleep until there is an event or a task, for sleepMost at
// most. turn is held, but not meanwhile, so that a helper can run tasks.
//
// Tasks for idle times wait on: an acknowledgement is often made superfluous by
// what the program sends next.
//
// after is for how long nothing has happened. At first the sleep keeps the P, as
// the spin does: to give it back takes Go's monitor thread, and costs as much as
// the answer that comes a moment later. A signal ends that sleep, so the collector
// need not wait for it.
func (l *Loop) doze(ready func() bool, after time.Duration) (n int) {
	l.mu.Lock()
	most, hold := sleepMost, after < holdMost
	if hold {
		most = holdMost - after
	}
	if len(l.idle.in) > 0 {
		most = min(most, l.idleMost-time.Since(l.idleAt))
	}
	if most <= 0 {
		l.mu.Unlock()
		l.runTasks(&l.idle)
		return 0
	}
	if l.pending() || l.closed || l.wanted {
		l.mu.Unlock()
		return 0
	}
	l.sleeping = true
	l.mu.Unlock()
	tid := l.ep.tid.Swap(0)
	l.turn.Unlock()
	if !ready() { // else nobody may have woken this thread for it
		n = l.ep.sleep(l.found[:], most, hold)
	}
	l.turn.Lock()
	l.ep.tid.Store(tid)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sleeping = false
	if l.closed {
		return 0
	}
	return n
}

// Poke ends the sleep of a goroutine in Drive, which then asks ready again.
func (w *Waiter) Poke() {
	l := w.l
	l.mu.Lock()
	if l.driving && l.sleeping {
		l.wake()
	}
	l.mu.Unlock()
}

// mayDrive says whether a goroutine of w is to drive now. l.mu is held.
func (w *Waiter) mayDrive() bool {
	l := w.l
	switch {
	case l.closed || l.spin <= 0:
		return false
	case l.driving && (l.driver != w || l.sleeping):
		return false
	case !w.tries.due():
		return false
	case time.Since(l.switched) < alone:
		return false
	}
	// A goroutine of this owner that drives has waited for longer: this one has
	// the better chance to be served soon.
	l.wanted = l.driving
	return true
}

// park ends a drive: got tells that what it was for has come. l.mu is held.
func (w *Waiter) park(got bool) {
	l := w.l
	l.driving = false
	if got {
		w.tries.hit()
		w.noteServed()
		if !l.inEpoll && !l.closed {
			return // free
		}
	} else if l.wanted {
		return
	} else {
		w.tries.miss()
	}
	l.returnToThread()
}

// Served takes note that a wait has ended for which Drive returned false.
func (w *Waiter) Served() {
	w.l.mu.Lock()
	w.noteServed()
	w.l.mu.Unlock()
}

// note keeps track of whether w is the only one that is served. l.mu is held.
func (w *Waiter) noteServed() {
	if l := w.l; l.served != w {
		l.served, l.switched = w, time.Now()
	}
}
