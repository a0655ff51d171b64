// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// SetCork holds back small pieces of data, as TCP_CORK does.
func (c *Conn) SetCork(on bool) { c.End.shut(func(now time.Time) { c.core.SetCork(now, on) }) }

// SetNoDelay chooses whether small pieces of data go out at once, or wait until the message
// before is delivered.
func (c *Conn) SetNoDelay(on bool) {
	c.End.shut(func(now time.Time) { c.core.SetNoDelay(now, on) })
}

// SetKeepAlive has the link tested when it and the connection have been idle so long (RFC
// 7609, section 4.5.3). Zero switches that off.
func (c *Conn) SetKeepAlive(idle time.Duration) {
	c.End.shut(func(now time.Time) { c.core.SetKeepAlive(now, idle) })
}
