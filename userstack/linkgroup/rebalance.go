// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
)

// rebalance spreads the connections over the links after one was added (RFC
// 7609, section 2.3). A connection that is going to move sends nothing new until
// everything that it has sent is delivered.
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

// target returns the link to which a connection is going to move, or the link that it
// uses.
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

// traffic returns how much a link is used. A connection counts once if this side sends
// over the link, and twice if the peer sends over it: a Linux peer that leaves a
// link which works may send wrong bytes afterwards (docs/interop.md).
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
