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

// SetLinger as for TCP: with sec 0, Close resets the connection; anything
// else leaves Close as it is, which sends unsent data in the background.
func (c *Conn) SetLinger(sec int) error {
	c.d.End.SetLinger0(sec == 0)
	return nil
}

// SetCork holds back small pieces of data until more is written, it is called
// with false, or a quarter of a second has passed, as TCP_CORK does.
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

// SetNoDelay chooses whether small pieces of data go out at once (the default)
// or wait, as with the Nagle algorithm, until the message before is delivered
// (RFC 7609, section 4.5.2).
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

// SetKeepAliveConfig sets keepalive as for a net.TCPConn, at both levels of RFC
// 7609, section 4.5.3: the kernel sends TCP keepalives on the TCP connection
// below, and the link is tested when the connection and it have been idle for
// config.Idle (zero: 15 seconds, as package net has it). Interval and Count act
// on TCP alone.
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
