// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"

	"smcr/userstack/wire"
)

const (
	// maxOutstanding is how many CDC messages of one connection may be
	// outstanding. Data produced in the meantime is gathered in the next one.
	maxOutstanding = 2
	// maxAnnounced bounds in bytes what one CDC message announces, so that the
	// receiver can start on a long write and the connections of a link take turns.
	maxAnnounced = 128 << 10
	// maxPieces is how many RDMA WRITEs one message takes at the most. A piece
	// ends where a chunk does and, once, where the peer's element does; one is an
	// urgent byte at a second place.
	maxPieces = maxChunks + 3
)

// sender is the stream to the peer: what is produced, written to the peer's RMB
// element, delivered and read there. Positions count the bytes of the stream:
//
//	read <= written <= produced,  delivered <= written,  written - read <= element size
//
// After failover, written goes back to what is known to have arrived; repeat is
// what it was before, and means nothing once written gets there again.
//
//	window of the peer         | blocked (flag B)
//	---------------------------+-------------------------------------------
//	room for all waiting data  | no
//	a tenth of the element, or | no: what fits is written
//	more                       |
//	less than a tenth, and the | yes: what fits is written with the message
//	peer was not told B        | that sets B
//	less than a tenth, and the | yes: the data waits for a tenth. The peer
//	peer was told B            | tells a blocked writer of each byte read,
//	                           | so a slow reader would otherwise get the
//	                           | rest byte by byte
//	any, data to be repeated   | no: such data always has its room
type sender struct {
	buf       sendBuffer
	elem      ring   // the peer's RMB element
	written   uint64 // written to the peer
	repeat    uint64 // written before failover
	read      uint64 // read by the peer, as its consumer cursor says
	seq       uint16 // last CDC message sent
	delivered uint16 // last CDC message delivered (SS of RFC 7609, section 4.6.1)
	// outstanding is how many CDC messages are neither delivered nor lost.
	outstanding int
	flags       wire.ProducerFlags // of the last message

	hold      hold
	urgent    urgentMark
	placement placement
	lost      lostCursor
	nudge     nudge

	update   bool // a message with the consumer cursor is due, or one again
	validate bool // the failover data validation is due
	full     bool // the producer waits for WakeWrite
	placed   bool // Placed was called, and Produced is to come
}

// announced is the position up to which the peer was told of data.
func (s *sender) announced() uint64 { return max(s.written, s.repeat) }

// idle reports whether all data has been delivered and no message is outstanding.
func (s *sender) idle() bool { return s.outstanding == 0 && s.buf.delivered == s.buf.produced }

// unfinished reports whether data waits to be written, or to be written again.
func (s *sender) unfinished() bool { return s.buf.produced > s.written }

// limit returns the position up to which data may be written as far as urgent data
// is concerned.
func (s *sender) limit() uint64 {
	return s.urgent.limit(s.buf.produced, s.buf.delivered, s.placement.lag)
}

// waiting returns how many bytes wait to be written, as far as urgent data is concerned.
func (s *sender) waiting() int { return int(max(s.limit(), s.written) - s.written) }

// room returns how many bytes of the peer's element are free.
func (s *sender) room() int { return s.elem.size - int(s.written-s.read) }

// window returns how many bytes may be written into the peer's element: without the
// reserve, which only data to be repeated may have used.
func (s *sender) window() int {
	return max(s.room()-s.lost.reserve, s.toRepeat())
}

// toRepeat returns how many bytes were written over a failed link and are to be written
// again.
func (s *sender) toRepeat() int { return int(s.announced() - s.written) }

// blocked reports whether data waits for the peer to read.
func (s *sender) blocked() bool {
	w := s.window()
	return w < s.waiting() && w < s.elem.size/10 && s.toRepeat() == 0
}

// newlyBlocked reports whether the peer has to be told that the writer is blocked
// (RFC 7609, section 4.5.1).
func (s *sender) newlyBlocked() bool {
	return s.blocked() && s.flags&wire.ProdWriterBlocked == 0
}

// newlyUrgent reports whether the peer has to be told of urgent data for which there
// is no room.
func (s *sender) newlyUrgent() bool {
	return s.urgent.at > s.written && s.blocked() && s.flags&wire.ProdUrgentPending == 0
}

// sendable returns how many bytes may be written now. A blocked writer fills the
// element with the message that sets B, and then waits for a tenth of it.
func (s *sender) sendable() int {
	if s.blocked() && (!s.newlyBlocked() || s.window() == 0) {
		if s.asks() {
			return 1
		}
		return 0
	}
	// What was written over a failed link is repeated in one piece, up to an urgent
	// mark: the producer cursor must not go back.
	return min(s.waiting(), s.window(), max(maxAnnounced, s.toRepeat()))
}

// held reports whether data that could be sent waits for more.
func (s *sender) held(autocork int) bool {
	if s.urgent.at != 0 || s.toRepeat() > 0 {
		return false
	}
	return s.hold.waits(int(s.buf.produced-s.written), s.buf.size/2, s.outstanding, autocork)
}

// piece is one RDMA WRITE: n bytes of a chunk from offset off, to the offset at of
// the peer's element.
type piece struct {
	chunk      *Chunk
	off, at, n int
}

// pieceAt returns the piece that begins with the byte at pos. It is as long as the
// rest of its chunk.
func (s *sender) pieceAt(pos uint64) piece {
	k := s.buf.chunkAt(pos)
	return piece{chunk: k, off: int(pos - k.from), at: s.elem.off(s.placement.place(pos, s.urgent.at)), n: int(k.end() - pos)}
}

// cut divides the next n bytes into RDMA WRITEs and returns their number.
func (s *sender) cut(n int, pieces *[maxPieces]piece) (np int) {
	for done := 0; done < n; np++ {
		p := s.pieceAt(s.written + uint64(done))
		p.n = min(n-done, p.n, s.elem.start+s.elem.size-p.at)
		pieces[np] = p
		done += p.n
	}
	if s.placement.lag > 0 && n > 0 && s.written+uint64(n) == s.urgent.at {
		// The urgent byte is also written where the cursor says.
		p := s.pieceAt(s.urgent.at - 1)
		p.at, p.n = s.elem.off(s.urgent.at-1), 1
		pieces[np] = p
		np++
	}
	return np
}

// advance takes note that n bytes are being written.
func (s *sender) advance(n int) {
	s.written += uint64(n)
	s.lost.wrote(s.written)
	if s.buf.produced == s.written {
		s.hold.empty()
	}
}

// peerRead moves the peer's consumer cursor n bytes further.
func (s *sender) peerRead(n uint64) {
	s.read += n
	s.lost.learn(s.read)
	s.written = max(s.written, s.read) // it may be read before it is written again
}

// confirmUrgent goes on behind an urgent byte that the peer's consumer cursor has
// passed.
func (s *sender) confirmUrgent() {
	if s.read >= s.urgent.at {
		s.urgent.pass()
		s.placement.reset()
	}
}

// onlyUrgentLeft reports whether an urgent byte is all that the peer has left to
// confirm while more data waits.
func (s *sender) onlyUrgentLeft() bool {
	return s.urgent.waits(s.written) && s.buf.produced > s.written && s.read+s.placement.lag+1 == s.written
}

// beforeUrgent reports whether the peer's consumer cursor is before an urgent byte
// that it has to confirm.
func (s *sender) beforeUrgent() bool { return s.urgent.waits(s.written) && s.read+1 == s.urgent.at }

// skipStuck goes on behind an urgent byte that the peer never steps over (see
// placement).
func (s *sender) skipStuck() {
	p, u := &s.placement, &s.urgent
	switch {
	case p.stuck == stuckCertain:
		if s.buf.produced == u.at {
			return
		}
	default:
		// The next one comes before the peer can step over this one. That
		// costs a byte of the window, and must not use it up.
		last := u.next - 1 // beyond all data if there is none
		if s.written != last || last-u.at >= p.lag || s.buf.delivered != s.written || p.lag >= uint64(s.elem.size)/16 {
			return
		}
	}
	p.skip()
	u.pass()
}

// rewind goes back to what the peer is known to have, after failover. What it has
// read needs no repetition: its place in the element may be taken already by what
// follows.
func (s *sender) rewind() {
	s.loseCursor()
	from := max(s.buf.delivered, s.read)
	s.repeat, s.written = s.announced(), from
	s.placement.moved()
}

// ahead returns how far the peer's consumer cursor is ahead. A cursor beyond what
// was written to the peer, or one that goes back, is ErrProtocol.
func (s *sender) ahead(c wire.Cursor) (uint64, error) {
	n, ok := s.elem.ahead(c, s.read)
	if !ok {
		return 0, fmt.Errorf("%w: consumer cursor %d outside of the RMB element", ErrProtocol, c.Count)
	}
	if n > s.announced()-s.placement.lag-s.read {
		return 0, fmt.Errorf("%w: consumer cursor %d:%d beyond what was written", ErrProtocol, c.Wrap, c.Count)
	}
	return n, nil
}
