// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"
	"time"

	"smcr/userstack/wire"
)

// TestUrgentDoesNotAskWithoutData: a message without data after a silence does not ask for the
// cursor, and is none of the data that ends the silence.
func TestUrgentDoesNotAskWithoutData(t *testing.T) {
	r := newLinuxRig(t, &linuxReader{})
	r.give(elemSize, wire.ProdWriterBlocked)
	r.c.Consumed(r.now, elemSize)
	r.expect("cdc")
	r.done()
	r.send(10)
	r.expect("cdc+R")
}

// TestUrgentPeerMoved: a peer that has moved the connection to another link repeats messages,
// so one with nothing new does not say that the urgent byte is stuck.
func TestUrgentPeerMoved(t *testing.T) {
	for moved, want := range map[bool]string{false: "cdc+R", true: ""} {
		r := newLinuxRig(t, &linuxReader{})
		r.urge(1)
		r.done()
		if moved {
			r.recv(wire.CDC{Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
		}
		r.acts = nil
		r.give(0, 0)
		r.expect(want)
	}
}

// TestUrgentNotStuck: a message that says anything new does not show that the byte is stuck,
// and nobody concludes that of a peer that follows the RFC.
func TestUrgentNotStuck(t *testing.T) {
	for name, message := range map[string]func(*rig){
		"data":           func(r *rig) { r.give(10, 0) },
		"a byte":         func(r *rig) { r.give(1, 0) },
		"a flag":         func(r *rig) { r.give(0, wire.ProdWriterBlocked) },
		"its end":        func(r *rig) { r.flag(wire.ConnSendingDone) },
		"another cursor": func(r *rig) { r.got(2) },
	} {
		r := newLinuxRig(t, &linuxReader{})
		r.urge(3)
		r.done()
		if name != "another cursor" {
			r.got(2) // up to the byte
		}
		r.acts = nil
		message(r.rig)
		if got := r.sent(); got != "" {
			t.Errorf("%s: sent %q", name, got)
		}
	}
	r := newRig(t, settings{})
	r.urge(1)
	r.expect("cdc+P+U")
	r.done()
	r.give(0, 0)
	r.expect("")
}

// TestUrgentUnasked: a message that was not asked for does not show that the peer answers at
// once.
func TestUrgentUnasked(t *testing.T) {
	r := newLinuxRig(t, &linuxReader{})
	r.give(0, 0)
	r.send(10)
	r.expect("cdc+R")
}

// TestUrgentSuspectedFailover: a question about an urgent byte that may have been lost with a
// link is asked again over the next one.
func TestUrgentSuspectedFailover(t *testing.T) {
	r := newLinuxRig(t, &linuxReader{})
	r.urge(1)
	r.done()
	r.acts = nil
	r.give(0, 0)
	r.expect("cdc+R")
	r.fail()
	r.expect("cdc+F cdc+R")
	r.send(10)
	r.wait(time.Second)
	r.expect("") // the question is not delivered
	r.done()
	r.wait(answerWait - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc") // behind the byte, which is stuck
}

// TestUrgentNextSkips: the next urgent byte shows that the one before is stuck, once all that
// is between the two is written and delivered, and is too little to make the peer step over it.
func TestUrgentNextSkips(t *testing.T) {
	for name, tt := range map[string]struct {
		lag, next, written, delivered uint64
		skips                         bool
	}{
		"nothing between":         {1, 11, 10, 10, true},
		"nothing is stuck":        {0, 11, 10, 10, false},
		"there is no next one":    {1, 0, 10, 10, false},
		"enough between":          {1, 12, 11, 11, false},
		"too little between":      {2, 12, 11, 11, true},
		"not written":             {2, 12, 10, 10, false},
		"not delivered":           {2, 12, 11, 10, false},
		"the byte is not written": {2, 12, 9, 9, false},
		"as many as may be":       {elemSize/16 - 1, 11, 10, 10, true},
		"that would be too many":  {elemSize / 16, 11, 10, 10, false},
		"as many, and some more":  {elemSize/16 - 1, 12, 11, 11, true},
		"too many, and some more": {elemSize / 16, 12, 11, 11, false},
	} {
		s := sender{elem: newRing(elemSize, false), written: tt.written, placement: placement{lag: tt.lag}}
		s.urgent.at, s.urgent.next, s.buf.produced, s.buf.delivered = 10, tt.next, max(tt.next, 10), tt.delivered
		s.skipStuck()
		if skips := s.placement.lag == tt.lag+1 && s.urgent.at == tt.next && s.urgent.next == 0; skips != tt.skips || !skips && s.urgent.at != 10 {
			t.Errorf("%s: lag %d, marks %d and %d", name, s.placement.lag, s.urgent.at, s.urgent.next)
		}
	}
}

// TestUrgentCertain: data goes on behind a byte that is certainly stuck, when there is data.
func TestUrgentCertain(t *testing.T) {
	for produced, skips := range map[uint64]bool{10: false, 11: true} {
		s := sender{elem: newRing(elemSize, false), written: 10, placement: placement{stuck: stuckCertain}}
		s.urgent.at, s.buf.produced, s.buf.delivered = 10, produced, 10
		if s.skipStuck(); (s.placement.lag == 1) != skips || (s.urgent.at == 0) != skips {
			t.Errorf("%d bytes produced: lag %d, mark %d", produced, s.placement.lag, s.urgent.at)
		}
	}
}

// TestUrgentIsToldOnce: an urgent byte that is written, behind which bytes wait for the peer's
// window, is not announced again.
func TestUrgentIsToldOnce(t *testing.T) {
	s := sender{elem: newRing(elemSize, false), written: elemSize, flags: wire.ProdWriterBlocked, placement: placement{lag: 1}}
	s.urgent.at, s.buf.produced, s.buf.delivered = elemSize, elemSize+5, elemSize
	if !s.blocked() || s.newlyUrgent() {
		t.Errorf("blocked %v, announced again %v", s.blocked(), s.newlyUrgent())
	}
	s.urgent.at++
	if !s.newlyUrgent() {
		t.Error("a byte that waits is not announced")
	}
}

// TestUrgentTwoPlaces: behind bytes that are stuck, an urgent byte goes to the place where the
// kernel reads it, and alone to the one that the cursor says.
func TestUrgentTwoPlaces(t *testing.T) {
	k := &Chunk{Mem: make([]byte, 100)}
	s := sender{elem: newRing(elemSize, true), written: 50, read: 50, placement: placement{lag: 2}}
	s.buf = sendBuffer{size: 100, chunk: 100, head: k, tail: k, produced: 60, delivered: 50}
	s.urgent.at = 60
	var got [maxPieces]piece
	if n := s.cut(10, &got); n != 2 || got[0] != (piece{k, 50, eyeCatcherLen + 48, 10}) || got[1] != (piece{k, 59, eyeCatcherLen + 59, 1}) {
		t.Errorf("%d pieces: %+v", n, got[:n])
	}
	if n := s.cut(9, &got); n != 1 || got[0] != (piece{k, 50, eyeCatcherLen + 48, 9}) {
		t.Errorf("before the byte, %d pieces: %+v", n, got[:n])
	}
	if n := s.cut(0, &got); n != 0 {
		t.Errorf("nothing, %d pieces: %+v", n, got[:n])
	}
	s.written = 60
	if n := s.cut(0, &got); n != 0 {
		t.Errorf("nothing behind the byte, %d pieces: %+v", n, got[:n])
	}
}

// TestUrgentLeft: the last byte that the peer has to confirm is the urgent one, and those that
// are stuck are not waited for.
func TestUrgentLeft(t *testing.T) {
	for _, tt := range []struct {
		lag, read, produced uint64
		left                bool
	}{
		{0, 9, 11, true}, {0, 8, 11, false}, {0, 9, 10, false}, {0, 10, 11, false},
		{1, 8, 11, true}, {1, 9, 11, false}, {1, 7, 11, false}, {3, 6, 11, true},
	} {
		s := sender{elem: newRing(elemSize, false), written: 10, read: tt.read, placement: placement{lag: tt.lag}}
		s.urgent.at, s.buf.produced = 10, tt.produced
		if got := s.onlyUrgentLeft(); got != tt.left {
			t.Errorf("lag %d, %d bytes are read, %d produced: only the urgent byte is left: %v", tt.lag, tt.read, tt.produced, got)
		}
	}
	// There is no urgent byte, or it is not written yet.
	for _, at := range []uint64{0, 11} {
		s := sender{elem: newRing(elemSize, false), written: 10, read: 9}
		s.urgent.at, s.buf.produced = at, 12
		if s.onlyUrgentLeft() {
			t.Errorf("urgent mark %d, 10 bytes are written: only the urgent byte is left", at)
		}
		if s.read = 10; s.beforeUrgent() {
			t.Errorf("urgent mark %d, 10 bytes are written: the peer is before it", at)
		}
	}
}

// TestUrgentRepeatedAlone: after failover, a mark is repeated alone although data behind it was
// written already, and what the peer has read of that counts.
func TestUrgentRepeatedAlone(t *testing.T) {
	s := sender{elem: newRing(elemSize, false), written: 12, placement: placement{lag: 2}}
	s.urgent.at, s.buf.produced = 10, 12
	s.rewind()
	if n := s.sendable(); n != 10 {
		t.Fatalf("%d bytes are repeated, want those up to the mark", n)
	}
	s.advance(10)
	if s.announced() != 12 || !s.unfinished() || s.sendable() != 0 {
		t.Errorf("%d bytes are announced, unfinished %v, %d can be sent", s.announced(), s.unfinished(), s.sendable())
	}
	if n, err := s.ahead(s.elem.cursor(10)); n != 10 || err != nil {
		t.Errorf("the peer has read all: %d, %v", n, err)
	}
	if _, err := s.ahead(s.elem.cursor(11)); err == nil {
		t.Error("the peer has read more than there was")
	}
	s.buf.delivered = 10
	if n := s.sendable(); n != 2 {
		t.Errorf("%d bytes follow the mark, want 2", n)
	}
	if s.advance(2); s.toRepeat() != 0 {
		t.Errorf("%d bytes to be repeated", s.toRepeat())
	}
}
