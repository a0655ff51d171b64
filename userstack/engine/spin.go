// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

const (
	// DefaultSpin is how long after activity the loop looks for more before it
	// sleeps: longer than most programs take for an answer, and than a sleeping
	// processor takes to wake up.
	DefaultSpin = 200 * time.Microsecond

	// A yield that takes longer than crowdedYield tells that others need the
	// core, which is taken to be so for crowdedFor. A program that answers a
	// request, or a stack that passes it on, takes less.
	crowdedYield = 200 * time.Microsecond
	crowdedFor   = 20 * time.Millisecond
)

// spinner decides whether a thread that finds nothing to do looks again for a
// while (it spins) or sleeps at once. What comes soon is worth a spin: it then
// neither waits for a wake-up nor for a processor that has gone to sleep. What
// comes late is not, and traffic like that is soon left to sleeps: of 64 one is
// tried with a spin. A gap is the time from the end of one activity to the next.
//
//	gap                     | effect
//	------------------------+---------------------------------------------------
//	at most the spin        | the next gaps begin with a spin
//	longer, after a spin    | the nth one in a row: 2^n-1 gaps without a spin
//	longer, without a spin  | none
//
// Its zero value never spins.
type spinner struct {
	most  time.Duration // how long a spin takes at most
	tries tries         // which gaps begin with a spin
	spun  bool          // the present gap began with one
	since time.Time     // when the present gap began, or zero
	crowd
}

// begins notes that there is nothing to do at now. It does nothing within a gap.
func (s *spinner) begins(now time.Time) {
	if s.since.IsZero() {
		s.since = now
		s.spun = s.tries.due() && s.most > 0 && !s.crowded(now)
	}
}

// spins says whether to look again, at now within a gap.
func (s *spinner) spins(now time.Time) bool {
	return s.spun && now.Sub(s.since) < s.most && !s.crowded(now)
}

// ends notes that there is something to do. now is asked for the time.
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

// tries tells when to try again what was in vain n times one after the other: after
// 2^n-1 times without, maxMisses bounding n.
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

func (t *tries) hit() { *t = tries{} }

func (t *tries) miss() {
	t.misses = min(t.misses+1, maxMisses)
	t.skip = 1<<t.misses - 1
}

// crowd knows whether others need the core. It is better to sleep then: a thread
// that wakes up gets the core at once, one that yields waits until all others have
// had their turn.
type crowd struct{ until time.Time }

// yielded notes that a yield took from start to end.
func (c *crowd) yielded(start, end time.Time) {
	if end.Sub(start) > crowdedYield {
		c.until = end.Add(crowdedFor)
	}
}

func (c *crowd) crowded(now time.Time) bool { return now.Before(c.until) }
