// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"sync"
	"sync/atomic"

	"smcr/userstack/engine"
	"smcr/userstack/internal/mempool"
)

// shared is what the link groups of a stack have in common.
type shared struct {
	Config
	pool     *mempool.Pool
	trim     trimmer
	accounts accounts

	groups atomic.Uint64  // link groups made
	placed atomic.Uint32  // link groups given to an engine
	socks  atomic.Uint64  // connections made
	open   atomic.Int64   // connections that were given out and have not ended
	wg     sync.WaitGroup // goroutines that watch TCP connections
}

// groupNumbers is how many link groups have different IDs.
const groupNumbers = 1 << 24

// nextGroupID returns an ID for a new link group, which none of the groups that exist has.
// It is never 0. Like the kernel, it leaves the low bits for link numbers, so the user IDs
// of links are unique too (RFC 7609, appendix A.3.1). The IDs begin again after groupNumbers
// groups, which a peer can bring about in some days. exists reports whether a group has an ID.
func (s *shared) nextGroupID(exists func(id [4]byte) bool) [4]byte {
	for {
		n := s.groups.Add(1)
		id := [4]byte{byte(n >> 16), byte(n >> 8), byte(n), 0}
		if n < groupNumbers || n%groupNumbers != 0 && !exists(id) {
			return id
		}
	}
}

// place returns the engine of a new link group and its number. The engines take turns.
func (s *shared) place() (loop *engine.Loop, shard int) {
	if len(s.Engines) == 0 {
		return nil, 0
	}
	shard = int(s.placed.Add(1)-1) % len(s.Engines)
	return s.Engines[shard], shard
}

// beginPost begins a section in which the calling goroutine may cause sending. endPost must
// follow. It sends if the engine of the stack sleeps.
func (s *shared) beginPost() {
	if s.Loop != nil {
		s.Loop.Enter()
	}
}

func (s *shared) endPost() {
	if s.Loop != nil {
		s.Loop.Leave()
	}
}
