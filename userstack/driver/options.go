// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// SetCork sets whether small pieces of data are held back, like TCP_CORK.
func (c *Conn) SetCork(on bool) { c.End.shut(func(now time.Time) { c.core.SetCork(now, on) }) }

// SetNoDelay sets whether small pieces of data are sent at once, or wait until the message
// before them is delivered.
func (c *Conn) SetNoDelay(on bool) {
	c.End.shut(func(now time.Time) { c.core.SetNoDelay(now, on) })
}

// SetKeepAlive makes the group test the link when both the link and the connection have been
// idle for this long (RFC 7609, section 4.5.3). Zero switches this off.
func (c *Conn) SetKeepAlive(idle time.Duration) {
	c.End.shut(func(now time.Time) { c.core.SetKeepAlive(now, idle) })
}
