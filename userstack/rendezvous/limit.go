// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"net/netip"

	"smcr/quota"
	"smcr/smc"
)

// How many rendezvous a server has under way at most: with one host, and with all hosts
// together. From the second one on, a host also leaves as many for others as it has: see quota.Fair. Beyond that, DECLINE is the answer to PROPOSAL, and the connection is TCP.
//
// A rendezvous needs little until the server sends ACCEPT. A first contact needs a queue
// pair and an RMB from then on, because ACCEPT names them, and the client has
// [MessageWait] to send CONFIRM. So the limits of first contacts are low. An honest host
// has one under way for each of its stacks: connections that arrive together share it.
const (
	MaxHandshakes          = 2048 // rendezvous with all hosts together
	MaxHandshakesOfHost    = 512  // rendezvous with one host
	MaxFirstContacts       = 64   // first contacts with all hosts together
	MaxFirstContactsOfHost = 8    // first contacts with one host
)

// A Limit counts what is under way with each host, and bounds it. It takes no lock.
type Limit struct {
	what      string
	all, host int // the most
	total     int
	hosts     map[netip.Addr]int // only those that are not 0
}

// NewHandshakeLimit returns the limit of the rendezvous of a server whose client has sent
// PROPOSAL: [MaxHandshakes] and [MaxHandshakesOfHost].
func NewHandshakeLimit() *Limit { return newLimit("handshakes", MaxHandshakes, MaxHandshakesOfHost) }

func newLimit(what string, all, host int) *Limit {
	return &Limit{what: what, all: all, host: host, hosts: map[netip.Addr]int{}}
}

// Enter counts one more of a host, until Leave is called with the same address. If that is
// too many, Enter does not count it and returns why.
func (l *Limit) Enter(host netip.Addr) *Refusal {
	k := quota.Host(host)
	switch n := l.hosts[k]; {
	case n >= l.host:
		return refuse(smc.DiagMem, "%d %s with host %s are under way", n, l.what, k)
	case l.total >= l.all:
		return refuse(smc.DiagMem, "%d %s are under way", l.total, l.what)
	case !quota.Fair(n, 1, l.host, l.total, l.all):
		return refuse(smc.DiagMem, "%d %s with host %s are under way, which leaves as many for others", n, l.what, k)
	}
	l.hosts[k]++
	l.total++
	return nil
}

// Leave ends what Enter has counted.
func (l *Limit) Leave(host netip.Addr) {
	k := quota.Host(host)
	if l.hosts[k] == 0 {
		panic("rendezvous: Leave without Enter")
	}
	l.total--
	if l.hosts[k]--; l.hosts[k] == 0 {
		delete(l.hosts, k)
	}
}

// Total returns how many are under way with all hosts together.
func (l *Limit) Total() int { return l.total }

// Within reports whether one more of a host would be within another bound of all, of which the host has a half at most, and, from
// the second one on, no more than is then left for all others.
func (l *Limit) Within(host netip.Addr, all int) bool {
	return quota.Fair(l.hosts[quota.Host(host)], 1, all/2, l.total, all)
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
	underWay map[Contact]bool
}

// NewFirstContacts returns a FirstContacts with the limits [MaxFirstContacts] and
// [MaxFirstContactsOfHost].
func NewFirstContacts() *FirstContacts {
	return &FirstContacts{
		limit:    newLimit("first contacts", MaxFirstContacts, MaxFirstContactsOfHost),
		underWay: map[Contact]bool{},
	}
}

// Begin begins a first contact, which End ends. If another one with the client is under
// way, nothing begins and busy is true. If too many are under way, nothing begins and no
// says so.
func (f *FirstContacts) Begin(c Contact) (busy bool, no *Refusal) {
	if f.underWay[c] {
		return true, nil
	}
	if no := f.limit.Enter(c.Host); no != nil {
		return false, no
	}
	f.underWay[c] = true
	return false, nil
}

// End ends a first contact that has begun.
func (f *FirstContacts) End(c Contact) {
	if f.underWay[c] {
		delete(f.underWay, c)
		f.limit.Leave(c.Host)
	}
}
