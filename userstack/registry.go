// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"sync"

	"smcr/smc"
	"smcr/userstack/rendezvous"
)

// registry is the part of a stack that knows its identity, the first contacts under way,
// its listeners, and what Close waits for. Link groups and connections are in the driver.
type registry struct {
	wg sync.WaitGroup // goroutines and rendezvous that Close waits for

	// mu guards the fields below. Do not lock a link group while it is held.
	mu        sync.Mutex
	closed    bool
	peerID    smc.PeerID                           // zero until a device was used
	first     *rendezvous.FirstContacts            // of servers
	firstEnds map[rendezvous.Contact]chan struct{} // closed when the first contact ends
	listeners map[net.Listener]struct{}
}

// enter counts a rendezvous, for which Close waits. The caller ends it with wg.Done. A closed
// stack begins none: enter then returns false.
func (r *registry) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrStackClosed
	}
	r.wg.Add(1)
	return nil
}

// enterFirst begins the first contact with a client on the server side. It ends when leave is
// called. So connections that arrive together share one link group. If there is a first
// contact with this client already, leave is nil, and busy is closed when that one ends. If
// there are too many with other clients, no is the reason.
func (r *registry) enterFirst(c rendezvous.Contact, with rendezvous.Caller) (leave func(), busy <-chan struct{}, no *rendezvous.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	underWay, no := r.first.Begin(c, with)
	switch {
	case underWay:
		return nil, r.firstEnds[c], nil
	case no != nil:
		return nil, nil, no
	}
	ch := make(chan struct{})
	r.firstEnds[c] = ch
	return func() {
		r.mu.Lock()
		r.first.End(c)
		delete(r.firstEnds, c)
		r.mu.Unlock()
		close(ch)
	}, nil, nil
}
