// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/userstack/wire"
)

// A consumer cursor that is lost with a link.
//
// Linux (seen with 6.12) does not repeat its consumer cursor over another link if it has no
// data to send. If its program has read everything and waits, no further message follows.
// The element is full then, as far as this side knows, and both sides wait for ever. The
// flag R is answered only when the program takes data.
//
// So the last bytes of the element of such a peer are not used if the group has more than
// one link. After a link was lost, one
// of them is written with the flag R: when the program takes this byte, the kernel sends
// its cursor. If the program has not read everything, it does so when it reads next.

// cursorReserve is how many bytes of the peer's element are not used before a link is
// lost. Each of them serves once until the cursor is known again.
const cursorReserve = 2

// lostCursor is what a sender does about a cursor of the peer that may be lost. It stays
// at its zero value for a peer without [Peer.LosesCursor].
//
//	until | event                             | until     | then
//	------+-----------------------------------+-----------+--------------------------------
//	any   | a link was lost                   | announced | flag R with all messages
//	set   | data waits, the element is full   | set       | a byte of the reserve, once
//	set   | the cursor comes to until         | 0         |
type lostCursor struct {
	reserve int    // bytes of the element that are not used
	until   uint64 // the cursor may be further than this side knows, up to here; 0: it is known
	ask     bool   // nothing new was written since the link was lost
}

// lose takes note that a link was lost. The peer's cursor is at read, and announced is the
// position up to which the peer may have read.
func (l *lostCursor) lose(read, announced uint64) {
	if l.reserve > 0 && read < announced {
		l.until, l.ask = announced, true
	}
}

// learn takes note of the position of the peer's cursor.
func (l *lostCursor) learn(read uint64) {
	if read >= l.until {
		l.until, l.ask = 0, false
	}
}

// wrote takes note that data was written up to a position. Only data that the peer does not
// have makes its program read.
func (l *lostCursor) wrote(written uint64) { l.ask = l.ask && written <= l.until }

// flag returns the R flag for the next message, or 0.
func (l *lostCursor) flag() wire.ProducerFlags {
	if l.until == 0 {
		return 0
	}
	return wire.ProdCursorRequest
}

// SetRedundant takes note that the link group has more than one active link, so that the
// connection can lose a link and continue.
func (p *Protocol) SetRedundant() {
	if p.cfg.Peer.LosesCursor {
		p.out.lost.reserve = cursorReserve
	}
}

// CursorLost takes note that a link was lost over which the peer has sent its consumer
// cursor, while this side writes over another one.
func (p *Protocol) CursorLost() {
	p.out.loseCursor()
	p.Transmit()
}

// loseCursor takes note that the peer's cursor may be further than this side knows.
func (s *sender) loseCursor() { s.lost.lose(s.read, s.announced()) }

// asks reports whether a byte of the reserve may be written to make the peer send its
// cursor. Behind urgent bytes, placement asks for the cursor.
func (s *sender) asks() bool {
	return s.lost.ask && s.toRepeat() == 0 && s.urgent.at == 0 && s.placement.lag == 0 && s.room() > 0
}
