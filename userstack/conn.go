// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"net"
	"time"

	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/conn"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
)

// TCPConn is the TCP connection that [Stack.Client] and [Stack.Server] run the
// rendezvous on. *net.TCPConn is one.
type TCPConn interface {
	net.Conn
	// SetLinger(0) makes Close send RST.
	SetLinger(sec int) error
}

// Conn is an SMC-R connection. It implements net.Conn and behaves as a
// *net.TCPConn does, half close included. Addresses are those of the TCP
// connection below, which stays open and carries no data.
type Conn struct {
	s      *Stack
	g      *group
	core   *linkgroup.Conn
	tcp    TCPConn
	client bool
	ino    uint64 // for listings
	owner  inside.Owner
	local  net.Addr
	remote net.Addr

	ready chan error     // outcome of announcing the RMB, buffered
	uwake chan struct{}  // urgent data, for the program
	drive *engine.Waiter // nil without an engine

	in       reader
	out      writer
	end      ending
	carried  carrying
	tcpWatch belowWatch

	// Bytes that the program has read and written; guarded by g.mu.
	rxBytes, txBytes uint64
}

// newConn allocates the local part of a connection over tcp. recvBuf is what the program
// has asked for with SO_RCVBUF, in bytes. g.mu is held.
func (g *group) newConn(now time.Time, tcp TCPConn, owner inside.Owner, recvBuf int) (*Conn, error) {
	s := g.s
	rmb := g.rmbBytes
	rmbe := min(smc.SizeCodeFor(max(s.cfg.RecvBuf, recvBuf)), smc.MaxSizeCodeRFC)
	core, err := g.core.NewConnOf(now, owner.UID, rmbe, s.cfg.SendBuf)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		s: s, g: g, core: core, tcp: tcp, client: g.role == smc.Client, owner: owner, ino: s.lastSock.Add(1),
		local: tcp.LocalAddr(), remote: tcp.RemoteAddr(),
		ready: make(chan error, 1), uwake: make(chan struct{}, 1),
	}
	c.in = reader{c: c, wake: make(chan struct{}, 1), deadline: makeDeadline()}
	c.out = writer{c: c, wake: make(chan struct{}, 1), deadline: makeDeadline()}
	c.end.c, c.end.done = c, make(chan struct{})
	c.carried.c, c.tcpWatch.c = c, c
	c.in.deadline.passed, c.out.deadline.passed = c.kick, c.kick
	if s.loop != nil {
		c.drive = s.loop.NewWaiter()
		c.in.ready = func() bool { return c.awake(c.in.wake, &c.in.deadline) }
		c.out.ready = func() bool { return c.awake(c.out.wake, &c.out.deadline) }
	}
	s.stats.BufferSize(stats.RX, rmbe.Bytes())
	if g.rmbBytes == rmb {
		s.stats.Buffer(stats.RX, stats.Reuse)
	} else {
		s.stats.Buffer(stats.RX, stats.Alloc)
	}
	s.stats.BufferSize(stats.TX, s.cfg.SendBuf)
	if g.sendBytes > 0 { // otherwise growSlab counts the memory of the first chunk
		s.stats.Buffer(stats.TX, stats.Reuse)
	}
	core.Data = c
	core.SetNoDelay(now, true) // as package net has it
	g.conns[c] = struct{}{}
	if !g.peerAddr.IsValid() {
		g.peerAddr = peerOf(tcp)
	}
	return c, nil
}

// start begins watching the TCP connection below: after the rendezvous it
// carries nothing but its end.
func (c *Conn) start() {
	_ = c.tcp.SetDeadline(time.Time{})
	c.s.mu.Lock()
	c.s.conns[c] = struct{}{}
	c.s.mu.Unlock()
	c.s.trim.count()
	broken := false
	c.g.do(func(time.Time) {
		c.end.started.Store(true)
		if c.end.over { // it ended before it was counted
			c.end.forget()
		}
		broken = c.g.broken
	})
	if broken {
		c.end.ended(conn.ErrReset)
	}
	c.tcpWatch.watch()
}

// Done returns a channel that is closed when the connection has ended on
// both sides and its resources are free. Err then tells how.
func (c *Conn) Done() <-chan struct{} { return c.end.done }

// Err returns nil for an orderly end, or why the connection was reset. It
// may be called after Done is closed.
func (c *Conn) Err() error { return c.end.err }

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Close closes the connection. Data already written is still sent; unread
// data makes it a reset, as with TCP (RFC 7609, section 4.8.1).
func (c *Conn) Close() error {
	if c.end.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.end.shut(func(now time.Time) {
		switch {
		case c.end.linger0.Load():
			c.core.Abort(now)
		case c.in.delivering:
			// What the reader has been given already is not unread data.
			c.end.closeAfter = true
		default:
			c.core.Close(now)
		}
	})
	wake(c.in.wake)
	wake(c.out.wake)
	c.kick()
	return nil
}

// Abort resets the connection: what is unsent is dropped.
func (c *Conn) Abort() error {
	if c.end.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.end.shut(c.core.Abort)
	wake(c.in.wake)
	wake(c.out.wake)
	c.kick()
	return nil
}

// CloseWrite tells the peer that no more data follows; reading goes on.
func (c *Conn) CloseWrite() error {
	if c.end.closed.Load() {
		return c.opError("close", net.ErrClosed)
	}
	c.end.shut(c.core.CloseWrite)
	return nil
}

// LocalAddr implements net.Conn: the address of the TCP connection below.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }
