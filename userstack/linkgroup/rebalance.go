// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"cmp"
	"time"

	"smcr/smc"
)

// movePause is how long a connection that changes links although its own works
// waits after its last message was delivered. The peer may look at the new
// link's messages first, and a Linux peer resets a connection whose failover
// validation comes before the messages it speaks of.
const movePause = 20 * time.Millisecond

// rebalance spreads the connections over the links after one was added (RFC
// 7609, section 2.3). A connection that is to move sends nothing new until what
// it sent is delivered.
func (g *Group) rebalance() {
	links := g.activeLinks()
	if g.phase != phaseOpen || len(links) < 2 {
		return
	}
	var load [maxSlots]int
	conns := g.connsSorted()
	for _, c := range conns {
		load[c.bound().slot]++
	}
	for _, c := range conns {
		to := links[0]
		for _, l := range links[1:] {
			if load[l.slot] < load[to.slot] {
				to = l
			}
		}
		from := c.bound()
		if !c.attached || c.state == smc.StateClosed || from.state != smc.LinkActive || load[from.slot] <= load[to.slot]+1 {
			continue
		}
		load[from.slot]--
		load[to.slot]++
		c.bind(to)
	}
}

// bound returns the link that a connection is on or on its way to.
func (c *Conn) bound() *Link {
	if c.next != nil {
		return c.next
	}
	return c.link
}

// peerLink returns the link that the peer sends over, as far as that can be told:
// that of its last message, before there was one that of the handshake.
func (c *Conn) peerLink() *Link { return cmp.Or(c.onto, c.named, c.link) }

// bind sends a connection on its way to another link.
func (c *Conn) bind(to *Link) {
	if to == c.link {
		c.unbind()
		return
	}
	c.next = to
	if c.inflight == 0 {
		c.pause()
	}
}

// pause sets when the connection moves, nothing being outstanding.
func (c *Conn) pause() {
	c.moveAt = c.g.now.Add(movePause)
	c.g.connTimer(c.moveAt)
}

// unbind lets a connection stay where it is.
func (c *Conn) unbind() {
	c.unbound()
	c.transmit()
}

func (c *Conn) unbound() { c.next, c.moveAt = nil, time.Time{} }

// rebind acts on the end of the pause.
func (c *Conn) rebind() {
	to := c.next
	c.unbound()
	if to == nil || to.state != smc.LinkActive || c.inflight > 0 {
		c.transmit()
		return
	}
	c.move(to)
}
