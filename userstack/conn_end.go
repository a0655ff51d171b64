// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
)

// Done returns a channel that is closed when the connection has ended on both sides and its
// resources are free. Err then returns how it ended.
func (c *Conn) Done() <-chan struct{} { return c.d.End.Done() }

// Err returns nil if the connection ended in order. Otherwise it returns why the connection
// was reset. Call it only after Done is closed.
func (c *Conn) Err() error { return c.d.End.Err() }

// Close closes the connection. Data that was written is still sent. If there is unread data,
// the connection is reset, as with TCP (RFC 7609, section 4.8.1).
func (c *Conn) Close() error {
	if !c.d.End.Close() {
		return c.opError("close", net.ErrClosed)
	}
	return nil
}

// Abort resets the connection. Data that was not sent is discarded.
func (c *Conn) Abort() error {
	if !c.d.End.Abort() {
		return c.opError("close", net.ErrClosed)
	}
	return nil
}

// CloseRead ends the stream for the program, as shutdown with SHUT_RD does. Read returns io.EOF
// from then on, also a Read that waits, and so do Peek and Discard; WriteTo ends. What has arrived
// and was not read is discarded, and so is what arrives later, urgent bytes included. The peer is
// not told, and its writes do not wait for a reader (RFC 7609, section 4.8.1). Discarded bytes are
// not unread data, so Close does not reset the connection because of them. If the peer resets the
// connection, Read returns ECONNRESET.
//
// Bytes that the program has from [Conn.Peek], and a piece that WriteTo is writing, stay valid:
// nothing is discarded until the program has returned them, for example with Discard(0).
//
// On Linux, a program reads data that arrives after CloseRead of a *net.TCPConn. Here it does not.
func (c *Conn) CloseRead() error {
	if c.d.End.Closed() {
		return c.opError("close", net.ErrClosed)
	}
	c.d.In.Shut()
	return nil
}

// CloseWrite tells the peer that no more data follows. The program can still read.
func (c *Conn) CloseWrite() error {
	if c.d.End.Closed() {
		return c.opError("close", net.ErrClosed)
	}
	c.d.End.CloseWrite()
	return nil
}
