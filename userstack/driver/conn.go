// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"net/netip"
	"sync/atomic"

	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
)

// Conn is the driver's part of a connection. Its fields are its parts, and each part has the
// methods for one purpose. Only Wait of Reader and Writer, and CarryIn and CarryOut of
// Carriage, wait for the peer.
type Conn struct {
	g             *Group
	core          *linkgroup.Conn
	tcp           TCP
	local, remote netip.AddrPort
	ino           uint64 // for listings
	owner         inside.Owner

	// most is how much memory the connection may use, in bytes, while it counts for its user.
	// The group's lock guards it.
	most int64

	ready  chan error     // outcome of announcing the RMB, buffered
	urgent chan struct{}  // urgent data, for the program
	drive  *engine.Waiter // nil without an engine

	In      Reader
	Out     Writer
	End     Ending
	Carried Carriage
	below   tcpWatch

	// Bytes that the program has read and written; guarded by the group's lock.
	rxBytes, txBytes uint64
}

// Reader is the part of a connection that a program reads with. One goroutine at a time
// may use its methods, except for SetDeadline and Barred.
type Reader struct {
	waiting
	c    *Conn
	shut atomic.Bool // Shut was called

	// Guarded by the group's lock. The reader itself may look at peeked without it, because
	// nobody else changes it.
	peeked     bool // the program has bytes from Peek
	delivering bool // the program has bytes from Take
}

// Writer is the part of a connection that a program writes with. One goroutine at a time
// may use its methods, except for SetDeadline and Barred.
type Writer struct {
	waiting
	c        *Conn
	reserved int // bytes that the program has from Reserve

	full bool // the last reserve found too little room; guarded by the group's lock
}

// Ending is the part of a connection that ends it, and keeps its buffers until no goroutine
// copies to or from them.
type Ending struct {
	c       *Conn
	closed  atomic.Bool   // Close or Abort was called
	linger0 atomic.Bool   // Close resets
	done    chan struct{} // closed when the connection has ended
	ended   atomic.Bool   // finish was called
	err     error         // how it ended; valid after done

	// Guarded by the group's lock: the core takes back the buffers when over is set and
	// holds is 0.
	started    bool // the program has it
	counted    bool // in shared.open
	over       bool
	holds      int  // readers and writers in a buffer
	closeAfter bool // Close came while data was being delivered
}

// hold keeps the buffers in place while they are used without the group's lock. The caller
// holds the lock for the call of hold, and also for the call of release.
func (e *Ending) hold() {
	e.holds++
	e.c.g.mem.holds++
}

// release ends what hold has begun.
func (e *Ending) release() {
	g := e.c.g
	g.mem.holds--
	if e.holds--; e.holds == 0 && e.over {
		e.freeBuffers()
	}
	g.freeFallen()
}

// freeBuffers returns the buffers of a connection that has ended to the core. The group's
// lock is held.
func (e *Ending) freeBuffers() {
	if !e.c.g.end.broken {
		e.c.core.Release()
	}
}

// kick makes the carrier check its connection. It also wakes a goroutine that works in place
// of the engine.
func (c *Conn) kick() {
	if c.drive != nil {
		c.drive.Poke()
	}
	if k := c.Carried.p.Load(); k != nil {
		k.task.Schedule()
	}
}

// forget removes the connection from its group and from the account of its user. The group's
// lock is held.
func (c *Conn) forget() {
	delete(c.g.conns, c)
	if c.most > 0 {
		c.g.s.accounts.give(c.owner.UID, c.most)
		c.most = 0
	}
}

// Group returns the link group of the connection.
func (c *Conn) Group() *Group { return c.g }

// Urgent returns a channel on which a value comes when the peer has announced urgent data,
// and when the data has arrived.
func (c *Conn) Urgent() <-chan struct{} { return c.urgent }

// Bytes returns how many bytes the connection has carried, in both directions together.
func (c *Conn) Bytes() uint64 {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	return c.rxBytes + c.txBytes
}
