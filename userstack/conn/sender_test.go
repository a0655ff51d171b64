// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestBlockedTable has the rows of the table of sender, for an element of which a tenth is 1638
// bytes.
func TestBlockedTable(t *testing.T) {
	for _, tt := range []struct {
		name            string
		window, waiting int
		told            bool // of B
		repeat          int  // bytes to be written again
		blocked         bool
		sendable        int
	}{
		{"nothing waits", 100, 0, false, 0, false, 0},
		{"nothing waits, no room", 0, 0, true, 0, false, 0},
		{"room for all", 100, 100, false, 0, false, 100},
		{"room for all, told", 100, 100, true, 0, false, 100},
		{"a tenth", 1638, 2000, true, 0, false, 1638},
		{"less than a tenth", 1637, 2000, false, 0, true, 1637},
		{"less than a tenth, told", 1637, 2000, true, 0, true, 0},
		{"no room", 0, 1, false, 0, true, 0},
		{"to be repeated", 10, 2000, true, 300, false, 300},
	} {
		s := sender{elem: newRing(elemSize, false), written: 50000}
		s.read = s.written - uint64(elemSize-tt.window)
		if tt.repeat > 0 {
			s.repeat = s.written + uint64(tt.repeat)
		}
		s.buf.produced, s.buf.delivered = s.written+uint64(tt.waiting), s.written
		if tt.told {
			s.flags = wire.ProdWriterBlocked
		}
		if s.blocked() != tt.blocked || s.sendable() != tt.sendable {
			t.Errorf("%s: blocked %v, %d bytes can be sent", tt.name, s.blocked(), s.sendable())
		}
	}
}

// TestUrgentRepeatedInPieces: after failover, an urgent mark is repeated alone, also if there is
// more before it than one message announces, and bytes behind it were written already.
func TestUrgentRepeatedInPieces(t *testing.T) {
	const mark = 200 << 10
	s := sender{elem: newRing(1<<20, false), written: mark + 2, placement: placement{lag: 2}}
	s.urgent.at, s.buf.produced = mark, mark+2
	s.rewind()
	if n := s.sendable(); n != mark {
		t.Errorf("%d bytes are repeated, want the %d up to the mark", n, mark)
	}
}

// TestUrgentWrittenOnce: an urgent byte goes to one place if none is stuck.
func TestUrgentWrittenOnce(t *testing.T) {
	r := newRig(t, settings{})
	r.urge(10)
	if len(r.acts) != 2 || r.acts[0].n != 10 {
		t.Errorf("%d actions, the first of %d bytes", len(r.acts), r.acts[0].n)
	}
	r.expect("cdc+P+U")
}

// TestLostCursorTable has the rows of the table of lostCursor.
func TestLostCursorTable(t *testing.T) {
	var none lostCursor
	if none.lose(0, 100); none != (lostCursor{}) {
		t.Errorf("a peer that does not lose its cursor: %+v", none)
	}
	l := lostCursor{reserve: cursorReserve}
	if l.lose(100, 100); l.flag() != 0 || l.ask {
		t.Errorf("the peer has read all: %+v", l)
	}
	if l.lose(50, 100); l.flag() != wire.ProdCursorRequest || !l.ask {
		t.Errorf("lost: %+v", l)
	}
	if l.wrote(100); !l.ask {
		t.Errorf("what the peer may have is written again: %+v", l)
	}
	l.wrote(101)
	if l.wrote(100); l.ask {
		t.Errorf("a byte of the reserve was written: %+v", l)
	}
	if l.learn(99); l.until != 100 || l.flag() == 0 {
		t.Errorf("the cursor comes before the place: %+v", l)
	}
	if l.learn(100); l.until != 0 || l.flag() != 0 {
		t.Errorf("the cursor is known: %+v", l)
	}
}

// TestReserveByteTable: when a byte of the reserve may be written.
func TestReserveByteTable(t *testing.T) {
	for _, tt := range []struct {
		name        string
		repeat, at  uint64
		lag         uint64
		read        uint64
		known, asks bool
	}{
		{"the cursor may be lost", 0, 0, 0, 1, false, true},
		{"it is known", 0, 0, 0, 1, true, false},
		{"data is to be repeated", elemSize + 1, 0, 0, 1, false, false},
		{"an urgent byte waits", 0, elemSize, 0, 1, false, false},
		{"a byte is stuck", 0, 0, 1, 1, false, false},
		{"no room", 0, 0, 0, 0, false, false},
	} {
		s := sender{elem: newRing(elemSize, false), written: elemSize, repeat: tt.repeat, read: tt.read, placement: placement{lag: tt.lag}}
		s.urgent.at, s.lost.ask = tt.at, !tt.known
		if got := s.asks(); got != tt.asks {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestReserveOfOthers: a peer that repeats its cursor gets the whole element.
func TestReserveOfOthers(t *testing.T) {
	r := newRig(t, settings{})
	if r.c.p.SetRedundant(); r.at().Window != elemSize {
		t.Errorf("window %d, want %d", r.at().Window, elemSize)
	}
}

// TestPeerFullOfReserve: data waits behind a byte of the reserve, too, although the peer was
// told before that the writer is blocked.
func TestPeerFullOfReserve(t *testing.T) {
	r := fullRig(t, true)
	r.c.p.CursorLost()
	r.expect("cdc+B+R")
	if !r.outstanding[0].PeerFull() {
		t.Error("the peer is not full")
	}
}

// TestRepeatedCursors: a peer that has moved the connection may announce again what it has
// written before, up to one element.
func TestRepeatedCursors(t *testing.T) {
	for back, ok := range map[uint64]bool{1: true, elemSize: true, elemSize + 1: false} {
		r := newRig(t, settings{})
		for range 2 {
			r.give(elemSize, 0)
			r.c.Consumed(r.now, elemSize)
		}
		r.recv(wire.CDC{Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
		m := r.cdc()
		m.Prod = r.rx(r.at().Received - back)
		if r.recv(m); (r.state() == smc.StateActive) != ok || r.at().Received != 2*elemSize {
			t.Errorf("%d bytes back: state %s, %d bytes", back, r.state(), r.at().Received)
		}
	}
}

// TestNothingDeferred: when a message that was waited for comes, and none came before it, there
// is nothing else to be processed.
func TestNothingDeferred(t *testing.T) {
	r := newRig(t, settings{})
	r.give(10, 0)
	for range 2 {
		r.seq += 20000
		r.give(1, 0)
	}
	r.recv(wire.CDC{Seq: r.seq + 1, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
	if r.give(1, 0); r.state() != smc.StateActive || r.at().LastSeq != r.seq || r.at().Received != 13 {
		t.Errorf("state %s, message %d, %d bytes", r.state(), r.at().LastSeq, r.at().Received)
	}
}

// TestPositions: what simulations see of a connection.
func TestPositions(t *testing.T) {
	r := newRig(t, settings{})
	r.give(100, wire.ProdCursorRequest)
	r.c.Consumed(r.now, 60)
	r.c.Consumed(r.now, 5)
	if at := r.at(); !at.Live || at.Received != 100 || at.Read != 65 || at.Told != 65 || at.Outstanding != 2 || at.Window != elemSize || at.LastSeq != 1 {
		t.Errorf("%+v", at)
	}
}

// TestUrgentNoLimit: without UrgentWait, an urgent byte may stay unconfirmed.
func TestUrgentNoLimit(t *testing.T) {
	r := newRig(t, settings{})
	r.cfg.Timers.UrgentWait = 0
	r.urge(10)
	r.send(1)
	r.done()
	r.got(9)
	if _, ok := r.c.p.Deadline(); ok {
		t.Error("a timer runs")
	}
	r = newRig(t, settings{})
	r.send(10)
	r.c.SetCork(r.now, true)
	r.send(1)
	r.got(9)
	r.wait(r.cfg.Timers.UrgentWait)
	if r.state() != smc.StateActive {
		t.Errorf("state %s without an urgent byte", r.state())
	}
}

// TestUrgentUnread: what can be read ends before the urgent byte, wherever the reader is.
func TestUrgentUnread(t *testing.T) {
	for _, tt := range []struct {
		mark, read uint64
		want       int
	}{{0, 20, 10}, {25, 20, 4}, {22, 20, 1}, {21, 20, 10}, {20, 20, 10}} {
		u := urgentInput{mark: tt.mark}
		if got := u.unread(tt.read, 30); got != tt.want {
			t.Errorf("mark %d, reader at %d of 30: %d bytes, want %d", tt.mark, tt.read, got, tt.want)
		}
	}
	r := newRig(t, settings{})
	r.c.SetUrgentInline(true)
	r.c.SetUrgentInline(false)
	r.give(3, prodUrgent)
	if _, err := r.c.Urgent(false); err != nil || r.c.UrgentInline() {
		t.Errorf("%v, in the stream %v", err, r.c.UrgentInline())
	}
	if _, err := r.c.Urgent(false); !errors.Is(err, ErrNoUrgent) {
		t.Errorf("again: %v", err)
	}
}

// TestUrgentAskedAgain: a question about an urgent byte that was delivered over a link that has
// failed is asked again over the next one, and its answer has its whole time.
func TestUrgentAskedAgain(t *testing.T) {
	r := newLinuxRig(t, &linuxReader{})
	r.urge(1)
	r.done()
	r.give(0, 0)
	r.done()
	r.send(10)
	r.acts = nil
	r.wait(answerWait / 2)
	r.fail()
	r.expect("cdc+F cdc+R")
	r.wait(time.Second)
	r.expect("") // the question is not delivered
	r.done()
	r.wait(answerWait - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc")
}
