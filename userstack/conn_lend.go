// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bufio"
	"time"

	"smcr/stats"
)

// The RMB element and the send memory of a connection are memory of this process.
// Read and Write copy between these and the program's; Peek, Discard, Reserve and
// Commit lend the program the buffers themselves.
//
// Memory that is lent is not given to another connection and not unmapped,
// however the connection ends, or a program that is late would read the data of
// others. Hence what ends a loan is the borrower's next call, not Close: another
// goroutine may call that at any time.

// Peek returns the next bytes of the stream where they lie, in the RMB element,
// without taking them: a, and then b where the ring begins again; b is empty most
// of the time. It waits until there are n bytes or more and returns all that there
// are. With n of 0 it does not wait and may return nothing.
//
// If fewer bytes come before the end of the stream or an urgent byte, it returns
// these with io.EOF or [ErrUrgentMark]; Read returns nothing but these either. For
// more than half of the element (Config.RecvBuf) the error is bufio.ErrBufferFull.
// All other errors are those of Read, deadline included, and come without bytes.
//
// The bytes are on loan until the next call of Discard, Read, WriteTo or Peek, also
// if the connection is closed or reset meanwhile, and must not be written to. A
// program that closes the connection instead calls Discard once more, with 0 for
// example: until then the connection keeps its memory. What was not discarded is
// unread data, which makes Close a reset. As with Read there is one reader at a
// time.
//
// Peek for how many bytes there are; do not trust the bytes twice. A sound peer
// writes to no byte that it has announced until that is discarded. But the element
// is open to the peer's RDMA writes at all times, and a hostile peer may change
// bytes that are being looked at. What has to hold after it was checked, such as a
// length or a signature, is to be copied first.
func (c *Conn) Peek(n int) (a, b []byte, err error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if n < 0 {
		return nil, nil, c.opError("read", bufio.ErrNegativeCount)
	}
	if n > c.core.RecvSize()/2 {
		c.in.endPeek()
		return nil, nil, c.opError("read", bufio.ErrBufferFull)
	}
	if a, b, err = c.in.data(n); err != nil {
		c.in.endPeek()
		return nil, nil, err
	}
	if len(a)+len(b) < n {
		err = c.opError("read", sysError("read", c.in.recvEnd()))
	}
	if len(a) > 0 && !c.in.peeked {
		c.in.peeked = true
		c.end.hold()
	}
	c.g.unlock()
	return a, b, err
}

// Discard skips the next n bytes of the stream and returns how many it has
// skipped, which is fewer only with an error. It waits for those that have not
// arrived. It ends the loan of what [Conn.Peek] returned, also with an error.
func (c *Conn) Discard(n int) (discarded int, err error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if n < 0 {
		return 0, c.opError("read", bufio.ErrNegativeCount)
	}
	if n > 0 {
		defer func() { c.s.stats.RX(discarded) }()
	}
	for discarded < n {
		a, b, err := c.in.data(1)
		if err != nil {
			c.in.endPeek()
			return discarded, err
		}
		avail := len(a) + len(b)
		if avail >= c.core.RecvSize() {
			c.s.stats.Buffer(stats.RX, stats.Full)
		}
		m := min(n-discarded, avail)
		c.in.consumed(time.Now(), m)
		if c.in.peeked {
			c.in.peeked = false
			c.end.release()
		}
		c.s.beginPost()
		c.g.unlock()
		c.s.endPost()
		discarded += m
	}
	c.in.endPeek()
	return discarded, nil
}

// returnLoan ends a loan of Peek. rmu is held.
func (r *reader) endPeek() {
	c := r.c
	if r.peeked {
		r.peeked = false
		c.g.do(func(time.Time) { c.end.release() })
	}
}

// Reserve returns send memory, for [Conn.Commit] to send what was put there: a, and
// then b where that goes on elsewhere; b is empty most of the time. It waits until
// the send buffer has room for n bytes, and returns n or more. Its errors are those
// of Write, deadline included; for more than the whole buffer (Config.SendBuf) it is
// bufio.ErrBufferFull.
//
// The space is on loan until the next call of Commit, Write, WriteUrgent, ReadFrom
// or Reserve, also if the connection is closed or reset meanwhile. A program that
// has nothing to send after all calls Commit with 0: until then the connection
// keeps its memory. What the space contains at first is of no meaning: it may be
// what another connection of the stack has sent. After Commit another connection may
// have it. As with Write there is one writer at a time.
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

// Commit sends the first n bytes of what [Conn.Reserve] returned, as Write sends
// those of a slice, and ends the loan of all of it. It does not wait. The error is
// ErrNotReserved if n is more than that, and otherwise that of a Write; then
// nothing is sent.
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

// dropReserved ends a loan of Reserve of which nothing is sent. wmu is held.
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
