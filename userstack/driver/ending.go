// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"time"

	"smcr/userstack/conn"
)

var _ member = (*Conn)(nil)

func (c *Conn) wakeRead() {
	if c.In.shut.Load() {
		c.g.do(c.In.discard)
	}
	c.In.tell()
	c.kick()
}

func (c *Conn) wakeWrite() {
	c.Out.tell()
	c.kick()
}

func (c *Conn) wakeUrgent() {
	if c.In.shut.Load() {
		return // it is discarded
	}
	wake(c.urgent)
	// WriteTo takes the byte, although no data follows it.
	c.In.tell()
	c.kick()
}

func (c *Conn) announced(err error) {
	select {
	case c.ready <- err:
	default:
	}
}

func (c *Conn) closed(err error) { c.End.finish(err) }

func (c *Conn) setOver() { c.End.over = true }

func (c *Conn) broken(err error) {
	started := false
	c.g.do(func(time.Time) { started = c.End.started })
	if started {
		c.End.finish(conn.ErrReset)
		return
	}
	c.announced(err) // its rendezvous is under way, and will end it
}

func (c *Conn) abort() {
	started := false
	c.g.do(func(time.Time) { started = c.End.started })
	if started {
		c.End.finish(conn.ErrReset)
	}
}

func (c *Conn) number() uint64 { return c.ino }

func (c *Conn) rmbe() int { return int(c.core.Info().RMBE) }

// readErr and writeErr return the errors of the core. The group's lock is held.
func (e *Ending) readErr() error {
	if e.c.g.end.broken {
		return conn.ErrReset
	}
	return e.c.core.ReadErr()
}

func (e *Ending) writeErr() error {
	if e.c.g.end.broken {
		return conn.ErrReset
	}
	return e.c.core.WriteErr()
}

// finish ends a connection when the core does not need it any more. Only the first call has
// an effect. No lock is held.
func (e *Ending) finish(err error) {
	if e.ended.Swap(true) {
		return
	}
	c, s := e.c, e.c.g.s
	defer c.tcp.Close() //nolint:errcheck // nobody can handle the error
	defer c.kick()
	defer close(e.done)
	e.err = err
	c.g.do(func(time.Time) {
		c.forget()
		if e.over = true; e.counted {
			s.open.Add(-1)
		}
		c.below.stop()
		if e.holds == 0 {
			e.freeBuffers()
		}
	})
	s.trim.count()
	if err != nil {
		_ = c.tcp.SetLinger(0)
	}
}

// Done returns a channel that is closed when the connection has ended on both sides and its
// resources are free. Err then returns how it ended.
func (e *Ending) Done() <-chan struct{} { return e.done }

// Err returns nil if the connection ended in order. Otherwise it returns why the connection
// was reset: an error of package conn or linkgroup. Call it only after Done is closed.
func (e *Ending) Err() error { return e.err }

// Closed reports whether Close or Abort was called.
func (e *Ending) Closed() bool { return e.closed.Load() }

// SetLinger0 sets whether Close resets the connection.
func (e *Ending) SetLinger0(on bool) { e.linger0.Store(on) }

// shut passes a kind of close to the core.
func (e *Ending) shut(f func(now time.Time)) {
	g := e.c.g
	g.s.beginPost()
	defer g.s.endPost()
	g.do(func(now time.Time) {
		if !g.end.dead && !e.over {
			f(now)
		}
	})
}

// Close closes the connection. Data that was written is still sent. Unread data makes it a
// reset (RFC 7609, section 4.8.1). Close returns false if Close or Abort was called before.
func (e *Ending) Close() bool {
	c := e.c
	return e.close(func(now time.Time) {
		switch {
		case e.linger0.Load():
			c.core.Abort(now)
		case c.In.delivering:
			// Data that the reader has is not unread data.
			e.closeAfter = true
		default:
			c.In.discard(now)
			c.core.Close(now)
		}
	})
}

// Abort resets the connection. Data that was not sent is discarded. Abort returns false if
// Close or Abort was called before.
func (e *Ending) Abort() bool { return e.close(e.c.core.Abort) }

func (e *Ending) close(how func(now time.Time)) bool {
	if e.closed.Swap(true) {
		return false
	}
	e.shut(how)
	e.left()
	return true
}

// closeHeld is Close for a caller that holds the group's lock and has read everything. left must follow without the lock.
func (e *Ending) closeHeld(now time.Time) {
	switch {
	case e.closed.Swap(true), e.c.g.end.dead, e.over:
	case e.linger0.Load():
		e.c.core.Abort(now)
	default:
		e.c.core.Close(now)
	}
}

// left ends what waits in a connection that was closed.
func (e *Ending) left() {
	e.c.In.deadline.end()
	e.c.Out.deadline.end()
	e.c.In.tell()
	e.c.Out.tell()
	e.c.kick()
}

// CloseWrite tells the peer that no more data follows. The program can still read.
func (e *Ending) CloseWrite() { e.shut(e.c.core.CloseWrite) }
