// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
)

// Done returns a channel that is closed when the connection has ended on
// both sides and its resources are free. Err then tells how.
func (c *Conn) Done() <-chan struct{} { return c.d.End.Done() }

// Err returns nil for an orderly end, or why the connection was reset. It
// may be called after Done is closed.
func (c *Conn) Err() error { return c.d.End.Err() }

// Close closes the connection. Data already written is still sent; unread
// data makes it a reset, as with TCP (RFC 7609, section 4.8.1).
func (c *Conn) Close() error {
	if !c.d.End.Close() {
		return c.opError("close", net.ErrClosed)
	}
	return nil
}

// Abort resets the connection: what is unsent is dropped.
func (c *Conn) Abort() error {
	if !c.d.End.Abort() {
		return c.opError("close", net.ErrClosed)
	}
	return nil
}

// CloseWrite tells the peer that no more data follows; reading goes on.
func (c *Conn) CloseWrite() error {
	if c.d.End.Closed() {
		return c.opError("close", net.ErrClosed)
	}
	c.d.End.CloseWrite()
	return nil
}
