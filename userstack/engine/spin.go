// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

const (
	// DefaultSpin is how long a loop looks for new events after activity before it
	// sleeps. It is longer than most programs need for an answer, and longer than a
	// sleeping processor needs to wake up.
	DefaultSpin = 200 * time.Microsecond

	// If a yield takes longer than crowdedYield, other threads need the core. The loop
	// does not spin for crowdedFor then. A program that answers a request, or a stack
	// that passes the request on, takes less time.
	crowdedYield = 200 * time.Microsecond
	crowdedFor   = 20 * time.Millisecond
)

// spinner decides whether a thread that finds nothing to do looks again for some time (it
// spins) or sleeps at once. A gap is the time from the end of one activity to the next. A
// spin helps if the gap is short: the next event waits neither for a wake-up of the thread
// nor for a sleeping processor. If the gaps are long, only one in 64 begins with a spin.
//
//	gap                     | effect
//	------------------------+---------------------------------------------------
//	at most the spin        | the next gaps begin with a spin
//	longer, after a spin    | the nth one in a row: 2^n-1 gaps without a spin
//	longer, without a spin  | none
//
// Its zero value never spins.
type spinner struct {
	most  time.Duration // the longest time of a spin
	tries tries         // which gaps begin with a spin
	spun  bool          // the current gap began with a spin
	since time.Time     // when the current gap began, or zero
	crowd
}

// begins records that there is nothing to do at the time now. It does nothing within a gap.
func (s *spinner) begins(now time.Time) {
	if s.since.IsZero() {
		s.since = now
		s.spun = s.tries.due() && s.most > 0 && !s.crowded(now)
	}
}

// spins reports whether to look again at the time now within a gap.
func (s *spinner) spins(now time.Time) bool {
	return s.spun && now.Sub(s.since) < s.most && !s.crowded(now)
}

// ends records that there is something to do. It calls now only if it needs the time.
func (s *spinner) ends(now func() time.Time) {
	if s.since.IsZero() || s.most <= 0 {
		s.since = time.Time{}
		return
	}
	switch gap := now().Sub(s.since); {
	case gap <= s.most:
		s.tries.hit()
	case s.spun:
		s.tries.miss()
	}
	s.since = time.Time{}
}

// tries decides when to try something again that was useless n times in a row: after 2^n-1
// times without a try. maxMisses is the maximum of n.
type tries struct{ misses, skip uint }

const maxMisses = 6

// due reports whether to try this time.
func (t *tries) due() bool {
	if t.skip > 0 {
		t.skip--
		return false
	}
	return true
}

// hit records that a try was useful.
func (t *tries) hit() { *t = tries{} }

// miss records that a try was useless.
func (t *tries) miss() {
	t.misses = min(t.misses+1, maxMisses)
	t.skip = 1<<t.misses - 1
}

// crowd records whether other threads need the core. In that case it is better to sleep: a
// thread that wakes up gets the core at once, but a thread that yields waits until all
// others have run.
type crowd struct{ until time.Time }

// yielded records a yield that began at start and ended at end.
func (c *crowd) yielded(start, end time.Time) {
	if end.Sub(start) > crowdedYield {
		c.until = end.Add(crowdedFor)
	}
}

// crowded reports whether other threads needed the core a short time before now.
func (c *crowd) crowded(now time.Time) bool { return now.Before(c.until) }
