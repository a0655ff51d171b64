// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"smcr/smc"
	"time"
)

// Small sends (RFC 7609, section 4.5.2). Nothing waits as long as no message
// of the connection is outstanding. While one is, less than Config.Autocork
// waits for its completion and for what is written meanwhile, as with Linux:
// that costs no time, since the peer is busy with the message before, and needs
// no timer, since completions come. SetNoDelay switches that off, as the RFC has
// it and Linux does not; then only what two outstanding messages leave no room
// for waits.
//
// With SetCork what is less than half of the send buffer waits for more, for
// corkDelay at the most.

// corkDelay is how long a corked connection holds data back, as Linux does.
const corkDelay = 250 * time.Millisecond

// defaultAutocork is that of Linux (net.smc.autocorking_size).
const defaultAutocork = 64 << 10

// SetCork holds small pieces of data back, as TCP_CORK does, or sends them.
func (c *Conn) SetCork(now time.Time, on bool) {
	if c.corked == on {
		return
	}
	c.g.now = now
	c.corked = on
	if !on {
		c.Push(now)
	}
}

// SetNoDelay says that small pieces of data are not to wait for the message
// before, as TCP_NODELAY does, and sends what is held back.
func (c *Conn) SetNoDelay(now time.Time, on bool) {
	c.noDelay = on
	if on {
		c.Push(now)
	}
}

// Push sends what is held back.
func (c *Conn) Push(now time.Time) {
	c.g.now = now
	if c.state == smc.StateClosed || c.prep == c.sent {
		return
	}
	c.push = true
	c.transmit()
}

// held says that data which could be sent waits for more.
func (c *Conn) held() bool {
	if c.push || c.wrShut || c.utx != 0 || c.replay > 0 {
		return false
	}
	queued := int(c.prep - c.sent)
	if c.corked && queued < c.ssize/2 {
		return true
	}
	return !c.noDelay && c.inflight > 0 && queued <= min(c.g.cfg.Autocork, c.ssize/2)
}

// armCork bounds the time that data of a corked connection waits.
func (c *Conn) armCork() {
	if c.corked && c.corkAt.IsZero() && c.prep > c.sent && c.held() {
		c.corkAt = c.g.now.Add(corkDelay)
		c.g.connTimer(c.corkAt)
	}
}

// uncork takes note that all data has gone out.
func (c *Conn) uncork() {
	if c.prep == c.sent {
		c.push, c.corkAt = false, time.Time{}
	}
}
