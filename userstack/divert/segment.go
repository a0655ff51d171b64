// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/binary"
	"errors"
	"time"
)

// Kinds of TCP options (RFC 9293, RFC 7323, RFC 2018).
const (
	optEnd        = 0
	optNop        = 1
	optMSS        = 2
	optScale      = 3
	optSACK       = 4
	optTimestamps = 8
)

const (
	// tcpLen and tcpMost are the least and the greatest length of a TCP header in bytes.
	tcpLen, tcpMost = 20, 60
	// defaultMSS is the maximum segment size of a peer that names none (RFC 9293, section 3.7.1).
	defaultMSS = 536
	// maxScale is the greatest shift of a window (RFC 7323, section 2.3).
	maxScale = 14
)

// Bits of segment.flags.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
)

// errSegment is the error of a TCP header that is none.
var errSegment = errors.New("divert: not a TCP header")

// segment is what a TCP header says that a socket has to know to go on where another one has been.
type segment struct {
	seq, ack   uint32
	flags      byte
	window     uint16 // as it stands there, not scaled
	mss        uint16 // 0: not named
	scale      uint8  // of the windows to come; counts if scales is true
	scales     bool
	sack       bool
	timestamps bool
	tsval      uint32
	tsecr      uint32 // 0: none
}

// parseSegment reads the TCP header at the begin of b, which may go on with payload. The error is
// errSegment if that is too short for what it says. Options that are cut or that do not have their
// length end the list, as in Linux.
func parseSegment(b []byte) (segment, int, error) {
	if len(b) < tcpLen {
		return segment{}, 0, errSegment
	}
	n := int(b[12]>>4) * 4
	if n < tcpLen || n > len(b) {
		return segment{}, 0, errSegment
	}
	s := segment{
		seq: binary.BigEndian.Uint32(b[4:]), ack: binary.BigEndian.Uint32(b[8:]),
		flags: b[13], window: binary.BigEndian.Uint16(b[14:]),
	}
	for o := b[tcpLen:n]; len(o) > 0 && o[0] != optEnd; {
		if o[0] == optNop {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			break
		}
		s.option(o[0], o[2:o[1]])
		o = o[o[1]:]
	}
	return s, n, nil
}

// option takes one option. Those of other lengths say nothing.
func (s *segment) option(kind byte, value []byte) {
	switch {
	case kind == optMSS && len(value) == 2:
		s.mss = binary.BigEndian.Uint16(value)
	case kind == optScale && len(value) == 1:
		s.scale, s.scales = min(value[0], maxScale), true
	case kind == optSACK && len(value) == 0:
		s.sack = true
	case kind == optTimestamps && len(value) == 8:
		s.timestamps, s.tsval, s.tsecr = true, binary.BigEndian.Uint32(value), binary.BigEndian.Uint32(value[4:])
	}
}

// scaled returns the window in bytes, of a segment after the handshake whose sender scales with by.
func (s segment) scaled(by uint8) uint32 { return uint32(s.window) << by }

// An end is what a socket has to know to be one end of a connection that others have begun.
type end struct {
	snd, rcv           uint32 // the next sequence numbers to send and to receive
	mss                uint16 // of what it sends
	sndScale, rcvScale uint8  // count if scales is true
	scales             bool
	sack               bool
	timestamps         bool
	tsval              uint32        // the other end has seen this timestamp of it
	tsAge              time.Duration // so long ago
	tsSeen             uint32        // the latest that it has seen, of what was sent again
	sndWindow          uint32        // what the other end takes, in bytes, as of the segment sndSeq
	sndSeq             uint32
	rcvWindow          uint32 // what the other end may send, in bytes
}

// ends returns what inner and outer have to know of a connection: mine is the SYN, or SYN-ACK, of
// this host, theirs that of the peer. ack is the segment that ends the handshake; on a client, which
// sends it itself, it is nil.
func ends(mine, theirs segment, ack *segment) (inner, outer end) {
	both := end{
		scales: mine.scales && theirs.scales, sack: mine.sack && theirs.sack,
		timestamps: mine.timestamps && theirs.timestamps,
	}
	inner, outer = both, both
	outer.snd, outer.rcv, outer.tsval = mine.seq+1, theirs.seq+1, mine.tsval
	inner.snd, inner.rcv, inner.tsval = theirs.seq+1, mine.seq+1, theirs.tsval
	// What the peer takes may be more than the device of this host, whose size this side has named, can send.
	outer.mss, inner.mss = min(mssOr(theirs.mss), mssOr(mine.mss)), mssOr(mine.mss)
	if both.scales {
		outer.sndScale, outer.rcvScale = theirs.scale, mine.scale
		inner.sndScale, inner.rcvScale = mine.scale, theirs.scale
	}
	outer.sndWindow, outer.sndSeq, outer.rcvWindow = uint32(theirs.window), theirs.seq, uint32(mine.window)
	inner.sndWindow, inner.sndSeq, inner.rcvWindow = uint32(mine.window), mine.seq, uint32(theirs.window)
	last := theirs
	if ack != nil {
		outer.sndWindow, outer.sndSeq = ack.scaled(outer.sndScale), ack.seq
		inner.rcvWindow = outer.sndWindow
		if ack.timestamps {
			inner.tsval = ack.tsval
		}
		last = *ack
	}
	inner.mss, outer.mss = inner.fits(), outer.fits()
	inner.tsSeen, outer.tsSeen = inner.tsval, outer.tsval
	if last.tsecr != 0 {
		outer.tsSeen = last.tsecr
	}
	return inner, outer
}

// timestampBytes is how much of each segment the option takes.
const timestampBytes = 12

// fits returns how much a segment has at most: no more than half of what the other end takes. A socket that has made its
// connection itself does that, too, and one that is told of it does not. A larger segment waits for a window that a small receive
// buffer may never have, and goes by window probes then, five a second.
func (e end) fits() uint16 {
	most := e.sndWindow
	if most == 0 { // it says nothing yet
		return e.mss
	}
	if most > defaultMSS {
		most /= 2
	}
	if e.timestamps {
		most += timestampBytes
	}
	return uint16(min(uint32(e.mss), max(most, leastMSS)))
}

// timestamp returns the timestamp with which the socket goes on. Linux takes even ones only, as
// milliseconds. It is not before tsSeen, or the other end would drop what it sends (RFC 7323, section
// 5.3), and not later than the clock of the one that it stands for, or that could not use the ports
// again at once; where both cannot be, it is a millisecond later.
func (e end) timestamp() uint32 {
	now := (e.tsval + uint32(e.tsAge.Milliseconds())) &^ 1
	if int32(now-e.tsSeen) < 0 {
		now = (e.tsSeen + 1) &^ 1
	}
	return now
}

func mssOr(mss uint16) uint16 {
	if mss == 0 {
		return defaultMSS
	}
	return mss
}
