// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"smcr/smc"
)

// registry is the part of a stack that knows what lives on it: its identity, link groups,
// first contacts, connections, listeners and rendezvous.
type registry struct {
	lastLGR      atomic.Uint32
	lastSock     atomic.Uint64
	groupsPlaced atomic.Uint32  // see group.place
	wg           sync.WaitGroup // goroutines and rendezvous that Close waits for

	// mu guards what follows. It is the lock of the stack. It may be taken while the lock
	// of a link group is held, but not the other way round.
	mu        sync.Mutex
	closed    bool
	peerID    smc.PeerID // zero until a device was used
	groups    map[*group]struct{}
	ending    map[*group]struct{}       // dead, with something left to give back
	first     map[peerKey]chan struct{} // servers' first contacts under way
	conns     map[*Conn]struct{}
	listeners map[*listener]struct{}
}

// peerKey tells peers apart. In version 2 the GID of the proposal belongs to
// it, since Linux leaves the peer ID zero where it does not offer version 1.
type peerKey struct {
	id  smc.PeerID
	gid smc.GID
}

// nextGroupID numbers link groups as the kernel does: in steps that leave
// the low bits for link numbers.
func (r *registry) nextGroupID() (id [4]byte) {
	n := r.lastLGR.Add(1)
	return [4]byte{byte(n >> 16), byte(n >> 8), byte(n), 0}
}

// groupList returns the link groups, the oldest first: what is done to all of
// them, or to the first that serves, does not depend on the order of a map.
func (r *registry) groupList() []*group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sortedGroups()
}

func (r *registry) sortedGroups() []*group {
	return slices.SortedFunc(maps.Keys(r.groups), func(a, b *group) int { return cmp.Compare(lgrID(a), lgrID(b)) })
}

func (r *registry) addGroup(g *group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrStackClosed
	}
	r.groups[g] = struct{}{}
	return nil
}

func (r *registry) forgetGroup(g *group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.groups, g)
	r.ending[g] = struct{}{}
}

func (r *registry) groupOver(g *group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ending, g)
}

// awaitGroups waits until the groups that have died are over, but not longer than limit.
// It returns a group that was not over by then, or nil.
func (r *registry) awaitGroups(limit time.Duration) (late *group) {
	r.mu.Lock()
	ending := slices.Collect(maps.Keys(r.ending))
	r.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	for _, g := range ending {
		select {
		case <-g.end.over:
		case <-t.C:
			return g
		}
	}
	return nil
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
