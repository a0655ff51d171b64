// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bufio"
	"net"
	"time"

	"smcr/stats"
)

// writable tells why nothing can be written. g.mu is held.
func (w *writer) writable() error {
	c := w.c
	defer c.g.caught()
	if c.end.closed.Load() {
		return net.ErrClosed
	}
	if c.end.over {
		return sysError("write", overErr(c.end.writeErr()))
	}
	return sysError("write", c.core.WriteErr())
}

// produced tells the core of n bytes more in the send buffer. g.mu is held.
func (w *writer) produced(now time.Time, n int, urgent bool) {
	c := w.c
	defer c.g.caught()
	if c.g.end.broken {
		return
	}
	if urgent {
		c.s.stats.Call(stats.Urgent)
		c.core.ProducedUrgent(now, n)
		return
	}
	c.core.Produced(now, n)
}

// placed is produced for one who has more and calls produced then. g.mu is held.
func (w *writer) placed(n int) {
	c := w.c
	defer c.g.caught()
	if !c.g.end.broken {
		c.core.Placed(n)
	}
}

// reserve returns send memory: least bytes if there is room for them, and about most
// (see SendSpace of package userstack/conn). produced or dropSpace follows. g.mu is
// held.
func (w *writer) reserve(least, most int) (a, b []byte, err error) {
	c := w.c
	defer c.g.caught()
	if err := w.writable(); err != nil {
		return nil, nil, err
	}
	a, b, err = c.core.SendSpace(least, most)
	full := err == nil && len(a)+len(b) < least
	if full && !w.full {
		c.s.stats.Buffer(stats.TX, stats.Full)
	}
	w.full = full
	return a, b, sysError("write", err)
}

// dropSpace gives back what reserve returned; nothing of it is sent. g.mu is held.
func (w *writer) dropSpace() {
	c := w.c
	defer c.g.caught()
	if !c.g.end.broken {
		c.core.DropSpace()
	}
}

// awaitSpace makes a wake-up follow when more of the send buffer is free. g.mu is
// held.
func (w *writer) awaitSpace() {
	c := w.c
	defer c.g.caught()
	c.core.DropSpace()
	c.core.AwaitSpace()
}

// space returns send memory, and holds g.mu unless there is an error. It waits until
// there is room for least bytes.
func (w *writer) space(least, most int) (a, b []byte, err error) {
	c := w.c
	for {
		if err := c.barred(&w.deadline); err != nil {
			return nil, nil, c.opError("write", err)
		}
		c.g.mu.Lock()
		a, b, err := w.reserve(least, most)
		if err == nil && len(a)+len(b) >= least {
			return a, b, nil
		}
		if err == nil {
			w.awaitSpace()
		}
		c.g.unlock()
		if err != nil {
			return nil, nil, c.opError("write", err)
		}
		if err := c.wait(w.wake, &w.deadline, w.ready); err != nil {
			return nil, nil, c.opError("write", err)
		}
	}
}

func (w *writer) write(p []byte, urgent bool) (total int, err error) {
	c := w.c
	w.mu.Lock()
	defer w.mu.Unlock()
	size := len(p)
	defer func() { c.s.stats.TX(size, total) }()
	w.dropReserve()
	for {
		a, b, err := w.space(min(1, len(p)), len(p))
		if err != nil {
			return total, err
		}
		if len(p) == 0 {
			c.g.unlock()
			return total, nil
		}
		n := min(len(p), len(a)+len(b))
		if n <= inlineCopy {
			copy(b, p[copy(a, p):])
			w.produced(time.Now(), n, urgent && n == len(p))
			c.txBytes += uint64(n)
			c.s.beginPost()
			c.g.unlock()
			c.s.endPost()
		} else {
			c.end.hold()
			c.g.mem.copying++
			c.g.unlock()
			copy(b, p[copy(a, p):])
			c.s.beginPost()
			c.g.do(func(now time.Time) {
				c.g.mem.copying--
				if !c.end.over {
					w.produced(now, n, urgent && n == len(p))
					c.txBytes += uint64(n)
				}
				c.end.release()
			})
			c.s.endPost()
		}
		total += n
		if p = p[n:]; len(p) == 0 {
			return total, nil
		}
	}
}

// dropReserve gives back what Reserve returned; nothing of it is sent. w.mu is held.
func (w *writer) dropReserve() {
	c := w.c
	if w.reserved > 0 {
		w.reserved = 0
		c.g.do(func(time.Time) {
			w.dropSpace()
			c.end.release()
		})
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (total int, err error) { return c.out.write(p, false) }

// WriteUrgent writes p, of which the last byte is urgent (RFC 7609, section
// 4.7.5). It waits for room in the send buffer as Write does, not for the peer
// to take the byte. As with TCP there is one urgent byte at a time: one which
// has not gone out when the next is written stays in the stream as an
// ordinary byte.
func (c *Conn) WriteUrgent(p []byte) (int, error) { return c.out.write(p, true) }

// Reserve returns send memory for the program to fill: a, and then b where the memory
// continues elsewhere. b is usually empty. [Conn.Commit] sends it. Reserve waits until
// the send buffer has room for n bytes, and returns n or more. Its errors are those of
// Write, deadline included. For more than the whole buffer (Config.SendBuf) the error is
// bufio.ErrBufferFull.
//
// The memory is valid until the next call of Commit, Write, WriteUrgent, ReadFrom or
// Reserve, also if the connection is closed or reset before that. A program that has
// nothing to send calls Commit with 0: until then the connection keeps its memory. The
// memory contains arbitrary bytes at first, perhaps what another connection of the stack
// has sent. After Commit another connection may have it. As with Write there is one
// writer at a time.
func (c *Conn) Reserve(n int) (a, b []byte, err error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if n < 0 {
		return nil, nil, c.opError("write", bufio.ErrNegativeCount)
	}
	if n > c.core.SendSize() {
		c.out.dropReserve()
		return nil, nil, c.opError("write", bufio.ErrBufferFull)
	}
	if a, b, err = c.out.space(n, c.core.SendChunk()); err != nil {
		c.out.dropReserve()
		return nil, nil, err
	}
	if c.out.reserved == 0 && len(a) > 0 {
		c.end.hold()
	}
	c.out.reserved = len(a) + len(b)
	c.g.unlock()
	return a, b, nil
}

// Commit sends the first n bytes of what [Conn.Reserve] returned, as Write sends the
// bytes of a slice, and gives the rest back. It does not wait. The error is
// ErrNotReserved if n is more than what Reserve returned, and otherwise that of a Write;
// then nothing is sent.
func (c *Conn) Commit(n int) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if n < 0 {
		return c.opError("write", bufio.ErrNegativeCount)
	}
	if n > c.out.reserved || n == 0 {
		c.out.dropReserve()
		if n > 0 {
			return c.opError("write", ErrNotReserved)
		}
		return nil
	}
	c.g.mu.Lock()
	err := c.out.writable()
	if err == nil {
		c.out.produced(time.Now(), n, false)
		c.txBytes += uint64(n)
	} else if !c.end.over {
		c.out.dropSpace()
	}
	c.out.reserved = 0
	c.end.release()
	c.s.beginPost()
	c.g.unlock()
	c.s.endPost()
	if err != nil {
		c.s.stats.TX(n, 0)
		return c.opError("write", err)
	}
	c.s.stats.TX(n, n)
	return nil
}
