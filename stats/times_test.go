// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"testing"
	"time"

	"smcr/smc"
)

func TestTimeBucket(t *testing.T) {
	for d, want := range map[time.Duration]int{
		-1: 0, 0: 0, 500 * time.Microsecond: 0, 500*time.Microsecond + 1: 1,
		time.Millisecond: 1, 3 * time.Millisecond: 3, 10 * time.Second: TimeBuckets - 2, 10*time.Second + 1: TimeBuckets - 1, time.Hour: TimeBuckets - 1,
	} {
		if got := TimeBucket(d); got != want {
			t.Errorf("TimeBucket(%v) = %d, want %d", d, got, want)
		}
	}
	for i := range TimeBuckets - 1 {
		if l := TimeLimit(i); TimeBucket(l) != i || TimeBucket(l+1) != i+1 {
			t.Errorf("%v, the limit of class %d, is in class %d", l, i, TimeBucket(l))
		}
	}
	if TimeLimit(-1) != 0 || TimeLimit(TimeBuckets-1) != 0 {
		t.Error("a class without limit has one")
	}
}

func TestHandshakeTimes(t *testing.T) {
	var c Collector
	if allocs := testing.AllocsPerRun(100, func() { c.HandshakeTime(smc.Server, 3*time.Millisecond) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	c.HandshakeTime(smc.Client, time.Millisecond)
	c.HandshakeTime(smc.Client, 5*time.Millisecond)
	c.HandshakeTime(smc.Client, -time.Second) // a clock that was set back
	c.Failovers(2)
	c.Failovers(1)
	s := c.Snapshot()
	cl := &s.ClientHandshakeTimes
	if cl.Total() != 3 || cl.Mean() != 2*time.Millisecond || cl.Counts[0] != 1 || cl.Counts[1] != 1 || cl.Counts[3] != 1 {
		t.Errorf("as client: %+v", cl)
	}
	if n := s.ServerHandshakeTimes.Counts[3]; n != 101 { // AllocsPerRun calls once more
		t.Errorf("as server: %d, want 101", n)
	}
	if s.Failovers != 3 {
		t.Errorf("%d failovers, want 3", s.Failovers)
	}
	if m := (&Times{}).Mean(); m != 0 {
		t.Errorf("the mean of nothing is %v", m)
	}
}
