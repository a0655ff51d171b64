// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"sync/atomic"
	"time"
)

// TimeBuckets is the number of classes of [Times].
const TimeBuckets = 15

// timeLimits are the longest times of all classes but the last.
var timeLimits = [TimeBuckets - 1]time.Duration{
	500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second,
}

// Times counts durations by class. Class i holds durations of up to [TimeLimit](i) that do
// not fit the class before.
type Times struct {
	Counts [TimeBuckets]uint64
	Sum    uint64 // of all durations, in nanoseconds
}

// TimeBucket returns the class of a duration. Durations of zero and less belong to the first
// class.
func TimeBucket(d time.Duration) int {
	for i, limit := range timeLimits {
		if d <= limit {
			return i
		}
	}
	return TimeBuckets - 1
}

// TimeLimit returns the longest duration of class i, or 0 for the last class, which has no
// limit.
func TimeLimit(i int) time.Duration {
	if i < 0 || i >= len(timeLimits) {
		return 0
	}
	return timeLimits[i]
}

// Total returns the number of durations.
func (t *Times) Total() (n uint64) {
	for _, v := range t.Counts {
		n += v
	}
	return n
}

// Mean returns the mean of the durations, or 0 if there are none.
func (t *Times) Mean() time.Duration {
	n := t.Total()
	if n == 0 {
		return 0
	}
	return time.Duration(t.Sum / n)
}

func (t Times) merge(b Times, op operation) Times {
	for i := range t.Counts {
		op.to(&t.Counts[i], b.Counts[i])
	}
	op.to(&t.Sum, b.Sum)
	return t
}

// An Engine is what the event loops of a stack in user space have done, in sum. The zero
// value means that the stack has none.
type Engine struct {
	Threads uint64 // gauge: event loops, each of which is a thread
	CPU     uint64 // time in nanoseconds for which a processor ran these threads
	Rounds  uint64 // rounds in which the threads found something to do
	Sleeps  uint64 // how often the threads found nothing to do, and slept
}

func (e Engine) merge(b Engine, op operation) Engine {
	op.to(&e.CPU, b.CPU)
	op.to(&e.Rounds, b.Rounds)
	op.to(&e.Sleeps, b.Sleeps)
	return e
}

// times collects Times without a lock.
type times struct {
	counts [TimeBuckets]atomic.Uint64
	sum    atomic.Uint64
}

func (t *times) add(d time.Duration) {
	d = max(d, 0)
	t.counts[TimeBucket(d)].Add(1)
	t.sum.Add(uint64(d))
}

func (t *times) load() (s Times) {
	for i := range t.counts {
		s.Counts[i] = t.counts[i].Load()
	}
	s.Sum = t.sum.Load()
	return s
}
