// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"sync"
	"sync/atomic"
	"time"

	"smcr/userstack/conn"
)

// ending is the part of a connection that ends it, and keeps its buffers until no
// goroutine copies to or from them.
type ending struct {
	c       *Conn
	closed  atomic.Bool   // Close or Abort was called
	linger0 atomic.Bool   // Close resets
	started atomic.Bool   // it was given out
	done    chan struct{} // closed when the connection has ended
	once    sync.Once
	err     error // how it ended; valid after done

	// Guarded by g.mu: the core takes back the buffers when over is set and holds
	// is 0.
	over       bool
	holds      int      // readers and writers in a buffer
	closeAfter bool     // Close came while data was being delivered
	after      []func() // called when the connection has ended
}

// hold keeps the buffers in place while they are used outside g.mu, which
// the caller holds now and when it calls unhold.
func (e *ending) hold() {
	c := e.c
	e.holds++
	c.g.holds++
}

func (e *ending) release() {
	c := e.c
	c.g.holds--
	if e.holds--; e.holds == 0 && e.over {
		e.freeBuffers()
	}
	c.g.freeFallen()
}

// release gives the buffers of a connection that has ended back to the core. mu
// is held.
func (e *ending) freeBuffers() {
	c := e.c
	if !c.g.broken {
		c.core.Release()
	}
}

// readErr and writeErr are those of the core. mu is held.
func (e *ending) readErr() error {
	c := e.c
	if c.g.broken {
		return conn.ErrReset
	}
	return c.core.ReadErr()
}

func (e *ending) writeErr() error {
	c := e.c
	if c.g.broken {
		return conn.ErrReset
	}
	return c.core.WriteErr()
}

func (e *ending) forget() {
	c := e.c
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
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
		if !c.g.dead {
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
		if !c.g.dead && !e.over {
			f(now)
		}
	})
}
