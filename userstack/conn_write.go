// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bufio"
)

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (total int, err error) { return c.write(p, false) }

// WriteUrgent writes p. The last byte of p is urgent (RFC 7609, section 4.7.5). Like Write,
// it waits for room in the send buffer, and does not wait until the peer has read the byte.
// As with TCP, there is one urgent byte at a time: if an urgent byte has not been sent when
// the next one is written, it stays in the stream as an ordinary byte.
func (c *Conn) WriteUrgent(p []byte) (int, error) { return c.write(p, true) }

func (c *Conn) write(p []byte, urgent bool) (total int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	size := len(p)
	defer func() { c.stats.TX(size, total) }()
	c.d.Out.EndReserve()
	for {
		n, err := 0, c.d.Out.Barred()
		if err == nil {
			n, err = c.d.Out.Write(p, urgent)
		}
		if err != nil {
			return total, c.writeError(err)
		}
		total += n
		if p = p[n:]; len(p) == 0 {
			return total, nil
		}
		if n == 0 {
			if err := c.d.Out.Wait(); err != nil {
				return total, c.writeError(err)
			}
		}
	}
}

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
	c.writing.Lock()
	defer c.writing.Unlock()
	if n < 0 {
		return nil, nil, c.opError("write", bufio.ErrNegativeCount)
	}
	if n > c.d.Out.Size() {
		c.d.Out.EndReserve()
		return nil, nil, c.opError("write", bufio.ErrBufferFull)
	}
	for {
		ok, err := false, c.d.Out.Barred()
		if err == nil {
			if a, b, ok, err = c.d.Out.Reserve(n); ok {
				return a, b, nil
			}
		}
		if err == nil {
			err = c.d.Out.Wait()
		}
		if err != nil {
			c.d.Out.EndReserve()
			return nil, nil, c.writeError(err)
		}
	}
}

// Commit sends the first n bytes of what [Conn.Reserve] returned, as Write sends the
// bytes of a slice, and gives the rest back. It does not wait. The error is
// ErrNotReserved if n is more than what Reserve returned, and otherwise that of a Write;
// then nothing is sent.
func (c *Conn) Commit(n int) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if n < 0 {
		return c.opError("write", bufio.ErrNegativeCount)
	}
	if n > c.d.Out.Reserved() || n == 0 {
		c.d.Out.EndReserve()
		if n > 0 {
			return c.opError("write", ErrNotReserved)
		}
		return nil
	}
	if err := c.d.Out.Commit(n); err != nil {
		c.stats.TX(n, 0)
		return c.writeError(err)
	}
	c.stats.TX(n, n)
	return nil
}
