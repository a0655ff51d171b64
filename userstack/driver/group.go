// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/engine"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
)

// Group drives one link group: it owns the lock of the protocol core, its queue pairs,
// memory and timer.
//
// A completion queue may call notify while the lock is held, even in the goroutine that holds
// it (closing a queue pair flushes its requests). So notify only sets pollWanted, and the
// holder of the lock polls.
type Group struct {
	s     *shared
	owner owner
	maker maker
	log   *slog.Logger
	peer  smc.PeerID // from the PROPOSAL or ACCEPT
	role  smc.Role
	lan   LAN
	// terms are nil in version 1. terms.Peer is guarded by mu.
	terms *rendezvous.Terms

	// mu guards the core and what follows.
	mu         sync.Mutex
	core       *linkgroup.Group
	pollWanted atomic.Bool // without mu
	exec       executor
	mem        groupMemory
	end        groupEnd
	loop       *engine.Loop // that serves its queue pairs and connections, or nil
	links      []*link
	leftover   []leftover
	first      chan error // the outcome of the first contact, buffered
	conns      map[member]struct{}
	peerAddr   netip.Addr // of the first connection
}

// owner is what a link group knows of the driver.
type owner interface {
	// ended is called when a link group has ended.
	ended(g *Group)
	// over is called when the group has released everything.
	over(g *Group)
}

// member is what a link group knows of a connection.
type member interface {
	// wakeRead, wakeWrite and wakeUrgent tell the program that there is data, room to write,
	// or urgent data. No lock is held.
	wakeRead()
	wakeWrite()
	wakeUrgent()
	// announced receives the outcome of announcing the RMB to the peer.
	announced(err error)
	// closed is called once, when the core does not need the connection any more.
	closed(err error)
	// setOver marks a connection of a broken group, whose core must not be used. mu is held.
	setOver()
	// broken ends such a connection. mu is not held.
	broken(err error)
	// row describes the connection for listings, and rmbe returns the size of its RMB element
	// in bytes. mu is held.
	row() nl.Connection
	// traced returns what a trace must know about the connection. ok is false if it has no
	// link. mu is held.
	traced() (row nl.TraceConn, ok bool)
	rmbe() int
	// abort resets a connection that a program has, when its stack ends. It does nothing for
	// others.
	abort()
	number() uint64
}

// leftover is a message that had arrived on a link before the link was closed. The core must
// see it: data that was acknowledged to the peer must not be lost.
type leftover struct {
	link *linkgroup.Link
	msg  []byte
}

// Name returns the ID of the group as listings print it.
func (g *Group) Name() string {
	id := g.core.ID()
	return hex.EncodeToString(id[:])
}

// ID returns the ID of the group as the kernel shows it.
func (g *Group) ID() nl.LinkGroupID {
	id := g.core.ID()
	return nl.LinkGroupID(binary.BigEndian.Uint32(id[:]))
}

// Role returns the role of this stack in the group.
func (g *Group) Role() smc.Role { return g.role }

// PeerID returns the ID of the peer in its PROPOSAL or ACCEPT.
func (g *Group) PeerID() smc.PeerID { return g.peer }

// Version returns the version of SMC: 1 or 2.
func (g *Group) Version() uint8 { return g.terms.Version() }

// FirstContact returns a channel for the outcome of the LLC exchange of the first contact.
// The rendezvous that made the group waits for it. The error may be the reason for which the
// group has ended.
func (g *Group) FirstContact() <-chan error { return g.first }
