// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
	"time"
)

// SetKeepAlive has the link tested whenever neither the connection nor its
// link has been used for the time idle (RFC 7609, section 4.5.3); 0 switches
// that off. A link that does not answer fails: the connection moves to
// another or is reset. Independently of that all links are tested after
// Timers.TestLink.
func (c *Conn) SetKeepAlive(now time.Time, idle time.Duration) {
	c.g.now = now
	c.keepIdle, c.keepAt = idle, time.Time{}
	if idle > 0 && c.state != smc.StateClosed {
		c.keepAt = now.Add(idle)
		c.g.connTimer(c.keepAt)
	}
}

// keepAlive looks at a connection whose time has come.
func (c *Conn) keepAlive(now time.Time) {
	l := c.link
	c.keepAt = c.active.Add(c.keepIdle)
	if used := l.lastRx.Add(c.keepIdle); used.After(c.keepAt) {
		c.keepAt = used
	}
	if now.Before(c.keepAt) {
		return
	}
	c.keepAt = now.Add(c.keepIdle)
	if l.state == smc.LinkActive && l.qpOpen && !l.testing {
		c.g.probe(l)
	}
}
