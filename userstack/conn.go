// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
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

	ready        chan error // outcome of announcing the RMB, buffered
	rwake, wwake chan struct{}
	uwake        chan struct{} // urgent data, for the application
	carrier      atomic.Pointer[carrier]
	rmu, wmu     sync.Mutex // one reader, one writer at a time
	rdl, wdl     deadline
	drive        *engine.Waiter // nil without an engine
	rready       func() bool    // that a wait to read, or to write, is over
	wready       func() bool
	closed       atomic.Bool   // Close or Abort was called
	lingerZero   atomic.Bool   // Close resets
	done         chan struct{} // closed when the connection has ended
	started      atomic.Bool   // it was given out
	endOnce      sync.Once
	err          error // how it ended; valid after done

	lent     bool // to the reader, by Peek; guarded by rmu
	reserved int  // bytes lent to the writer, by Reserve; guarded by wmu

	// Guarded by g.mu: the core takes back the buffers once the connection
	// has ended and no goroutine copies to or from them.
	holds            int
	delivering       bool // WriteTo is handing out data that is not consumed yet
	closeAfter       bool // Close came meanwhile
	over             bool
	below            belowWatch
	after            []func() // called when the connection has ended
	rxBytes, txBytes uint64
	sendFull         bool // the last lend found too little room
}

// hold keeps the buffers in place while they are used outside g.mu, which
// the caller holds now and when it calls unhold.
func (c *Conn) hold() {
	c.holds++
	c.g.mem.holds++
}

func (c *Conn) unhold() {
	c.g.mem.holds--
	if c.holds--; c.holds == 0 && c.over {
		c.release()
	}
	c.g.freeFallen()
}

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
		ready: make(chan error, 1), rwake: make(chan struct{}, 1), wwake: make(chan struct{}, 1), uwake: make(chan struct{}, 1),
		done: make(chan struct{}), rdl: makeDeadline(), wdl: makeDeadline(),
	}
	c.rdl.passed, c.wdl.passed = c.kick, c.kick
	if s.loop != nil {
		c.drive = s.loop.NewWaiter()
		c.rready = func() bool { return c.awake(c.rwake, &c.rdl) }
		c.wready = func() bool { return c.awake(c.wwake, &c.wdl) }
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
		c.started.Store(true)
		if c.over { // it ended before it was counted
			c.forget()
		}
		broken = c.g.end.broken
	})
	if broken {
		c.ended(conn.ErrReset)
	}
	c.watch()
}

func (c *Conn) forget() {
	c.s.reg.mu.Lock()
	delete(c.s.reg.conns, c)
	c.s.reg.mu.Unlock()
}

// ended is called once the core is through with the connection.
func (c *Conn) ended(err error) {
	c.endOnce.Do(func() {
		defer c.tcp.Close() //nolint:errcheck // nobody is left to be told
		defer c.kick()
		var after []func()
		defer func() {
			close(c.done)
			for _, f := range after {
				f()
			}
		}()
		c.err = err
		c.g.do(func(time.Time) {
			delete(c.g.conns, c)
			c.over = true
			c.below.stop()
			after, c.after = c.after, nil
			if c.holds == 0 {
				c.release()
			}
		})
		c.forget()
		c.s.trim.count()
		if err != nil {
			_ = c.tcp.SetLinger(0)
		}
	})
}

// abandon resets a connection that was attached but never given out.
func (c *Conn) abandon() {
	c.closed.Store(true)
	c.g.do(func(now time.Time) {
		if !c.g.end.dead {
			c.core.Abort(now)
		}
	})
}

// Done returns a channel that is closed when the connection has ended on
// both sides and its resources are free. Err then tells how.
func (c *Conn) Done() <-chan struct{} { return c.done }

// AfterDone has f called once when Done has been closed, or at once if it is. f
// must not block.
func (c *Conn) afterDone(f func()) {
	over := false
	c.g.do(func(time.Time) {
		if over = c.over; !over {
			c.after = append(c.after, f)
		}
	})
	if over {
		<-c.done // it is being closed
		f()
	}
}

// Err returns nil for an orderly end, or why the connection was reset. It
// may be called after Done is closed.
func (c *Conn) Err() error { return c.err }

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// shut hands a kind of close to the core.
func (c *Conn) shut(f func(now time.Time)) {
	c.s.beginPost()
	defer c.s.endPost()
	c.g.do(func(now time.Time) {
		if !c.g.end.dead && !c.over {
			f(now)
		}
	})
}

// Close closes the connection. Data already written is still sent; unread
// data makes it a reset, as with TCP (RFC 7609, section 4.8.1).
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.shut(func(now time.Time) {
		switch {
		case c.lingerZero.Load():
			c.core.Abort(now)
		case c.delivering:
			// What the reader has been given already is not unread data.
			c.closeAfter = true
		default:
			c.core.Close(now)
		}
	})
	wake(c.rwake)
	wake(c.wwake)
	c.kick()
	return nil
}

// Abort resets the connection: what is unsent is dropped.
func (c *Conn) Abort() error {
	if c.closed.Swap(true) {
		return c.opError("close", net.ErrClosed)
	}
	c.shut(c.core.Abort)
	wake(c.rwake)
	wake(c.wwake)
	c.kick()
	return nil
}

// CloseWrite tells the peer that no more data follows; reading goes on.
func (c *Conn) CloseWrite() error {
	if c.closed.Load() {
		return c.opError("close", net.ErrClosed)
	}
	c.shut(c.core.CloseWrite)
	return nil
}

// LocalAddr implements net.Conn: the address of the TCP connection below.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }
