// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bufio"
)

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.d.In.EndPeek()
	if len(p) == 0 {
		return 0, c.readError(c.d.In.Barred())
	}
	for {
		err := c.d.In.Barred()
		if err == nil {
			var n int
			if n, err = c.d.In.Read(p); n > 0 {
				return n, nil
			}
		}
		if err == nil {
			err = c.d.In.Wait()
		}
		if err != nil {
			c.stats.RX(0)
			return 0, c.readError(err)
		}
	}
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
	c.reading.Lock()
	defer c.reading.Unlock()
	if n < 0 {
		return nil, nil, c.opError("read", bufio.ErrNegativeCount)
	}
	if n > c.d.In.Size()/2 {
		c.d.In.EndPeek()
		return nil, nil, c.opError("read", bufio.ErrBufferFull)
	}
	for {
		ok, err := false, c.d.In.Barred()
		if err == nil {
			if a, b, ok, err = c.d.In.Peek(n); ok && (err == nil || len(a) > 0) {
				return a, b, c.readError(err)
			}
		}
		if err == nil {
			err = c.d.In.Wait()
		}
		if err != nil {
			c.d.In.EndPeek()
			return nil, nil, c.readError(err)
		}
	}
}

// Discard skips the next n bytes of the stream and returns how many it skipped. These
// are fewer only with an error. It waits for bytes that have not arrived. It gives back
// what [Conn.Peek] returned, also with an error.
func (c *Conn) Discard(n int) (discarded int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if n < 0 {
		return 0, c.opError("read", bufio.ErrNegativeCount)
	}
	if n > 0 {
		defer func() { c.stats.RX(discarded) }()
	}
	for discarded < n {
		skipped, err := 0, c.d.In.Barred()
		if err == nil {
			skipped, err = c.d.In.Skip(n - discarded)
		}
		if err == nil && skipped == 0 {
			err = c.d.In.Wait()
		}
		if err != nil {
			c.d.In.EndPeek()
			return discarded, c.readError(err)
		}
		discarded += skipped
	}
	c.d.In.EndPeek()
	return discarded, nil
}
