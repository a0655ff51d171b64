// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"time"

	"smcr/userstack/conn"
)

// hold keeps the buffers in place while they are used outside g.mu, which
// the caller holds now and when it calls unhold.
func (e *ending) hold() {
	c := e.c
	e.holds++
	c.g.mem.holds++
}

func (e *ending) release() {
	c := e.c
	c.g.mem.holds--
	if e.holds--; e.holds == 0 && e.over {
		e.freeBuffers()
	}
	c.g.freeFallen()
}

// release gives the buffers of a connection that has ended back to the core. mu
// is held.
func (e *ending) freeBuffers() {
	c := e.c
	if !c.g.end.broken {
		c.core.Release()
	}
}

// readErr and writeErr are those of the core. mu is held.
func (e *ending) readErr() error {
	c := e.c
	if c.g.end.broken {
		return conn.ErrReset
	}
	return c.core.ReadErr()
}

func (e *ending) writeErr() error {
	c := e.c
	if c.g.end.broken {
		return conn.ErrReset
	}
	return c.core.WriteErr()
}

func (e *ending) forget() {
	c := e.c
	c.s.reg.mu.Lock()
	delete(c.s.reg.conns, c)
	c.s.reg.mu.Unlock()
}

// ended is called once the core is through with the connection.
func (e *ending) ended(err error) {
	c := e.c
	e.once.Do(func() {
		defer c.tcp.Close() //nolint:errcheck // nobody is left to be told
		defer c.kick()
		var after []func()
		defer func() {
			close(e.done)
			for _, f := range after {
				f()
			}
		}()
		e.err = err
		c.g.do(func(time.Time) {
			delete(c.g.conns, c)
			e.over = true
			c.tcpWatch.stop()
			after, e.after = e.after, nil
			if e.holds == 0 {
				e.freeBuffers()
			}
		})
		e.forget()
		c.s.trim.count()
		if err != nil {
			_ = c.tcp.SetLinger(0)
		}
	})
}

// abandon resets a connection that was attached but never given out.
func (e *ending) abandon() {
	c := e.c
	e.closed.Store(true)
	c.g.do(func(now time.Time) {
		if !c.g.end.dead {
			c.core.Abort(now)
		}
	})
}

// afterDone calls f once when Done has been closed, or at once if it is closed. f
// must not block.
func (e *ending) afterDone(f func()) {
	c := e.c
	over := false
	c.g.do(func(time.Time) {
		if over = e.over; !over {
			e.after = append(e.after, f)
		}
	})
	if over {
		<-e.done // it is being closed
		f()
	}
}

// shut hands a kind of close to the core.
func (e *ending) shut(f func(now time.Time)) {
	c := e.c
	c.s.beginPost()
	defer c.s.endPost()
	c.g.do(func(now time.Time) {
		if !c.g.end.dead && !e.over {
			f(now)
		}
	})
}

// Done returns a channel that is closed when the connection has ended on
// both sides and its resources are free. Err then tells how.
func (c *Conn) Done() <-chan struct{} { return c.end.done }

// Err returns nil for an orderly end, or why the connection was reset. It
// may be called after Done is closed.
func (c *Conn) Err() error { return c.end.err }

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

// stop ends the watch. It is for the time before the TCP connection is closed.
func (b *belowWatch) stop() {
	if b.w != nil {
		_ = b.rc.Control(func(fd uintptr) { b.w.Stop(int(fd)) })
		b.w = nil
	}
}
