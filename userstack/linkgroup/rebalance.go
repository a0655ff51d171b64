// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
)

// rebalance spreads the connections over the links after one was added (RFC
// 7609, section 2.3). A connection that is to move sends nothing new until what
// it sent is delivered.
func (c *linkChanges) rebalance() {
	links := c.g.links.active()
	if c.g.phase != phaseOpen || len(links) < 2 {
		return
	}
	var load [maxSlots]int
	conns := c.g.connsSorted()
	for _, c := range conns {
		load[c.target().slot]++
	}
	for _, c := range conns {
		to := links[0]
		for _, l := range links[1:] {
			if load[l.slot] < load[to.slot] {
				to = l
			}
		}
		from := c.target()
		if c.peerRMB == nil || from.state != smc.LinkActive || load[from.slot] <= load[to.slot]+1 {
			continue
		}
		load[from.slot]--
		load[to.slot]++
		c.planMove(to)
	}
}

// target returns the link that a connection is on or on its way to.
func (c *Conn) target() *Link {
	if c.planned != nil {
		return c.planned
	}
	return c.link
}

// planMove plans the move of a connection to another link.
func (c *Conn) planMove(to *Link) {
	if to == c.link {
		c.cancelMove()
		return
	}
	c.planned = to
	c.Protocol().PlanMove()
}

// cancelMove lets a connection stay where it is.
func (c *Conn) cancelMove() {
	c.planned = nil
	c.Protocol().CancelMove()
}

// traffic says how much a link is used: by each connection that we send on over
// it, and twice by one that the peer does. A Linux peer that leaves a link which
// works may send wrong bytes afterwards (docs/interop.md).
func (a *linkAddition) traffic(l *Link) (n int) {
	for _, c := range a.g.conns {
		if l != nil && c.link == l {
			n++
		}
		if l != nil && c.peerLink() == l {
			n += 2
		}
	}
	return n
}
