// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// hsLimit is how many rendezvous may be under way with handshake limitation, with the hosts of one origin half of them, and the less
// the fewer are left. The stack declines more than these.
const hsLimit = 64

// handshakeLimit is the part of a stack that counts and limits the rendezvous of servers. The
// limits of [rendezvous.Limit] always hold. With handshake limitation, hsLimit holds too.
type handshakeLimit struct {
	on atomic.Bool // handshake limitation

	mu       sync.Mutex
	underWay *rendezvous.Limit
	known    *rendezvous.Known
}

// caller returns how a host is counted. The network says whose address it is, or, in a simulation, nothing.
func (s *Stack) caller(local, remote netip.Addr) rendezvous.Caller {
	c := rendezvous.Caller{Host: remote, Origin: quota.OriginOfHost(remote)}
	if n, ok := s.net.(network.Neighbours); ok {
		if mac, ok := n.Neighbour(local, remote); ok {
			c.Origin = quota.OriginOfNeighbour(mac)
		} else {
			c.Origin = quota.OriginOfNetwork(remote)
		}
	}
	s.limit.mu.Lock()
	defer s.limit.mu.Unlock()
	c.Known = s.limit.known.Knows(time.Now(), c)
	return c
}

// meet notes that there is a connection with a host.
func (l *handshakeLimit) meet(c rendezvous.Caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known.Meet(time.Now(), c)
}

// add counts a rendezvous with a host, until remove. If there are too many, add returns false
// and does not count it.
func (l *handshakeLimit) add(c rendezvous.Caller) *rendezvous.Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on.Load() && !l.underWay.Within(c, hsLimit) {
		return &rendezvous.Refusal{Code: smc.DiagConfig, Err: fmt.Errorf("%d pending handshakes: the handshake limit is reached", l.underWay.Total())}
	}
	return l.underWay.Enter(c)
}

func (l *handshakeLimit) remove(c rendezvous.Caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay.Leave(c)
}
