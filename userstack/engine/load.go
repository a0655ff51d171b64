// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// A Load is what the thread of a loop has done. What goroutines do in its place (see Enter
// and Waiter.Drive) does not count.
type Load struct {
	CPU    time.Duration // for which a processor ran the thread, also while it looked for work in vain
	Rounds uint64        // in which it found something to do
	Sleeps uint64        // how often it found nothing to do, and slept
}

// LoadOf returns what the thread of a loop has done since the loop was started. CPU is 0 in a
// simulation and after the end of the loop.
func LoadOf(l *Loop) Load {
	load := Load{Rounds: l.rounds.Load(), Sleeps: l.sleeps.Load()}
	l.mu.Lock()
	defer l.mu.Unlock() // the thread does not end meanwhile
	if l.ep == nil || l.ended {
		return load
	}
	if tid := l.ep.thread.Load(); tid != 0 {
		load.CPU = threadTime(int(tid))
	}
	return load
}

// threadTime returns for how long processors have run a thread of this process. The number of
// the clock is made as by pthread_getcpuclockid(3): the complement of the ID of the thread,
// the flag of a single thread, and the kind of clock. The result is 0 if there is no such
// thread.
func threadTime(tid int) time.Duration {
	const (
		perThread = 4
		sched     = 2 // in nanoseconds, as the scheduler counts
	)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^tid<<3|perThread|sched), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
