// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"iter"
	"net/netip"
	"time"

	"smcr/quota"
)

// Bounds of [Known], and how long a host is known after its last connection.
const (
	MaxKnown         = 1024           // hosts
	MaxKnownOfOrigin = 64             // hosts of one origin
	KnownFor         = 24 * time.Hour // after the last connection
)

// Known remembers the hosts with which there was a connection over SMC-R: a part of what a server can have under way is theirs
// (see [Limit]). A host must answer over RoCE and at its address to be known, so that one is not known by a PROPOSAL. It takes no lock.
type Known struct {
	hosts map[netip.Addr]met
}

type met struct {
	origin quota.Origin
	at     time.Time
}

// A Met is a host that is known.
type Met struct {
	Host   netip.Addr // as it is counted: see quota.Origin.HostOf
	Origin quota.Origin
	At     time.Time // of the last connection
}

// NewKnown returns a Known that knows nobody.
func NewKnown() *Known { return &Known{hosts: map[netip.Addr]met{}} }

// Meet notes a connection with a host. An origin with [MaxKnownOfOrigin] hosts has the one forgotten that it was met with longest ago.
// If [MaxKnown] are known, that of the origin with the most hosts goes.
func (k *Known) Meet(now time.Time, c Caller) {
	k.put(now, Met{c.host(), c.Origin, now})
}

// Recall notes a host that another process of this stack has met. What this one knows itself is later.
func (k *Known) Recall(now time.Time, m Met) {
	if age := now.Sub(m.At); age < 0 || age >= KnownFor {
		return
	}
	if is, ok := k.hosts[m.Host]; !ok || is.at.Before(m.At) {
		k.put(now, m)
	}
}

func (k *Known) put(now time.Time, m Met) {
	if is, ok := k.hosts[m.Host]; !ok || is.origin != m.Origin {
		delete(k.hosts, m.Host)
		k.makeRoom(now, m.Origin)
	}
	k.hosts[m.Host] = met{m.Origin, m.At}
}

// Knows reports whether there was a connection with a host of the same origin not long ago. Who takes the address of another one, but
// not its Ethernet address, is not known.
func (k *Known) Knows(now time.Time, c Caller) bool {
	m, ok := k.hosts[c.host()]
	return ok && m.origin == c.Origin && now.Sub(m.at) < KnownFor
}

// All returns the hosts that are known.
func (k *Known) All(now time.Time) iter.Seq[Met] {
	return func(yield func(Met) bool) {
		for host, m := range k.hosts {
			if now.Sub(m.at) < KnownFor && !yield(Met{host, m.origin, m.at}) {
				return
			}
		}
	}
}

// makeRoom forgets those that are not known any more, and one more if there is no room for one of an origin.
func (k *Known) makeRoom(now time.Time, of quota.Origin) {
	count, most := map[quota.Origin]int{}, of
	for h, m := range k.hosts {
		if now.Sub(m.at) >= KnownFor {
			delete(k.hosts, h)
			continue
		}
		if count[m.origin]++; count[m.origin] > count[most] {
			most = m.origin
		}
	}
	switch {
	case count[of] >= MaxKnownOfOrigin:
		k.forgetOldest(of)
	case len(k.hosts) >= MaxKnown:
		k.forgetOldest(most)
	}
}

// forgetOldest forgets the host of an origin that was met longest ago.
func (k *Known) forgetOldest(of quota.Origin) {
	var oldest netip.Addr
	for h, m := range k.hosts {
		if m.origin == of && (!oldest.IsValid() || m.at.Before(k.hosts[oldest].at)) {
			oldest = h
		}
	}
	delete(k.hosts, oldest)
}
