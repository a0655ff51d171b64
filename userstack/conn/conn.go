// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"io"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Conn is a connection as its program sees it: what a program may do with it. The
// link group's side is [Protocol].
type Conn struct{ p Protocol }

// Protocol returns the connection as its link group sees it.
func (c *Conn) Protocol() *Protocol { return &c.p }

// Token returns the local alert token. It is never 0.
func (c *Conn) Token() uint32 { return c.p.token }

// State returns the state.
func (c *Conn) State() smc.ConnState { return c.p.state }

// SendSpace reserves memory for data to be sent, for one producer: a, and then b.
// They are least bytes or more, and about most if that takes no second new chunk.
// They are less only as far as the send buffer has no room. They are empty if it is
// full, and WakeWrite follows then, or if [Conn.WriteErr] is not nil. The error is
// that of [Memory.NewChunk].
//
// The memory is reserved until the next call of Produced, ProducedUrgent, Placed,
// DropSpace or SendSpace.
func (c *Conn) SendSpace(least, most int) (a, b []byte, err error) {
	p := &c.p
	if !p.mayProduce() {
		c.DropSpace()
		return nil, nil, nil
	}
	if p.out.buf.free() == 0 {
		p.out.full = true
		return nil, nil, nil
	}
	return p.out.buf.reserve(p.group, least, most)
}

// DropSpace says that the producer has placed nothing into what [Conn.SendSpace]
// returned, and will not.
func (c *Conn) DropSpace() { c.p.out.buf.drop(c.p.group) }

// Produced says that n bytes were placed into what [Conn.SendSpace] returned. The
// rest is not reserved any more.
func (c *Conn) Produced(now time.Time, n int) { c.produced(now, n, false) }

// ProducedUrgent is [Conn.Produced] for n bytes of which the last is urgent.
func (c *Conn) ProducedUrgent(now time.Time, n int) { c.produced(now, n, true) }

// Placed is [Conn.Produced] for a producer that has more: the n bytes may wait for
// that. Produced follows, with 0 if nothing more comes.
func (c *Conn) Placed(n int) {
	if c.place(n) {
		c.p.out.placed = true
	}
}

func (c *Conn) produced(now time.Time, n int, urgent bool) {
	p, s := &c.p, &c.p.out
	more := c.place(n) || s.placed
	s.placed = false
	if !more || !p.mayProduce() {
		return
	}
	p.group.Begin(now)
	if urgent {
		s.urgent.set(s.buf.produced, s.announced())
	}
	if s.buf.free() == 0 {
		s.full = true
	}
	p.Transmit()
	p.startUrgent()
	if s.hold.corked && !s.hold.timer.running() && s.buf.produced > s.written && p.held() {
		p.start(&s.hold.timer, now.Add(corkDelay))
	}
}

// place takes n bytes of the reserved space, and reports whether there are any.
func (c *Conn) place(n int) bool {
	if n <= 0 || !c.p.mayProduce() {
		c.DropSpace()
		return false
	}
	c.p.out.buf.place(c.p.group, n)
	return true
}

// AwaitSpace makes WakeWrite follow when a quarter of the send buffer is free, or all
// of it, for a producer to whom what [Conn.SendSpace] returned is too little.
func (c *Conn) AwaitSpace() { c.p.out.full = true }

// SendSize returns the size of the send buffer in bytes: how many bytes may wait to
// be delivered.
func (c *Conn) SendSize() int { return c.p.out.buf.size }

// SendChunk returns the usual size of a chunk of send memory in bytes.
func (c *Conn) SendChunk() int { return c.p.out.buf.chunk }

// SetCork holds small sends back, as TCP_CORK does, or sends them.
func (c *Conn) SetCork(now time.Time, on bool) {
	if c.p.out.hold.corked == on {
		return
	}
	c.p.out.hold.corked = on
	if !on {
		c.Push(now)
	}
}

// SetNoDelay says that small sends do not wait for the message before, as
// TCP_NODELAY does, and sends what is held back.
func (c *Conn) SetNoDelay(now time.Time, on bool) {
	c.p.out.hold.noDelay = on
	if on {
		c.Push(now)
	}
}

// Sending reports whether there is data that is not sent yet, and the peer has room for it.
func (c *Conn) Sending() bool {
	p := &c.p
	return p.Established() && p.state != smc.StateClosed && !aborting(p.state) && p.out.sendable() > 0
}

// Push sends what is held back.
func (c *Conn) Push(now time.Time) {
	c.p.group.Begin(now)
	c.p.pushOut()
}

// RecvData returns the unread part of the RMB element, in order, for one consumer.
// It is empty if there is none, and after a reset unless the peer made it: then what had
// arrived before can still be read. It ends before an urgent byte. It is also empty if the element was overwritten: see [Conn.Overlaid].
func (c *Conn) RecvData() (a, b []byte) {
	c.p.in.woken = false
	if !c.readable() {
		return nil, nil
	}
	return c.p.in.data()
}

// Overlaid reports whether the eye catcher of the RMB element was overwritten. The caller
// of [Conn.RecvData] must then call [Conn.AbortOverlaid].
func (c *Conn) Overlaid() bool { return c.readable() && !c.p.in.intact() }

// AbortOverlaid resets the connection because its RMB element was overwritten (RFC 7609,
// section 4.4.1). [Conn.ReadErr] then wraps [ErrReset] and [ErrProtocol], and
// [Group.Closed] follows.
func (c *Conn) AbortOverlaid(now time.Time) {
	if !c.Overlaid() {
		return
	}
	c.p.group.Begin(now)
	c.p.abortOverlaid()
	c.p.group.End()
}

// readable reports whether the program may still read.
func (c *Conn) readable() bool {
	return (c.p.err == nil || c.p.in.kept) && c.p.closing.prog != progClosed && c.p.mem != memFreed
}

// RecvEnd returns why no byte follows what [Conn.RecvData] returns before that is
// consumed: [ErrUrgentMark], io.EOF at the end of the stream, or why the connection
// has ended. Nil means that more may follow.
func (c *Conn) RecvEnd() error {
	p := &c.p
	switch {
	case p.err != nil && !p.in.kept:
		return p.err
	case p.in.unread() < int(p.in.written-p.in.read):
		return ErrUrgentMark
	case p.err != nil:
		return p.err
	case p.closing.received&(wire.ConnSendingDone|wire.ConnClosed) != 0:
		return io.EOF
	}
	return nil
}

// RecvSize returns how many bytes of data the RMB element takes.
func (c *Conn) RecvSize() int { return c.p.in.elem.size }

// Consumed says that n bytes of what [Conn.RecvData] returned were read.
func (c *Conn) Consumed(now time.Time, n int) {
	p := &c.p
	if n <= 0 || !c.readable() {
		return
	}
	p.in.consume(n)
	p.group.Begin(now)
	if p.in.kept {
		p.wakeRead() // for the rest, or the error
		if p.in.written == p.in.read {
			p.dropRest()
			p.group.End()
		}
		return
	}
	if p.in.wantUpdate() {
		p.out.update = true
	}
	p.Transmit()
	if p.in.written > p.in.read {
		p.wakeRead()
	}
}

// ReadErr returns nil while there may be more to read, io.EOF when the peer is done
// and all data was read, and otherwise why the connection ended: an error that wraps
// [ErrReset] or [ErrAborted], [ErrClosed], [ErrCloseTimeout] or [ErrUrgentTimeout].
func (c *Conn) ReadErr() error {
	p := &c.p
	switch {
	case p.err != nil && !p.in.kept:
		return p.err
	case p.closing.prog == progClosed:
		return ErrClosed
	case p.in.written > p.in.read:
		return nil
	case p.closing.received&(wire.ConnSendingDone|wire.ConnClosed) != 0:
		return io.EOF
	}
	return nil
}

// WriteErr returns nil while data may be sent, and otherwise why not: the errors of
// [Conn.ReadErr], [ErrWriteClosed] or [ErrPeerClosed].
func (c *Conn) WriteErr() error { return c.p.writeErr() }

// SetUrgentInline chooses whether urgent bytes that arrive from now on stay in the
// stream, as with SO_OOBINLINE.
func (c *Conn) SetUrgentInline(on bool) { c.p.in.urgent.nextInline = on }

// UrgentInline reports whether the last urgent byte stays in the stream.
func (c *Conn) UrgentInline() bool { return c.p.in.urgent.inline }

// Urgent returns the urgent byte, and removes it unless peek is set. The error is
// [ErrUrgentPending] if the byte is announced but has not arrived, and [ErrNoUrgent]
// if there is none or it is in the stream.
func (c *Conn) Urgent(peek bool) (byte, error) {
	if c.p.err != nil || c.p.closing.prog == progClosed {
		return 0, ErrNoUrgent
	}
	return c.p.in.urgent.take(peek)
}

// AtMark reports whether the reader is at the urgent mark: before the urgent byte if
// that stays in the stream, at its place otherwise.
func (c *Conn) AtMark() bool { return c.p.in.urgent.atMark(c.p.in.read) }

// SetKeepAlive makes the link be tested whenever neither the connection nor its link
// has been used for the time idle (RFC 7609, section 4.5.3); 0 switches that off. A
// link that does not answer fails: the connection moves to another or is reset. All
// links are also tested after Timers.TestLink of the link group.
func (c *Conn) SetKeepAlive(now time.Time, idle time.Duration) {
	k := &c.p.keep
	k.idle = idle
	k.timer.stop()
	if idle > 0 && c.p.state != smc.StateClosed {
		c.p.start(&k.timer, now.Add(idle))
	}
}

// CloseWrite says that nothing more will be sent than what was produced, as
// shutdown(SHUT_WR) does.
func (c *Conn) CloseWrite(now time.Time) {
	p := &c.p
	if p.closing.prog != progOpen || p.state == smc.StateClosed || p.err != nil {
		return
	}
	p.group.Begin(now)
	p.closing.prog = progWriteDone
	p.Transmit()
	p.group.End()
}

// Close ends the connection after what was produced is delivered, or resets it if
// there is unread data. [Group.Closed] follows when the peer has closed too.
func (c *Conn) Close(now time.Time) {
	p := &c.p
	if p.closing.prog == progClosed || p.state == smc.StateClosed {
		return
	}
	p.group.Begin(now)
	if p.err != nil {
		p.closing.prog = progClosed // the abort is under way
		p.dropRest()
		p.group.End()
		return
	}
	if !p.Established() {
		return
	}
	if p.in.written != p.in.read {
		p.abort(ErrAborted)
		p.closing.prog = progClosed
		p.group.End()
		return
	}
	p.closing.prog = progClosed
	p.start(&p.closing.timer, now.Add(p.cfg.Timers.CloseWait))
	p.Transmit()
	p.group.End()
}

// Abort resets the connection. [Group.Closed] follows.
func (c *Conn) Abort(now time.Time) {
	p := &c.p
	if p.state == smc.StateClosed || p.err != nil && !p.in.kept || !p.Established() {
		return
	}
	p.group.Begin(now)
	p.dropRest()
	p.abort(ErrAborted)
	p.group.End()
}

// TCPClosed says that the TCP connection below ended, by FIN or by RST (reset). If
// the peer does not explain that on the link within Timers.TCPGrace, the connection
// is reset. After a FIN, a peer that still sends on the link, or answers TEST LINK, or
// whose other connections show that its stack lives, may take Timers.TCPGraceAlive: a
// busy host may be that late, and so may be its messages on a link that is full.
func (c *Conn) TCPClosed(now time.Time, reset bool) {
	p := &c.p
	if p.state == smc.StateClosed || !p.Established() || aborting(p.state) {
		return
	}
	e := &p.closing.tcp
	e.reset = e.reset || reset
	if !e.timer.running() && !p.closing.tcpExplained() {
		e.at = now
		p.start(&e.timer, now.Add(p.cfg.Timers.TCPGrace/4))
	}
}
