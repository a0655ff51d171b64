// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"iter"
	"net/netip"
	"time"
)

// Bounds of [Silents]. An honest host is silent now and then: it has lost its power, or the option was taken off a SYN-ACK on the way.
const (
	// MostSilents is how many origins are remembered.
	MostSilents = 1024
	// SilentMost is how many connections of an origin may say nothing, each less than SilentFor after the one before.
	SilentMost = 16
	// SilentFor is the time between two of them after which counting begins anew.
	SilentFor = time.Minute
	// MuteFirst is how long nothing is announced to an origin with more. If it then goes on, that doubles.
	MuteFirst = time.Minute
	// MuteLast is the longest such time.
	MuteLast = 15 * time.Minute
)

// Silents are the origins whose connections announce SMC and then say nothing, and how long nothing is to be announced to them. K names
// an origin. The zero value is ready for use. Silents take no lock.
type Silents[K comparable] struct{ of map[K]*silent }

// silent is what is known of one origin.
type silent struct {
	n     int
	last  time.Time // when it was silent last
	peer  netip.Addr
	until time.Time     // nothing is announced to it
	pause time.Duration // the last one; 0: none
}

// A Mute is an origin of hosts whose connections are not announced, because too many have said nothing.
type Mute struct {
	// Remote is the host of which the last one was.
	Remote netip.Addr
	// Left is how long yet.
	Left time.Duration
}

// more notes one more connection that has said nothing, and reports whether nothing is to be announced for a time.
func (s *silent) more(now time.Time, peer netip.Addr) (mute bool) {
	if now.Sub(s.last) >= SilentFor {
		s.n = 0
	}
	s.n++
	s.last, s.peer = now, peer
	if s.n <= SilentMost || now.Before(s.until) {
		return false
	}
	s.n = 0
	s.pause = min(max(2*s.pause, MuteFirst), MuteLast)
	s.until = now.Add(s.pause)
	return true
}

// past reports whether it says nothing any more about the origin: after a pause, for as long again.
func (s *silent) past(now time.Time) bool {
	return now.Sub(s.last) >= SilentFor && now.Sub(s.until) >= s.pause
}

// Add notes a connection of an origin that has said nothing, whose host is peer. If there is no room for the origin, that is not
// remembered: what it may have is bounded all the same. It returns for how long nothing is to be announced to it, or 0 if nothing is new.
func (all *Silents[K]) Add(now time.Time, from K, peer netip.Addr) time.Duration {
	s := all.of[from]
	if s == nil {
		if len(all.of) >= MostSilents {
			return 0
		}
		if all.of == nil {
			all.of = map[K]*silent{}
		}
		s = &silent{last: now}
		all.of[from] = s
	}
	if !s.more(now, peer) {
		return 0
	}
	return s.pause
}

// Spoke notes a connection that has used SMC-R: what went before may have had other reasons.
func (all *Silents[K]) Spoke(from K) {
	if s := all.of[from]; s != nil {
		s.n /= 2
	}
}

// Muted reports whether nothing is to be announced to an origin for now.
func (all *Silents[K]) Muted(now time.Time, from K) bool {
	s := all.of[from]
	return s != nil && now.Before(s.until)
}

// Mutes returns the origins to which nothing is announced for now.
func (all *Silents[K]) Mutes(now time.Time) iter.Seq[Mute] {
	return func(yield func(Mute) bool) {
		for _, s := range all.of {
			if left := s.until.Sub(now); left > 0 && !yield(Mute{s.peer, left}) {
				return
			}
		}
	}
}

// Forget forgets the origins of which nothing is to be remembered, and calls over for each to which something may be announced again.
func (all *Silents[K]) Forget(now time.Time, over func(from K)) {
	for from, s := range all.of {
		if !now.Before(s.until) && s.pause > 0 {
			over(from)
		}
		if s.past(now) {
			delete(all.of, from)
		}
	}
}
