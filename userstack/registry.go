// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"sync"

	"smcr/smc"
)

// registry is the part of a stack that knows its identity, the first contacts under way,
// its listeners, and what Close waits for. Link groups and connections are in the driver.
type registry struct {
	wg sync.WaitGroup // goroutines and rendezvous that Close waits for

	// mu guards what follows. The lock of a link group must not be taken while it is held.
	mu        sync.Mutex
	closed    bool
	peerID    smc.PeerID                // zero until a device was used
	first     map[peerKey]chan struct{} // servers' first contacts under way
	listeners map[net.Listener]struct{}
}

// peerKey tells peers apart. In version 2 the GID of the proposal belongs to
// it, since Linux leaves the peer ID zero where it does not offer version 1.
type peerKey struct {
	id  smc.PeerID
	gid smc.GID
}

// enter counts a rendezvous, which Close waits for; the caller ends it with
// wg.Done. Once the stack is closed none begins.
func (r *registry) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrStackClosed
	}
	r.wg.Add(1)
	return nil
}

// enterFirst begins a first contact with peer on the server side, until leave is called:
// connections that arrive together share one link group. If one is under way, leave is
// nil, and busy is closed when that one ends.
func (r *registry) enterFirst(peer peerKey) (leave func(), busy <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch := r.first[peer]; ch != nil {
		return nil, ch
	}
	ch := make(chan struct{})
	r.first[peer] = ch
	return func() {
		r.mu.Lock()
		delete(r.first, peer)
		r.mu.Unlock()
		close(ch)
	}, nil
}
