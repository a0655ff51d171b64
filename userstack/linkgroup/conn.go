// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"cmp"
	"time"

	"smcr/userstack/conn"
)

// Conn is a connection as a member of its link group: the RMB element that it has,
// the peer's RMB that it writes to, and the link that it writes over. The connection
// itself is [conn.Conn].
type Conn struct {
	conn.Conn

	// Data is free for the driver.
	Data any

	g     *Group
	stage stage
	first bool // it is the connection of the first contact

	rmb     *rmb
	elem    int        // index of its element
	peer    ConnParams // the values of the peer's CLC message
	peerRMB *rtoken    // nil before Attach and after the end

	unsure time.Time // since when it waits for a sign of the peer, or zero: see linkTests.prove

	link    *Link // that this side writes over
	planned *Link // that the connection is to move to (rebalance), or nil
	onto    *Link // that the last message of the peer came over
	named   *Link // client: the link that ACCEPT named, which CONFIRM repeats

	// The queue for room in the send queue of a link.
	waitOn             *Link
	waitPrev, waitNext *Conn
}

// stage is how far the rendezvous of a connection has come.
//
//	From    | Event                          | To       | Action
//	--------+--------------------------------+----------+---------------
//	waiting | the peer knows the RMB         | ready    | ActConnReady
//	waiting | it cannot know the RMB         | ready    | ActConnReady err
//	ready   | established and ended later    | ended    | ActConnClosed
//	any     | Cancel                         | canceled |
type stage uint8

const (
	stageWaiting stage = iota
	stageReady
	stageEnded
	stageCanceled
)

func (c *Conn) setReady(err error) {
	if err == nil && !c.unsure.IsZero() {
		return // linkTests.sign repeats it
	}
	if c.stage == stageWaiting {
		c.stage = stageReady
		c.g.actions.add(Action{Kind: ActConnReady, Conn: c, Err: err})
	}
}

// Release reports that the driver has no slice of the connection any more. It
// is called once, after [ActConnClosed]; the memory of the send buffer and of
// the RMBE is given back then.
func (c *Conn) Release() { c.Protocol().Release() }

// setLink puts the connection on another link.
func (c *Conn) setLink(to *Link) {
	if c.waitOn != nil {
		c.waitOn.unqueue(c)
	}
	c.planned = nil
	c.link.conns--
	c.link = to
	to.conns++
}

// move takes the connection to another link (RFC 7609, section 4.6).
func (c *Conn) move(to *Link) {
	c.setLink(to)
	c.Protocol().Moved()
}

// peerLink returns the link that the peer probably sends over: the link of its last
// message, or the link of the handshake before the first message.
func (c *Conn) peerLink() *Link { return cmp.Or(c.onto, c.named, c.link) }

// Link returns the link that the connection writes over.
func (c *Conn) Link() *Link { return c.link }

// Group returns the link group.
func (c *Conn) Group() *Group { return c.g }
