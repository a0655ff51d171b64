// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"io"
	"time"

	"smcr/userstack/wire"
)

// span returns n bytes of the ring buf from position pos.
func span(buf []byte, pos uint64, n int) (a, b []byte) {
	off := int(pos % uint64(len(buf)))
	if m := len(buf) - off; n > m {
		return buf[off:], buf[:n-m]
	}
	return buf[off : off+n], nil
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

// RecvSize returns the size of the RMBE in bytes, as far as it is for data.
func (c *Conn) RecvSize() int { return c.rx.size }

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
