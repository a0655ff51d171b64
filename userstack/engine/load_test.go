// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// TestLoad: the thread of a loop that works uses CPU time, that of one that sleeps does not.
func TestLoad(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	const work = 30 * time.Millisecond
	before := LoadOf(l)
	ran := make(chan struct{})
	l.Task(func() {
		for start := threadTime(int(l.ep.thread.Load())); threadTime(int(l.ep.thread.Load())) < start+work; {
		}
		close(ran)
	}).Schedule()
	await(t, "the task", ran)
	busy := LoadOf(l)
	if got := busy.CPU - before.CPU; got < work || got > 100*work {
		t.Errorf("%v of CPU time for work of %v", got, work)
	}
	testkind.Eventually(t, "no round, or the loop has not slept", func() (any, bool) {
		now := LoadOf(l)
		return now, now.Rounds != before.Rounds && now.Sleeps != 0
	})
	wantAsleep(t, l)
	asleep := LoadOf(l)
	// Real time: it sleeps meanwhile.
	time.Sleep(50 * time.Millisecond)
	if got := LoadOf(l).CPU - asleep.CPU; got > 10*time.Millisecond {
		t.Errorf("%v of CPU time within 50 ms of sleep", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if load := LoadOf(l); load.CPU != 0 || load.Rounds < busy.Rounds {
		t.Errorf("after the end: %+v, before %+v", load, busy)
	}
	if d := threadTime(1<<22 - 1); d != 0 {
		t.Errorf("%v for a thread that does not exist", d)
	}
}
