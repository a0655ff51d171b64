// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"

	"smcr/userstack/wire"
)

// Urgent data (RFC 7609, sections 4.7.5 and 4.7.6).
//
// The sender marks a position in the stream, one past the urgent byte. It
// writes up to there in a message of its own with the flags UrgentPending and
// UrgentPresent, and writes nothing more until the peer's consumer cursor has
// got there. A mark which has not gone out yet moves on with the next urgent
// byte, as that of TCP does; one that has gone out makes the next wait.
//
// The receiver keeps the byte aside and lets the stream go on behind it as
// soon as the reader gets there, whether the byte was asked for or not: then
// the peer learns at once that it may go on. Linux does not always say so, and
// two Linux kernels wait for each other until the connection ends: a program
// that takes the byte with recv(MSG_OOB), having read all before it, leaves the
// kernel's consumer cursor before the byte, and so does one that polls for
// data and takes no notice of the byte. The kernel counts what comes without the urgent byte but reads it
// from that cursor: sent as ever, it would have the program get the urgent byte
// as data and never the last byte. conn_lost.go goes on where it knows what the
// kernel will do; otherwise what waits behind an urgent byte that nobody
// confirms ends the connection after Timers.UrgentWait.

// ProducedUrgent is [Conn.Produced] for n bytes of which the last is urgent.
func (c *Conn) ProducedUrgent(now time.Time, n int) { c.produce(now, n, true) }

// markUrgent sets the mark behind what was produced.
func (c *Conn) markUrgent() {
	if c.utx == 0 || max(c.sent, c.replay) < c.utx {
		c.utx = c.prep
	} else {
		c.utxNext = c.prep
	}
}

// urgentWaits says that an urgent byte was written and not yet confirmed.
func (c *Conn) urgentWaits() bool { return c.utx != 0 && c.sent >= c.utx }

// writable returns the position up to which may be written as far as urgent
// data is concerned.
func (c *Conn) writable() uint64 {
	switch {
	case c.utx == 0:
		return c.prep
	case c.fin < c.utx:
		return c.utx // after failover the mark must be repeated alone
	case c.utxNext != 0:
		return min(c.utx+c.lost.lag, c.utxNext-1)
	}
	return min(c.utx+c.lost.lag, c.prep)
}

// urgentFlags returns the flags of a message that takes the producer cursor n
// bytes further to where it stands now.
func (c *Conn) urgentFlags(n int) wire.ProducerFlags {
	switch {
	case c.utx == 0:
		return 0
	case c.sent < c.utx:
		return wire.ProdUrgentPending
	case n > 0 && c.sent == c.utx:
		// Once only: Linux takes a repetition for another urgent byte.
		return wire.ProdUrgentPending | wire.ProdUrgentPresent
	}
	return 0
}

// newlyUrgent says that the peer is to be told of urgent data for which there
// is no room.
func (c *Conn) newlyUrgent() bool {
	return c.utx > c.sent && c.blocked() && c.tflags&wire.ProdUrgentPending == 0
}

// urgentConfirmed looks at the peer's consumer cursor after it has moved.
func (c *Conn) urgentConfirmed() {
	if c.utx != 0 && c.pcons >= c.utx {
		c.utx, c.utxNext = c.utxNext, 0
		c.urgentAt = time.Time{}
		c.lost.byte(nothingKnown)
		c.takenAt = time.Time{}
	}
	c.armUrgent()
}

// armUrgent starts the timer of an urgent byte that is all the peer has left
// to confirm while more waits.
func (c *Conn) armUrgent() {
	wait := c.g.cfg.Timers.UrgentWait
	if c.urgentAt.IsZero() && c.urgentWaits() && c.prep > c.sent && c.pcons+c.lost.lag+1 == c.sent && wait > 0 {
		c.urgentAt = c.g.now.Add(wait)
		c.g.connTimer(c.urgentAt)
	}
}

// urgentTimeout is the end of the wait for the peer to confirm an urgent byte.
func (c *Conn) urgentTimeout() {
	c.g.log.Warn("connection reset: the peer does not confirm urgent data", "token", c.token)
	c.abort(ErrUrgentTimeout)
}

// urgentNews takes the urgent flags of a message that has moved the producer
// cursor by n bytes.
func (c *Conn) urgentNews(f wire.ProducerFlags, n uint64) {
	switch {
	case f&wire.ProdUrgentPresent != 0 && n > 0:
		c.urgent, c.upending, c.uinline = c.rprod, false, c.inline
		c.uvalid = !c.uinline
		c.ubyte = c.mem[c.rx.off(c.rprod-1)]
		c.passUrgent()
	case f&(wire.ProdUrgentPending|wire.ProdUrgentPresent) == wire.ProdUrgentPending && !c.upending:
		c.upending = true
	default:
		return
	}
	if !c.appClosed {
		c.g.act(Action{Kind: ActWakeUrgent, Conn: c})
	}
}

// passUrgent takes the urgent byte out of the stream once the reader has got
// to it.
func (c *Conn) passUrgent() {
	if c.urgent != 0 && c.rcons+1 == c.urgent && !c.uinline {
		c.rcons++
	}
}

// unread returns how many bytes can be read in one go: not across the urgent
// mark.
func (c *Conn) unread() int {
	if c.urgent > c.rcons+1 {
		return int(c.urgent - 1 - c.rcons)
	}
	return int(c.rprod - c.rcons)
}

// SetUrgentInline chooses whether urgent bytes which arrive from now on stay
// in the stream, as with SO_OOBINLINE.
func (c *Conn) SetUrgentInline(on bool) { c.inline = on }

// UrgentInline reports whether the last urgent byte stays in the stream.
func (c *Conn) UrgentInline() bool { return c.uinline }

// Urgent returns the urgent byte and takes it away unless peek is set. The
// error is [ErrUrgentPending] if the byte is announced but not here yet, and
// [ErrNoUrgent] if there is none or it is in the stream.
func (c *Conn) Urgent(peek bool) (byte, error) {
	switch {
	case c.err != nil || c.appClosed:
		return 0, ErrNoUrgent
	case c.uvalid:
		c.uvalid = peek
		return c.ubyte, nil
	case c.upending:
		return 0, ErrUrgentPending
	}
	return 0, ErrNoUrgent
}

// AtMark reports whether the reader stands at the urgent mark: before the
// urgent byte if that stays in the stream, at its place otherwise.
func (c *Conn) AtMark() bool {
	if c.urgent == 0 {
		return false
	}
	if c.uinline {
		return c.rcons+1 == c.urgent
	}
	return c.rcons == c.urgent
}
