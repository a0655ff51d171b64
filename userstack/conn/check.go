// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Info is what the diagnosis of a socket shows.
type Info struct {
	Token uint32
	// SendBuf, RMBE and PeerRMBE are sizes in bytes.
	SendBuf, RMBE, PeerRMBE int
	// RxProd and RxCons are the cursors of the local RMB element, TxProd and
	// TxCons those of the peer's.
	RxProd, RxCons, TxProd, TxCons wire.Cursor
	RxFlags, TxFlags               wire.ProducerFlags
	RxState, TxState               wire.StateFlags
	// TxPrep, TxSent and TxFin are the positions in the send buffer of what the
	// program has placed, what was written and what is delivered.
	TxPrep, TxSent, TxFin wire.Cursor
}

// Info returns sizes, cursors and flags.
func (c *Conn) Info() Info {
	p := &c.p
	in, s := &p.in, &p.out
	i := Info{
		Token: p.token, SendBuf: s.buf.size, RMBE: len(in.mem),
		RxProd: in.elem.cursor(in.written), RxCons: in.elem.cursor(in.read),
		RxFlags: in.flags, TxFlags: s.flags, RxState: p.closing.received, TxState: p.closing.sent,
	}
	if p.Established() {
		i.PeerRMBE = s.elem.start + s.elem.size
		i.TxProd, i.TxCons = s.elem.cursor(s.written), s.elem.cursor(s.read)
	}
	if p.mem != memFreed {
		r := ring{size: s.buf.size}
		i.TxPrep, i.TxSent, i.TxFin = r.cursor(s.buf.produced), r.cursor(s.written), r.cursor(s.buf.delivered)
	}
	return i
}

// Positions are where a connection is in its two streams, in bytes from their start.
type Positions struct {
	// Live says that the connection is established and has its memory. Otherwise the
	// positions mean nothing to the peer's.
	Live bool
	// Received is what the peer has written, Read what the program has read of it
	// and Told the consumer cursor that the peer was told.
	Received, Read, Told uint64
	// Produced is what the program has sent, Written what was written to the peer,
	// Announced what the peer was told of, Delivered what its queue pair has
	// acknowledged and PeerRead what it has read.
	Produced, Written, Announced, Delivered, PeerRead uint64
	// Window is how many bytes the peer's RMB element has room for, and
	// Outstanding how many CDC messages are neither delivered nor lost.
	Window, Outstanding int
	// LastSeq is the number of the last CDC message that was processed.
	LastSeq uint16
}

// Positions returns the positions, for simulations and tests.
func (c *Conn) Positions() Positions {
	in, s := &c.p.in, &c.p.out
	return Positions{
		Live:     c.p.mem != memFreed && c.p.Established(),
		Received: in.written, Read: in.read, Told: in.told,
		Produced: s.buf.produced, Written: s.written, Announced: s.announced(), Delivered: s.buf.delivered, PeerRead: s.read,
		Window: s.window(), Outstanding: s.outstanding, LastSeq: in.seq,
	}
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvariant, fmt.Sprintf(format, args...))
}

// Check verifies what holds between any two events, whatever the peer does: no
// window is overrun, and what is counted is right. It returns [ErrInvariant].
func (p *core) Check() error {
	in, s := &p.in, &p.out
	told := s.announced()
	switch {
	case p.state == smc.StateClosed || p.mem == memFreed:
		return broken("connection %#x is in state %s, memory %d", p.token, p.state, p.mem)
	case in.written-in.read > uint64(in.elem.size):
		return broken("connection %#x: peer wrote up to %d, %d are read, the RMBE takes %d", p.token, in.written, in.read, in.elem.size)
	case in.told > in.read:
		return broken("connection %#x: told %d as read, %d are", p.token, in.told, in.read)
	case s.buf.produced < told || s.buf.produced-s.buf.delivered > uint64(s.buf.size):
		return broken("connection %#x: %d bytes from the program, %d written, %d delivered, the buffer takes %d", p.token, s.buf.produced, told, s.buf.delivered, s.buf.size)
	case s.buf.delivered > told:
		return broken("connection %#x: %d bytes delivered, %d written", p.token, s.buf.delivered, told)
	case s.outstanding < 0 || s.outstanding > maxOutstanding+1:
		return broken("connection %#x: %d messages outstanding", p.token, s.outstanding)
	case told-s.read > uint64(s.elem.size):
		return broken("connection %#x: wrote up to %d, peer read %d, its RMBE takes %d", p.token, told, s.read, s.elem.size)
	case !in.intact():
		return broken("connection %#x: the eye catcher is overwritten", p.token)
	}
	return nil
}

// unusedEye reports whether b, at the offset off of an element without an eye catcher, is
// a byte of the eye catcher that the element had before that was settled.
func unusedEye(off int, b byte) bool { return off < eyeCatcherLen && b == eyeCatcher[off] }

// CheckWrite verifies a write of an honest peer to the RMB element at the offset at;
// before and after are the bytes there. It must not touch the eye catcher nor bytes
// that wait to be read, unless it repeats them, and nothing of an earlier connection
// may have been there. It returns [ErrInvariant].
func (p *core) CheckWrite(at int, before, after []byte) error {
	in := &p.in
	if at < in.elem.start {
		return broken("connection %#x: a write over the eye catcher", p.token)
	}
	if p.err != nil || p.closing.prog == progClosed {
		return nil // nobody reads any more
	}
	size := uint64(in.elem.size)
	first := at - in.elem.start
	for i := range after {
		// How far the byte is ahead of the first unread one.
		d := (uint64(first+i) + size - in.read%size) % size
		if in.read+d < size && before[i] != 0 && before[i] != after[i] && !unusedEye(at+i, before[i]) {
			return broken("connection %#x: byte %d of the RMBE is %#02x before anything is written to it", p.token, at+i, before[i])
		}
		if d < in.written-in.read && after[i] != before[i] {
			return broken("connection %#x: a write of %d bytes over byte %d, which is not read", p.token, len(after), in.read+d)
		}
	}
	return nil
}
