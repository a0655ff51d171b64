// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"smcr/smc"
	"smcr/userstack/rendezvous"
)

// hsLimit is how many rendezvous may be under way with handshake limitation, with one host half of them, and the less
// the fewer are left. The stack declines more than these.
const hsLimit = 64

// handshakeLimit is the part of a stack that counts and limits the rendezvous of servers. The
// limits of [rendezvous.Limit] always hold. With handshake limitation, hsLimit holds too.
type handshakeLimit struct {
	on atomic.Bool // handshake limitation

	mu       sync.Mutex
	underWay *rendezvous.Limit
}

// add counts a rendezvous with a host, until remove. If there are too many, add returns false
// and does not count it.
func (l *handshakeLimit) add(host netip.Addr) *rendezvous.Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on.Load() && !l.underWay.Within(host, hsLimit) {
		return &rendezvous.Refusal{Code: smc.DiagConfig, Err: fmt.Errorf("%d pending handshakes: the handshake limit is reached", l.underWay.Total())}
	}
	return l.underWay.Enter(host)
}

func (l *handshakeLimit) remove(host netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay.Leave(host)
}
