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

// hsLimit is the number of rendezvous under way above which a stack with
// handshake limitation declines further ones.
const hsLimit = 32

// handshakeLimit is the part of a stack that counts the rendezvous of servers and limits
// them: always as [rendezvous.Limit] does, and to fewer with handshake limitation.
type handshakeLimit struct {
	on atomic.Bool // handshake limitation

	mu       sync.Mutex
	underWay *rendezvous.Limit
}

// add counts a rendezvous with a host; remove ends that. If too many are under way, add
// does not count it and says so.
func (l *handshakeLimit) add(host netip.Addr) *rendezvous.Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.underWay.Total(); n >= hsLimit && l.on.Load() {
		return &rendezvous.Refusal{Code: smc.DiagConfig, Err: fmt.Errorf("%d pending handshakes: the handshake limit is reached", n)}
	}
	return l.underWay.Enter(host)
}

func (l *handshakeLimit) remove(host netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay.Leave(host)
}
