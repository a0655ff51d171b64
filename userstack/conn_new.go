// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"time"

	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/conn"
	"smcr/userstack/internal/inside"
)

// newConn allocates the local part of a connection over tcp. recvBuf is what the program
// has asked for with SO_RCVBUF, in bytes. g.mu is held.
func (g *group) newConn(now time.Time, tcp TCPConn, owner inside.Owner, recvBuf int) (*Conn, error) {
	s := g.s
	rmb := g.mem.rmbBytes
	rmbe := min(smc.SizeCodeFor(max(s.cfg.RecvBuf, recvBuf)), smc.MaxSizeCodeRFC)
	core, err := g.core.NewConnOf(now, owner.UID, rmbe, s.cfg.SendBuf)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		s: s, g: g, core: core, tcp: tcp, client: g.role == smc.Client, owner: owner, ino: s.reg.lastSock.Add(1),
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
	if g.mem.rmbBytes == rmb {
		s.stats.Buffer(stats.RX, stats.Reuse)
	} else {
		s.stats.Buffer(stats.RX, stats.Alloc)
	}
	s.stats.BufferSize(stats.TX, s.cfg.SendBuf)
	if g.mem.sendBytes > 0 { // otherwise growSlab counts the memory of the first chunk
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
	c.s.reg.mu.Lock()
	c.s.reg.conns[c] = struct{}{}
	c.s.reg.mu.Unlock()
	c.s.trim.count()
	broken := false
	c.g.do(func(time.Time) {
		c.end.started.Store(true)
		if c.end.over { // it ended before it was counted
			c.end.forget()
		}
		broken = c.g.end.broken
	})
	if broken {
		c.end.ended(conn.ErrReset)
	}
	c.tcpWatch.watch()
}
