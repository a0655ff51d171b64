// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"io"
	"time"

	"smcr/userstack/wire"
)

// SendSpace returns the free part of the send ring, in order, for one
// producer. It is empty when the ring is full, which makes ActWakeWrite
// follow, and when [Conn.WriteErr] is not nil.
//
// An empty ring begins at its start again: small messages use the same memory
// over and over, and large ones find it in one piece. What SendSpace returned
// before is then no part of the ring any more.
func (c *Conn) SendSpace() (a, b []byte) {
	if c.WriteErr() != nil || c.freed {
		return nil, nil
	}
	if c.drained() {
		c.sbase = c.prep
	}
	n := len(c.sbuf) - int(c.prep-c.fin)
	if n == 0 {
		c.full = true
		return nil, nil
	}
	return span(c.sbuf, c.prep-c.sbase, n)
}

// drained says that nothing in the send ring is needed any more.
func (c *Conn) drained() bool { return c.prep == c.fin && c.utx == 0 }

// soff returns the offset in the send ring of a byte of the stream.
func (c *Conn) soff(pos uint64) int { return int((pos - c.sbase) % uint64(len(c.sbuf))) }

// AwaitSpace makes ActWakeWrite follow when a quarter of the send ring is free, or
// all of it, for a producer to whom what [Conn.SendSpace] returned is too little.
func (c *Conn) AwaitSpace() { c.full = true }

// span returns n bytes of the ring buf from position pos.
func span(buf []byte, pos uint64, n int) (a, b []byte) {
	off := int(pos % uint64(len(buf)))
	if m := len(buf) - off; n > m {
		return buf[off:], buf[:n-m]
	}
	return buf[off : off+n], nil
}

// Produced says that n bytes were placed into what [Conn.SendSpace] returned.
func (c *Conn) Produced(now time.Time, n int) { c.produce(now, n, false) }

func (c *Conn) produce(now time.Time, n int, urgent bool) {
	if n <= 0 || c.WriteErr() != nil || c.freed {
		return
	}
	if n > len(c.sbuf)-int(c.prep-c.fin) {
		panic("linkgroup: more produced than there was space")
	}
	c.g.now = now
	c.prep += uint64(n)
	if urgent {
		c.markUrgent()
	}
	if int(c.prep-c.fin) == len(c.sbuf) {
		c.full = true
	}
	c.transmit()
	c.armUrgent()
	c.armCork()
}

// RecvData returns the unread part of the RMBE, in order, for one consumer.
// It is empty when there is none and after a reset, and ends before an urgent
// byte.
func (c *Conn) RecvData() (a, b []byte) {
	c.woken = false
	if c.err != nil || c.appClosed || c.freed || c.rprod == c.rcons {
		return nil, nil
	}
	return span(c.mem[c.rx.start:], c.rcons, c.unread())
}

// RecvEnd tells why no byte comes behind what [Conn.RecvData] returns before that
// is consumed: [ErrUrgentMark], io.EOF at the end of the stream, or why the
// connection has ended. Nil means that more may come.
func (c *Conn) RecvEnd() error {
	switch {
	case c.err != nil:
		return c.err
	case c.unread() < int(c.rprod-c.rcons):
		return ErrUrgentMark
	case c.rstate&(wire.ConnSendingDone|wire.ConnClosed) != 0:
		return io.EOF
	}
	return nil
}

// RecvSize returns the size of the RMBE in bytes, as far as it is for data, and
// SendSize that of the send ring.
func (c *Conn) RecvSize() int { return c.rx.size }

// SendSize returns the size of the send ring in bytes.
func (c *Conn) SendSize() int { return len(c.sbuf) }

// Consumed says that n bytes of what [Conn.RecvData] returned were read.
func (c *Conn) Consumed(now time.Time, n int) {
	if n <= 0 || c.err != nil || c.appClosed || c.freed {
		return
	}
	if n > c.unread() {
		panic("linkgroup: more consumed than there was data")
	}
	c.g.now = now
	c.rcons += uint64(n)
	c.passUrgent()
	if c.wantUpdate() {
		c.update = true
	}
	c.transmit()
	if c.rprod > c.rcons {
		c.wakeRead()
	}
}

// ReadErr returns nil while there may be more to read, io.EOF when the peer
// is done and all data was read, and why the connection ended otherwise.
func (c *Conn) ReadErr() error {
	switch {
	case c.err != nil:
		return c.err
	case c.appClosed:
		return ErrClosed
	case c.rprod > c.rcons:
		return nil
	case c.rstate&(wire.ConnSendingDone|wire.ConnClosed) != 0:
		return io.EOF
	}
	return nil
}

// WriteErr returns nil while data may be sent, and why not otherwise.
func (c *Conn) WriteErr() error {
	switch {
	case c.err != nil:
		return c.err
	case c.appClosed:
		return ErrClosed
	case c.wrShut:
		return ErrWriteClosed
	case c.rstate&wire.ConnClosed != 0:
		return ErrPeerClosed
	}
	return nil
}

func (c *Conn) wakeRead() {
	if !c.woken {
		c.woken = true
		c.g.act(Action{Kind: ActWakeRead, Conn: c})
	}
}

func (c *Conn) wakeWrite() {
	c.full = false
	c.g.act(Action{Kind: ActWakeWrite, Conn: c})
}

func (c *Conn) wakeAll() {
	c.woken = false
	c.wakeRead()
	c.wakeWrite()
}
