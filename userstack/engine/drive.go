// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop has its own thread. But a program that embeds a stack has goroutines that are
// running already, and it costs more to wake the thread, or a goroutine, than to do the
// work. So goroutines may do the work of the thread:
//
//   - A goroutine that has scheduled a task runs it itself if the thread sleeps
//     (Enter and Leave). It is a helper.
//   - A goroutine that waits for the result of a round runs rounds until it has the
//     result (Waiter.Drive). It is a driver. The thread does not wait in epoll
//     meanwhile, because each packet would wake it.
//
// Rounds run one at a time, under the lock turn:
//
//	state    | who looks for events and tasks  | effect of a new task
//	---------+---------------------------------+------------------------------------
//	thread   | the thread; it may sleep        | wakes the thread if it sleeps; but if
//	         | (sleeping) in epoll             | there is a helper, Leave runs the task
//	driven   | a goroutine in Drive            | that goroutine finds the task
//	free     | nobody: a driver has left       | makes the thread look again; but if
//	         |                                 | there is a helper, Leave runs the task
//
//	from   | event                                    | to
//	-------+------------------------------------------+-------
//	thread | Drive                                    | driven
//	driven | the driver has what it waited for        | free
//	driven | nothing has come for the spin time, or   | thread
//	       | a goroutine of another owner is served   |
//	free   | Drive                                    | driven
//	free   | the thread looked twice, lookAgain apart,| thread
//	       | without a drive in between; or the thread|
//	       | was called                               |
//
// A driver that has its result leaves the loop free and does not wake the thread. Most
// programs write their answer at once and then wait for the next request, so the thread
// would be woken each time and find nothing to do.
type drivers struct {
	turn sync.Mutex // held while functions of the loop run; taken before mu

	// Guarded by mu.
	helpers  int       // goroutines between Enter and Leave
	away     bool      // the state is driven or free: the thread runs no rounds
	driving  bool      // the state is driven
	wanted   bool      // another goroutine of the same owner must become the driver
	inEpoll  bool      // the thread is in epoll_wait
	driven   uint64    // counts drives
	served   *Waiter   // the Waiter whose wait ended last
	switched time.Time // when served got its value
	driver   *Waiter   // the Waiter that drives, or the last one that did

	// Used by the driver, which holds turn.
	found [driveEvents]unix.EpollEvent
	crowd crowd
}

const (
	driveEvents = 32

	// sleepMost is how long a driver sleeps for an event before it leaves the loop
	// to the thread.
	sleepMost = time.Millisecond

	// holdMost is for how long after the last activity a sleeping driver keeps its P.
	holdMost = 200 * time.Microsecond

	// lookAgain is how often the thread checks whether the loop is still driven. A free
	// loop is without anybody who looks at the network for at most twice this time.
	lookAgain = time.Millisecond

	// alone is for how long an owner must be the only one that is served before its
	// goroutines drive. If there are several owners, the thread serves them all;
	// goroutines would only wake each other to become the driver in turn.
	alone = time.Millisecond
)

// pending reports whether there are tasks for a round. mu is held.
func (l *Loop) pending() bool { return len(l.tasks.in)+len(l.late.in)+len(l.last.in) > 0 }

// unattended reports whether nobody looks at new tasks without a wake-up. mu is held.
func (l *Loop) unattended() bool { return l.sleeping || l.away && !l.driving }

// callThread makes the sleeping thread or driver look at the tasks, and returns a free loop
// to the thread. mu is held.
func (l *Loop) callThread() {
	if l.sleeping {
		l.wake()
	}
	l.returnToThread()
}

// returnToThread changes the state from free to thread. It does nothing in another state.
// mu is held.
func (l *Loop) returnToThread() {
	if !l.away || l.driving {
		return
	}
	l.away = false
	if l.inEpoll {
		l.wake() // the thread slept all the time, and must look at the tasks
		return
	}
	if !l.ended {
		l.ep.signal(l.ep.call)
	}
}

// stayAway keeps the thread out of epoll until the state is thread again.
func (l *Loop) stayAway() {
	p := unix.PollFd{Fd: int32(l.ep.call), Events: unix.POLLIN}
	seen := ^uint64(0)
	for called := uintptr(1); ; { // at first, a call of an earlier time may be left
		l.mu.Lock()
		if !l.driving && (l.driven == seen || l.pending() || l.closed) {
			l.away = false
		}
		seen = l.driven
		back := !l.away || l.closed
		l.mu.Unlock()
		if called > 0 {
			drain(l.ep.call)
		}
		if back {
			return
		}
		ts := unix.NsecToTimespec(int64(lookAgain)) // set each time, because the call changes it
		called, _, _ = unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	}
}

// drain sets the counter of an eventfd to 0.
func drain(fd int) {
	var count uint64
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
}

// Enter begins a section in which the calling goroutine schedules tasks, for example by
// posting to a queue pair. The goroutine must call Leave at the end of the section, which
// runs the tasks in this goroutine if the loop sleeps. The section must not wait for the
// loop.
func (l *Loop) Enter() {
	if l.ep == nil {
		return
	}
	l.mu.Lock()
	l.helpers++
	l.mu.Unlock()
}

// Leave ends the section that Enter began. The caller must not hold a lock that a task of
// the loop takes.
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

// help runs the tasks once. The caller has locked turn, and help unlocks it.
func (l *Loop) help() {
	l.begin()
	defer l.finish()
	l.runTasks(&l.tasks)
	l.runTasks(&l.late)
	l.runTasks(&l.last)
}

// begin locks the calling goroutine to its thread and records that this thread runs the
// round: Sync must not wait if this thread calls it. turn is held.
func (l *Loop) begin() {
	runtime.LockOSThread()
	l.ep.tid.Store(int64(unix.Gettid()))
}

// finish undoes begin and unlocks turn.
func (l *Loop) finish() {
	l.ep.tid.Store(0)
	l.turn.Unlock()
	runtime.UnlockOSThread()
}

// Attend makes the thread look at the network soon if nobody else does. A goroutine calls
// it before it waits for the result of a round without Drive.
func (l *Loop) Attend() {
	l.mu.Lock()
	l.returnToThread()
	l.mu.Unlock()
}

// A Waiter stands for an owner of goroutines that wait for results of rounds. An owner is,
// for example, a connection.
type Waiter struct {
	l *Loop

	tries tries // decides which waits drive; guarded by l.mu
}

// NewWaiter returns a Waiter for goroutines that wait for this loop.
func (l *Loop) NewWaiter() *Waiter { return &Waiter{l: l} }

// Drive runs rounds of the loop in the calling goroutine until ready returns true, and
// returns true then. It returns false if the caller must wait for a wake-up: nothing has
// happened for the loop's spin time, other owners wait for the loop too, or the loop is
// closed. The caller must call Served when that wait has ended.
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
	var busy time.Time // time of the last activity, or zero: set it to now
	n := 0             // events found
	for {
		if n > 0 || l.due() {
			l.faults.each(eventTask, n, func(i int) { l.ep.handle(&l.found[i]) })
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
				l.wake() // otherwise each packet would wake two threads in epoll
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

// due reports whether there are tasks to run.
func (l *Loop) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending() && !l.closed
}

// recentlyShared reports whether another Waiter than w was served a moment ago. l.mu is
// held.
func (l *Loop) recentlyShared(w *Waiter, now time.Time) bool {
	return l.served != w && now.Sub(l.switched) < alone
}

// yield lets other threads use the core.
func (l *Loop) yield() {
	start := time.Now()
	l.src.Yield()
	l.crowd.yielded(start, time.Now())
}

// doze makes the driver sleep until there is an event or a task, at most for sleepMost. It
// returns the number of events. turn is held, but unlocked during the sleep, so that a
// helper can run tasks.
//
// Idle tasks keep waiting during the sleep. For example, the next data of the program often
// makes an acknowledgement unnecessary.
//
// after is for how long nothing has happened. At first the sleep keeps the P of the Go
// scheduler, as the spin does. To release the P wakes Go's monitor thread, which costs as
// much as an answer that comes a moment later. A signal ends this sleep, so the garbage
// collector need not wait for it.
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
	if !ready() { // it may have become true before sleeping was set, without a wake-up
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

// Poke ends the sleep of a goroutine in Drive, which then calls ready again.
func (w *Waiter) Poke() {
	l := w.l
	l.mu.Lock()
	if l.driving && l.sleeping {
		l.wake()
	}
	l.mu.Unlock()
}

// mayDrive reports whether a goroutine of w must drive now. l.mu is held.
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
	// If a goroutine of this owner drives already, it has waited for longer than this
	// one. This one is more likely to be served soon, so it must replace that driver.
	l.wanted = l.driving
	return true
}

// park ends a drive. got reports whether the driver has what it waited for. l.mu is held.
func (w *Waiter) park(got bool) {
	l := w.l
	l.driving = false
	if got {
		w.tries.hit()
		w.noteServed()
		if !l.inEpoll && !l.closed {
			return // the loop is free now
		}
	} else if l.wanted {
		return
	} else {
		w.tries.miss()
	}
	l.returnToThread()
}

// Served records that the wait of a goroutine has ended for which Drive returned false.
func (w *Waiter) Served() {
	w.l.mu.Lock()
	w.noteServed()
	w.l.mu.Unlock()
}

// noteServed records that a wait of w has ended. l.mu is held.
func (w *Waiter) noteServed() {
	if l := w.l; l.served != w {
		l.served, l.switched = w, time.Now()
	}
}
