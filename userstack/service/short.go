// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"sync"
	"time"

	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/divert"
)

// A connection over SMC-R takes longer to make than one over TCP. If SMC-R was of no use for many connections of a
// user to a peer in a row, the next ones are not announced. From time to time, one tries again:
//
//	state  | event                                | new state
//	-------+--------------------------------------+----------------------------------------------
//	tries  | shortRow short connections in a row  | silent for shortFirst
//	silent | the time is over                     | silent for tryTime, but for one connection
//	silent | that one was short                   | silent for twice the last time, at most shortLast
//	any    | a connection was not short           | tries
//
// In a row, no more than rowGap passes from one connection to the next.
const (
	shortRow   = 32
	rowGap     = time.Second
	shortFirst = time.Second
	shortLast  = 32 * time.Second
	tryTime    = 10 * time.Second
	// forgetTime is how long a destination without connections is remembered, and maxShort how many there are: maxShortUser of one user
	// other than root, who leaves as many for others, see quota.Fair.
	forgetTime   = 2 * shortLast
	maxShort     = 4096
	maxShortUser = maxShort / 2
)

// A short connection carries less than littleBytes within shortLife, or less than shortBytes while it is open for less
// than shortShare times what it took to make, or shortOpen.
const (
	shortBytes  = 256 << 10
	littleBytes = 16 << 10
	shortLife   = time.Second
	shortShare  = 3
	shortOpen   = 20 * time.Millisecond
)

// isShort reports whether a connection was short that took made to make, was open for open, and carried so many bytes in
// both directions together.
func isShort(made, open time.Duration, carried uint64) bool {
	switch {
	case open >= shortLife || carried >= shortBytes:
		return false
	case carried < littleBytes:
		return true
	}
	return open < min(max(shortShare*made, shortOpen), shortLife)
}

// shorts records for whom SMC-R is of no use. It reads no clock.
type shorts struct {
	mu    sync.Mutex
	dests map[dest]*destRow
	users map[uint32]int // how many of these an account has: see quota.Account
}

func newShorts() *shorts { return &shorts{dests: map[dest]*destRow{}, users: map[uint32]int{}} }

// dest is a peer of a user.
type dest struct {
	uid uint32
	to  netip.AddrPort
}

type destRow struct {
	n      int       // short connections in a row
	last   time.Time // when the last one of them ended
	silent time.Duration
	since  time.Time // when the silence began
}

// learn records the end of a connection that began at a time. It returns what is to be silence from now on, if that changes.
func (s *shorts) learn(now, began time.Time, d dest, short bool) (q divert.Silence, changes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.dests[d]
	if !short {
		s.forget(d)
		return divert.Silence{}, r != nil && r.silent > 0
	}
	if r == nil {
		if !s.hasRoom(d.uid) && !s.makeRoom(now, d.uid) {
			return q, false
		}
		r = &destRow{}
		s.dests[d] = r
		s.users[quota.Account(d.uid)]++
	}
	switch {
	case r.silent > 0 && began.Before(r.since.Add(r.silent)):
		return q, false // it began before the silence, or within it
	case r.silent > 0 && now.Sub(r.last) < forgetTime:
		r.silent = min(2*r.silent, shortLast)
	default:
		if now.Sub(r.last) > rowGap {
			r.n = 0
		}
		r.n++
		r.silent, r.last = 0, now
		if r.n < shortRow {
			return q, false
		}
		r.silent = shortFirst
	}
	r.since, r.last = now, now
	return divert.Silence{For: r.silent, Again: tryTime, Why: smc.DiagShort}, true
}

// hasRoom reports whether there is room for one more peer of a user. mu is held.
func (s *shorts) hasRoom(uid uint32) bool {
	who := quota.Account(uid)
	return len(s.dests) < maxShort && (who == 0 || quota.Fair(s.users[who], 1, maxShortUser, len(s.dests), maxShort))
}

// makeRoom forgets what is too old. It reports whether there is room for a user now. mu is held.
func (s *shorts) makeRoom(now time.Time, uid uint32) bool {
	for d, r := range s.dests {
		if age := now.Sub(r.last); age > forgetTime || r.silent == 0 && age > rowGap {
			s.forget(d)
		}
	}
	return s.hasRoom(uid)
}

// forget forgets a peer of a user. mu is held.
func (s *shorts) forget(d dest) {
	if s.dests[d] == nil {
		return
	}
	delete(s.dests, d)
	who := quota.Account(d.uid)
	if s.users[who]--; s.users[who] == 0 {
		delete(s.users, who)
	}
}
