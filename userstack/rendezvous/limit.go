// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"net/netip"

	"smcr/quota"
	"smcr/smc"
)

// How many rendezvous a server has under way at most: with one host, with the hosts of one origin ([quota.Origin]), and with all
// together. From the second one on, an origin also leaves as many for others as it has: see quota.Fair. Some are for hosts that
// are known ([Known]), so that strangers, however many addresses they have, do not keep them out. Beyond that, DECLINE is the
// answer to PROPOSAL, and the connection is TCP.
//
// A rendezvous needs little until the server sends ACCEPT. A first contact needs a queue
// pair and an RMB from then on, because ACCEPT names them, and the client has
// [MessageWait] to send CONFIRM. So the limits of first contacts are low. An honest host
// has one under way for each of its stacks: connections that arrive together share it.
const (
	MaxHandshakes            = 2048 // rendezvous with all hosts together
	MaxHandshakesOfHost      = 512  // rendezvous with one host
	MaxHandshakesOfOrigin    = 1024 // rendezvous with the hosts of one origin
	MaxFirstContacts         = 64   // first contacts with all hosts together
	MaxFirstContactsOfHost   = 8    // first contacts with one host
	MaxFirstContactsOfOrigin = 16   // first contacts with the hosts of one origin

	// Connections of a program's own listeners that were announced and have not sent PROPOSAL. Each has a descriptor of the program.
	MaxUndecided         = 1024 // with all hosts together
	MaxUndecidedOfOrigin = 512  // with the hosts of one origin

	// KnownShare: 1/KnownShare of what all have together is for hosts that are known.
	KnownShare = 4
)

// A Caller is the host that a rendezvous of a server is with, as it is counted.
type Caller struct {
	Host   netip.Addr // its address on the TCP connection
	Origin quota.Origin
	Known  bool // see [Known]
}

// host is the host as it is counted.
func (c Caller) host() netip.Addr { return c.Origin.HostOf(c.Host) }

// A Limit counts what is under way with each host, and bounds it. It takes no lock.
type Limit struct {
	what              string
	all, origin, host int // the most
	strangers         int
	hosts             quota.Tally[netip.Addr]
	origins           quota.Tally[quota.Origin]
}

// NewHandshakeLimit returns the limit of the rendezvous of a server whose client has sent
// PROPOSAL: [MaxHandshakes] and those of hosts and origins.
func NewHandshakeLimit() *Limit {
	return newLimit("handshakes", MaxHandshakes, MaxHandshakesOfOrigin, MaxHandshakesOfHost)
}

// NewUndecidedLimit returns the limit of the connections of a server that were announced, until PROPOSAL is there: [MaxUndecided] and that of origins.
func NewUndecidedLimit() *Limit {
	return newLimit("undecided connections", MaxUndecided, MaxUndecidedOfOrigin, MaxUndecidedOfOrigin)
}

func newLimit(what string, all, origin, host int) *Limit {
	return &Limit{what: what, all: all, origin: origin, host: host}
}

// Refuses returns why one more of a host would be too many, or nil.
func (l *Limit) Refuses(c Caller) *Refusal {
	k := c.host()
	n, forStrangers := l.origins.Of(c.Origin), l.forStrangers()
	switch {
	case l.hosts.Of(k) >= l.host:
		return refuse(smc.DiagMem, "%d %s with host %s are under way", l.hosts.Of(k), l.what, k)
	case l.Total() >= l.all:
		return refuse(smc.DiagMem, "%d %s are under way", l.Total(), l.what)
	case !c.Known && l.strangers >= forStrangers:
		return refuse(smc.DiagMem, "%d %s with hosts that are not known are under way", l.strangers, l.what)
	case !l.origins.Fair(c.Origin, l.origin, l.all), !c.Known && !quota.Fair(n, 1, l.origin, l.strangers, forStrangers):
		return refuse(smc.DiagMem, "%d %s with %s are under way, which leaves as many for others", n, l.what, c.Origin)
	}
	return nil
}

func (l *Limit) forStrangers() int { return l.all - l.all/KnownShare }

// FullForStrangers reports whether those who are not known can have no more, whoever they are.
func (l *Limit) FullForStrangers() bool { return l.strangers >= l.forStrangers() || l.Total() >= l.all }

// Enter counts one more of a host, until Leave is called with the same caller. If that is
// too many, Enter does not count it and returns why.
func (l *Limit) Enter(c Caller) *Refusal {
	if no := l.Refuses(c); no != nil {
		return no
	}
	l.hosts.Add(c.host())
	l.origins.Add(c.Origin)
	if !c.Known {
		l.strangers++
	}
	return nil
}

// Leave ends what Enter has counted.
func (l *Limit) Leave(c Caller) {
	l.hosts.Remove(c.host())
	l.origins.Remove(c.Origin)
	if !c.Known {
		l.strangers--
	}
}

// Total returns how many are under way with all hosts together.
func (l *Limit) Total() int { return l.hosts.Total() }

// Within reports whether one more of a host would be within another bound of all, of which the hosts of an origin have a half at
// most, and, from the second one on, no more than is then left for all others.
func (l *Limit) Within(c Caller, all int) bool {
	return l.origins.Fair(c.Origin, all/2, all)
}

// Contact tells apart the clients whose first contacts a server makes one after the other.
// Host is the client's address on the TCP connection, so a host that proposes in the name
// of another one does not delay that one.
type Contact struct {
	Host   netip.Addr
	PeerID smc.PeerID
	GID    smc.GID // of version 2, else zero: see AwaitTurn
}

func (c Contact) String() string { return fmt.Sprintf("peer %s at %s", c.PeerID, c.Host) }

// FirstContacts is which first contacts a server has under way. It takes no lock.
type FirstContacts struct {
	limit    *Limit
	underWay map[Contact]Caller
}

// NewFirstContacts returns a FirstContacts with the limit [MaxFirstContacts] and
// those of hosts and origins.
func NewFirstContacts() *FirstContacts {
	return &FirstContacts{
		limit:    newLimit("first contacts", MaxFirstContacts, MaxFirstContactsOfOrigin, MaxFirstContactsOfHost),
		underWay: map[Contact]Caller{},
	}
}

// Begin begins a first contact, which End ends. If another one with the client is under
// way, nothing begins and busy is true. If too many are under way, nothing begins and no
// says so.
func (f *FirstContacts) Begin(c Contact, with Caller) (busy bool, no *Refusal) {
	if _, busy := f.underWay[c]; busy {
		return true, nil
	}
	if no := f.limit.Enter(with); no != nil {
		return false, no
	}
	f.underWay[c] = with
	return false, nil
}

// End ends a first contact that has begun.
func (f *FirstContacts) End(c Contact) {
	if with, ok := f.underWay[c]; ok {
		delete(f.underWay, c)
		f.limit.Leave(with)
	}
}
