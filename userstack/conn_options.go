// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net"
	"syscall"
	"time"

	"smcr/stats"
)

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	c.d.In.SetDeadline(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	c.d.Out.SetDeadline(t)
	return nil
}

// SetLinger works as for TCP: with sec 0, Close resets the connection. With any other value,
// Close sends unsent data in the background, which is also the default.
func (c *Conn) SetLinger(sec int) error {
	c.d.End.SetLinger0(sec == 0)
	return nil
}

// SetCork(true) holds back small pieces of data, like TCP_CORK. They are sent when there is
// more data, after SetCork(false), or after a quarter of a second.
func (c *Conn) SetCork(on bool) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	if !on {
		c.stats.Call(stats.Cork) // the kernel counts this and not the setting
	}
	c.d.SetCork(on)
	return nil
}

// SetNoDelay sets whether small pieces of data are sent at once, which is the default, or
// wait until the message before them is delivered, as with the Nagle algorithm (RFC 7609,
// section 4.5.2).
func (c *Conn) SetNoDelay(on bool) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	if on {
		c.stats.Call(stats.NoDelay)
	}
	c.d.SetNoDelay(on)
	return nil
}

// SetKeepAliveConfig sets keepalive as for a net.TCPConn, at both levels of RFC 7609, section
// 4.5.3. The kernel sends TCP keepalives on the TCP connection below. The stack tests the
// link when both the connection and the link have been idle for config.Idle. Zero means 15
// seconds, as in package net. Interval and Count affect only TCP.
func (c *Conn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	if c.d.End.Closed() {
		return c.opError("set", net.ErrClosed)
	}
	if tcp, ok := c.tcp.(*net.TCPConn); ok {
		if err := tcp.SetKeepAliveConfig(config); err != nil {
			return err
		}
	}
	idle := config.Idle
	switch {
	case !config.Enable:
		idle = 0
	case idle <= 0:
		idle = 15 * time.Second
	}
	c.d.SetKeepAlive(idle)
	return nil
}

// SyscallConn gives access to the TCP connection below, for its options.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.tcp.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, c.opError("syscall", errors.ErrUnsupported)
}
