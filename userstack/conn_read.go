// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bufio"
	"net"
	"time"

	"smcr/stats"
	"smcr/userstack/conn"
)

// inlineCopy is the size up to which data is copied under the group's lock:
// cheaper than taking it twice.
const inlineCopy = 4 << 10

// readable returns what can be read now: data, or an error if no more data comes. If it
// returns neither, the caller waits. g.mu is held.
func (r *reader) readable() (a, b []byte, err error) {
	c := r.c
	defer c.g.caught()
	if c.end.closed.Load() {
		return nil, nil, net.ErrClosed
	}
	if c.end.over {
		return nil, nil, sysError("read", overErr(c.end.readErr()))
	}
	if a, b = c.core.RecvData(); len(a) > 0 {
		return a, b, nil
	}
	return nil, nil, sysError("read", c.core.ReadErr())
}

// received counts a receive of n bytes where avail bytes could be read.
func (r *reader) received(n, avail int) {
	c := r.c
	c.s.stats.RX(n)
	if avail >= c.core.RecvSize() {
		c.s.stats.Buffer(stats.RX, stats.Full)
	}
}

// recvEnd tells why nothing can come behind what can be read now. g.mu is held.
func (r *reader) recvEnd() error {
	c := r.c
	defer c.g.caught()
	if c.g.end.broken {
		return conn.ErrReset
	}
	return c.core.RecvEnd()
}

// mark looks whether the next byte is urgent. One that is apart from the stream
// is taken; one that is inline is the first that can be read, if any can. g.mu
// is held.
func (r *reader) mark(readable bool) (u byte, apart, inline bool) {
	c := r.c
	defer c.g.caught()
	if c.g.end.broken || !c.core.AtMark() {
		return 0, false, false
	}
	if readable && c.core.UrgentInline() {
		return 0, false, true
	}
	u, err := c.core.Urgent(false)
	return u, err == nil, false
}

// consumed tells the core that the program has n bytes more. g.mu is held.
func (r *reader) consumed(now time.Time, n int) {
	c := r.c
	defer c.g.caught()
	c.core.Consumed(now, n)
	c.rxBytes += uint64(n)
}

// delivered ends a use of the RMB element outside of g.mu, of which the program
// has n bytes. g.mu is held.
func (r *reader) delivered(now time.Time, n int) {
	c := r.c
	r.delivering = false
	if c.end.over {
		return
	}
	r.consumed(now, n)
	if c.end.closeAfter && !c.g.end.broken {
		c.core.Close(now)
	}
}

// data returns what can be read, with g.mu held unless there is an error. It waits
// until it is at least n bytes, or no more can come before it is consumed.
func (r *reader) data(n int) (a, b []byte, err error) {
	c := r.c
	for {
		if err := c.barred(&r.deadline); err != nil {
			return nil, nil, c.opError("read", err)
		}
		c.g.mu.Lock()
		a, b, err := r.readable()
		if err == nil && (len(a)+len(b) >= n || len(a) > 0 && r.recvEnd() != nil) {
			return a, b, nil
		}
		c.g.unlock()
		if err != nil {
			return nil, nil, c.opError("read", err)
		}
		if err := c.wait(r.wake, &r.deadline, r.ready); err != nil {
			return nil, nil, c.opError("read", err)
		}
	}
}

// endPeek gives back what Peek returned. r.mu is held.
func (r *reader) endPeek() {
	c := r.c
	if r.peeked {
		r.peeked = false
		c.g.do(func(time.Time) { c.end.release() })
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.endPeek()
	if len(p) == 0 {
		return 0, c.opError("read", c.barred(&c.in.deadline))
	}
	a, b, err := c.in.data(1)
	if err != nil {
		c.s.stats.RX(0)
		return 0, err
	}
	n := min(len(p), len(a)+len(b))
	c.s.beginPost()
	if n <= inlineCopy {
		copy(p[copy(p, a):], b)
		c.in.consumed(time.Now(), n)
		c.g.unlock()
	} else {
		c.end.hold()
		c.in.delivering = true
		c.g.unlock()
		copy(p[copy(p, a):], b)
		c.g.do(func(now time.Time) {
			c.in.delivered(now, n)
			c.end.release()
		})
	}
	c.s.endPost()
	c.in.received(n, len(a)+len(b))
	return n, nil
}

// The RMB element and the send memory of a connection are memory of this process.
// Read and Write copy between these and the memory of the program. Peek, Discard,
// Reserve and Commit give the buffers themselves to the program for a time.
//
// A buffer that a program has is not given to another connection and not unmapped,
// however the connection ends. Otherwise a slow program would read the data of
// others. For this reason the next call of the same program gives a buffer back, and
// not Close: another goroutine may call Close at any time.

// Peek returns the next bytes of the stream in the RMB element itself, and does not
// take them: a, and then b where the ring begins again. b is usually empty. Peek waits
// until there are n bytes or more, and returns all that there are. With n of 0 it does
// not wait and may return nothing.
//
// If fewer bytes come before the end of the stream or an urgent byte, Peek returns
// these bytes with io.EOF or [ErrUrgentMark]. For more than half of the element
// (Config.RecvBuf) the error is bufio.ErrBufferFull. All other errors are those of
// Read, deadline included, and come without bytes.
//
// The bytes are valid until the next call of Discard, Read, WriteTo or Peek, also if
// the connection is closed or reset before that. They must not be written to. A
// program that closes the connection instead calls Discard once more, for example
// with 0: until then the connection keeps its memory. Bytes that were not discarded
// are unread data, which makes Close a reset. As with Read there is one reader at a
// time.
//
// Use Peek to see how many bytes there are; do not read the bytes twice and expect the
// same. A correct peer does not write to a byte that it has announced until that byte
// is discarded. But the peer's RDMA writes can reach the element at all times, and a
// hostile peer may change bytes while the program looks at them. Copy first what must
// stay the same after a check, such as a length or a signature.
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

// Discard skips the next n bytes of the stream and returns how many it skipped. These
// are fewer only with an error. It waits for bytes that have not arrived. It gives back
// what [Conn.Peek] returned, also with an error.
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

// urgentApart reports whether an urgent byte waits outside the stream: one that
// came before SetOOBInline. g.mu is held.
func (r *reader) urgentApart() bool {
	c := r.c
	_, err := c.core.Urgent(true)
	return err == nil
}

// receivedUrgent counts the receive of an urgent byte that is not in the stream.
func (r *reader) receivedUrgent() {
	c := r.c
	c.s.stats.Call(stats.Urgent)
	c.s.stats.RX(1)
}
