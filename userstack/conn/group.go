// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"smcr/userstack/wire"
)

// Group is what one connection asks of its link group: each connection has a value
// of its own, which knows the connection's RMB element, the peer's RMB and the link
// that the connection writes over. The calls are made inside calls of the
// connection and must not block.
type Group interface {
	// Now returns the time of the current event.
	Now() time.Time
	// Begin starts an event that a program caused, at the time now.
	Begin(now time.Time)
	// End ends an event after which the group may have work of its own.
	End()
	// SetTimer makes the group call [Conn.Tick] at the given time, or earlier.
	SetTimer(at time.Time)
	// Wake tells the program about the connection.
	Wake(w Wake)
	// Leave takes a connection that has reached smc.StateClosed out of the group. If
	// peerMayWrite is set, the RMB element must not be used again. announce
	// reports whether Closed is to follow.
	Leave(peerMayWrite bool) (announce bool)
	// Closed tells the program that the connection has ended. err is nil for an
	// orderly end.
	Closed(err error)
	// FreeElement takes the RMB element back. It must not be used before the
	// given time.
	FreeElement(notBefore time.Time)
	Memory
	Link
}

// Memory gives send memory to a connection.
type Memory interface {
	// NewChunk returns a chunk of size bytes.
	NewChunk(size int) (*Chunk, error)
	// FreeChunk takes a chunk back of which the peer has acknowledged all bytes.
	FreeChunk(k *Chunk)
}

// Link is the link that a connection writes over, as the connection sees it.
type Link interface {
	// Open reports whether the first contact of the group is complete, so that
	// data may be sent, and the group has not ended.
	Open() bool
	// Ready reports whether Open, the link is active and its queue pair takes
	// work requests.
	Ready() bool
	// Active reports whether the link is active. A link that failed or is being
	// deleted is not.
	Active() bool
	// TakeTurn reports whether the connection may post now. If not, it is in the
	// queue for the link, and [Conn.Post] is called when its turn comes.
	TakeTurn() bool
	// AwaitRoom puts the connection into that queue.
	AwaitRoom()
	// Room returns how many work requests the connection may post.
	Room() int
	// Write posts an RDMA WRITE of n bytes of k from offset off, to the offset at
	// of the peer's RMB element.
	Write(k *Chunk, off, n, at int)
	// Send posts a CDC message, the last of the given number of work requests.
	// The receipt comes back by [Conn.Delivered] or [Conn.Undelivered].
	Send(m wire.CDC, requests int, r Receipt)
	// TakePlanned puts the connection on the link that the group has planned for
	// it (see [Conn.PlanMove]), and reports whether that link is active.
	TakePlanned() bool
	// TakeOther puts the connection on another active link, and reports whether
	// there is one.
	TakeOther() bool
	Liveness
}

// Liveness is what a link knows about the peer.
type Liveness interface {
	// LastMessage returns when the last message of the peer came over the link.
	LastMessage() time.Time
	// LastSign is LastMessage, or later if the peer's adapter acknowledged
	// something after it.
	LastSign() time.Time
	// Test sends TEST LINK if the link can take it and no test is under way.
	Test()
	// PeerLives reports whether other links or connections show that the peer's
	// stack has not ended.
	PeerLives() bool
}

// Wake says what a program is told about its connection.
type Wake uint8

const (
	// WakeRead: there is data, the end of the stream, or an error (see
	// [Conn.ReadErr]).
	WakeRead Wake = iota + 1
	// WakeWrite: there is send space, or an error (see [Conn.WriteErr]).
	WakeWrite
	// WakeUrgent: the peer has announced urgent data, or it has arrived (see
	// [Conn.Urgent]).
	WakeUrgent
)

// Receipt is what a connection has to know about a CDC message when the message is
// delivered, or lost with its link.
type Receipt struct {
	written  uint64 // position up to which the message announced data
	seq      uint16
	state    wire.StateFlags
	validate bool // it is a failover data validation
	peerFull bool
}

// PeerFull reports whether data has to wait behind the message, because the peer's
// RMBE is full (RFC 7609, section 4.5.1). It does not for a message that only repeats
// that the writer is blocked.
func (r Receipt) PeerFull() bool { return r.peerFull }
