// SPDX-License-Identifier: Apache-2.0

package pathmemory

import (
	"cmp"
	"net/netip"
	"time"

	"smcr/quota"
)

// The size of a [Memory]. A host with a path too many loses its oldest one, and if there are
// too many of all hosts, the host with the most loses one.
const (
	MaxPaths       = 1024 // paths to all hosts together
	MaxPathsOfHost = 16   // paths to one host; the addresses of an IPv6 subnet of 64 bits are one
)

// How long a path waits for the next try: FirstPause after the first failure, twice as long
// after each other one, up to the limit that [Memory.Failed] is given.
const FirstPause = 5 * time.Second

const (
	// tryTime is how long a try may take until another connection may try: the first one may
	// have ended without a first contact.
	tryTime = 2 * time.Second
	// forgetAfter is how long a path is remembered that nobody has tried.
	forgetAfter = time.Hour
)

// Path is a way on which RoCE packets go. Whoever connects chooses one of the addresses of both hosts, and RoCE packets
// have the address that belongs to it. So what one pair of addresses shows is nothing that holds for another one.
type Path struct {
	IfIndex       int        // of the netdev of this host
	Local, Remote netip.Addr // of this host and of the peer on the TCP connection
}

// Verdict says what a connection over a path is to do.
type Verdict uint8

const (
	// Open: nothing is known about the path.
	Open Verdict = iota
	// Retry: RoCE did not pass; this connection may try again, with little time.
	Retry
	// Blocked: RoCE did not pass; the connection is to stay TCP.
	Blocked
)

// Memory is the memory of one stack.
//
//	path    | event                              | path    | verdict
//	--------+------------------------------------+---------+---------
//	open    | Try                                | open    | Open
//	any     | Failed                             | blocked |
//	open    | Told                               | blocked |
//	open    | Suspect                            | trying  |
//	blocked | Try, before the pause is over      | blocked | Blocked
//	blocked | Try, after it                      | trying  | Retry
//	trying  | Try within tryTime                 | trying  | Blocked
//	trying  | Try, later                         | trying  | Retry
//	any     | Works                              | open    |
type Memory struct {
	paths map[Path]*entry
	hosts map[netip.Addr]int // paths of each host, only those that are not 0
}

// entry is what is known about a path that is not open.
type entry struct {
	failed time.Time // last
	pause  time.Duration
	next   time.Time // when it may be tried
}

// New returns a Memory that knows nothing.
func New() *Memory { return &Memory{paths: map[Path]*entry{}, hosts: map[netip.Addr]int{}} }

// Ask returns the verdict for a connection that does not try now.
func (m *Memory) Ask(now time.Time, p Path) Verdict {
	e := m.find(now, p)
	switch {
	case e == nil:
		return Open
	case now.Before(e.next):
		return Blocked
	}
	return Retry
}

// Try returns the verdict for a connection that tries SMC-R if it may. After Retry, others may
// not try for a while.
func (m *Memory) Try(now time.Time, p Path) Verdict {
	v := m.Ask(now, p)
	if v == Retry {
		m.paths[p].next = now.Add(tryTime)
	}
	return v
}

// Failed says that RoCE did not pass, although TCP did. The next try is after a pause of at
// most longest. Failed reports whether nothing was known about the path.
func (m *Memory) Failed(now time.Time, p Path, longest time.Duration) (first bool) {
	e := m.find(now, p)
	if e == nil {
		e, first = m.add(now, p), true
	}
	e.pause = min(max(FirstPause, 2*e.pause), longest)
	e.failed, e.next = now, now.Add(e.pause)
	return first
}

// Told says that the peer has declined because RoCE did not pass before. Nothing was tried, so
// the pause does not grow.
func (m *Memory) Told(now time.Time, p Path) {
	e := m.find(now, p)
	if e == nil {
		e = m.add(now, p)
	}
	if at := now.Add(FirstPause); at.After(e.next) {
		e.next = at
	}
}

// Suspect says that RoCE may not pass: the next connection is to find out with little time, and
// the others wait for that as after Retry.
func (m *Memory) Suspect(now time.Time, p Path) {
	if m.find(now, p) == nil {
		m.add(now, p)
	}
}

// Works says that RoCE passes, and reports whether that is new.
func (m *Memory) Works(p Path) bool {
	if m.paths[p] == nil {
		return false
	}
	m.remove(p)
	return true
}

// FailedSince reports whether the path has failed at t or later.
func (m *Memory) FailedSince(t time.Time, p Path) bool {
	e := m.paths[p]
	return e != nil && !e.failed.Before(t)
}

// Len returns how many paths are not open.
func (m *Memory) Len(now time.Time) int {
	for p := range m.paths {
		m.find(now, p)
	}
	return len(m.paths)
}

// A Known is a path that is not open.
type Known struct {
	Path
	Left time.Duration // until the next try; 0: the next connection tries
}

// All returns the paths that are not open.
func (m *Memory) All(now time.Time) (all []Known) {
	for p := range m.paths {
		if e := m.find(now, p); e != nil {
			all = append(all, Known{p, max(e.next.Sub(now), 0)})
		}
	}
	return all
}

// find returns what is known about a path, or nil. It forgets what is too old.
func (m *Memory) find(now time.Time, p Path) *entry {
	e := m.paths[p]
	if e != nil && now.Sub(e.next) >= forgetAfter {
		m.remove(p)
		return nil
	}
	return e
}

// add makes room for a path.
func (m *Memory) add(now time.Time, p Path) *entry {
	host := quota.Host(p.Remote)
	switch {
	case m.hosts[host] >= MaxPathsOfHost:
		m.removeOldest(host)
	case len(m.paths) >= MaxPaths:
		m.removeOldest(m.largest())
	}
	e := &entry{next: now}
	m.paths[p] = e
	m.hosts[host]++
	return e
}

// largest returns the host with the most paths. Of several, it is the first one, so that the
// result does not depend on the order of a map.
func (m *Memory) largest() (host netip.Addr) {
	most := 0
	for h, n := range m.hosts {
		if n > most || n == most && h.Less(host) {
			host, most = h, n
		}
	}
	return host
}

// removeOldest forgets the path of a host that may be tried first.
func (m *Memory) removeOldest(host netip.Addr) {
	var oldest Path
	var at time.Time
	for p, e := range m.paths {
		if quota.Host(p.Remote) != host {
			continue
		}
		if at.IsZero() || e.next.Before(at) || e.next.Equal(at) && p.less(oldest) {
			oldest, at = p, e.next
		}
	}
	m.remove(oldest)
}

func (p Path) less(o Path) bool {
	return cmp.Or(p.Remote.Compare(o.Remote), p.Local.Compare(o.Local), cmp.Compare(p.IfIndex, o.IfIndex)) < 0
}

func (m *Memory) remove(p Path) {
	delete(m.paths, p)
	host := quota.Host(p.Remote)
	if m.hosts[host]--; m.hosts[host] <= 0 {
		delete(m.hosts, host)
	}
}
