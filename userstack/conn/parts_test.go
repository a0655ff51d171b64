// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestStateSteps has the steps of the table in closing.go that follow from D and C.
func TestStateSteps(t *testing.T) {
	const d, c = wire.ConnSendingDone, wire.ConnClosed
	for _, tt := range []struct {
		from     smc.ConnState
		flag     wire.StateFlags // sent, or received
		other    wire.StateFlags // of the other side
		sent, to smc.ConnState   // after sending, after receiving
	}{
		{smc.StateActive, d, 0, smc.StatePeerCloseWait1, smc.StateAppCloseWait1},
		{smc.StateActive, c, 0, smc.StatePeerCloseWait1, smc.StateAppCloseWait1},
		{smc.StatePeerCloseWait1, d, d, smc.StatePeerCloseWait1, smc.StatePeerCloseWait2},
		{smc.StatePeerCloseWait1, c, d, smc.StatePeerCloseWait1, smc.StateAppFinCloseWait},
		{smc.StatePeerCloseWait2, c, d, smc.StatePeerCloseWait2, smc.StateAppFinCloseWait},
		{smc.StatePeerCloseWait2, c, c, smc.StatePeerCloseWait2, smc.StatePeerCloseWait2},
		{smc.StateAppCloseWait1, d, d, smc.StateAppCloseWait2, smc.StateAppCloseWait1},
		{smc.StateAppCloseWait1, c, d, smc.StatePeerFinCloseWait, smc.StateAppCloseWait1},
		{smc.StateAppCloseWait1, c, c, smc.StateAppCloseWait1, smc.StateAppCloseWait1},
		{smc.StateAppCloseWait2, c, d, smc.StatePeerFinCloseWait, smc.StateAppCloseWait2},
		{smc.StatePeerAbortWait, c, 0, smc.StatePeerAbortWait, smc.StatePeerAbortWait},
		{smc.StateProcessAbort, c, 0, smc.StateProcessAbort, smc.StateProcessAbort},
	} {
		if got := afterSending(tt.from, tt.flag, tt.other); got != tt.sent {
			t.Errorf("%s, sent %#x, received %#x: %s, want %s", tt.from, tt.flag, tt.other, got, tt.sent)
		}
		if got := afterReceiving(tt.from, tt.flag, tt.other); got != tt.to {
			t.Errorf("%s, received %#x, sent %#x: %s, want %s", tt.from, tt.flag, tt.other, got, tt.to)
		}
	}
}

// TestClosingDue has what a side says about its end, and when both are done.
func TestClosingDue(t *testing.T) {
	const d, c, a = wire.ConnSendingDone, wire.ConnClosed, wire.ConnAbnormalClose
	for _, tt := range []struct {
		prog      progEnd
		sent, due wire.StateFlags
	}{
		{progOpen, 0, 0}, {progWriteDone, 0, d}, {progWriteDone, d, 0}, {progWriteDone, c, 0},
		{progClosed, 0, c}, {progClosed, d, c}, {progClosed, c, 0},
	} {
		if got := (&closing{prog: tt.prog, sent: tt.sent}).due(); got != tt.due {
			t.Errorf("program %d, sent %#x: %#x is due, want %#x", tt.prog, tt.sent, got, tt.due)
		}
	}
	for _, tt := range []struct {
		state                 smc.ConnState
		received, sent, acked wire.StateFlags
		want                  bool
	}{
		{smc.StateActive, 0, c, c, false},
		{smc.StatePeerCloseWait1, c, c, 0, false},
		{smc.StatePeerCloseWait1, c, c, c, true},
		{smc.StatePeerAbortWait, c, a, 0, false},
		{smc.StatePeerAbortWait, c, a, a, true},
		{smc.StatePeerAbortWait, c, c, c, false},
		{smc.StateProcessAbort, a, c, c, true},
		{smc.StateProcessAbort, a, c, 0, false},
		{smc.StateProcessAbort, a, d, d, false},
	} {
		e := closing{received: tt.received, sent: tt.sent, acked: tt.acked}
		if got := e.complete(tt.state); got != tt.want {
			t.Errorf("%s, received %#x, sent %#x, delivered %#x: complete %v", tt.state, tt.received, tt.sent, tt.acked, got)
		}
	}
}

// liveness is a link that knows what the test says.
type liveness struct {
	message, sign time.Time
	lives         bool
}

func (l liveness) LastMessage() time.Time { return l.message }
func (l liveness) LastSign() time.Time    { return l.sign }
func (l liveness) Test()                  {}
func (l liveness) PeerLives() bool        { return l.lives }

// TestTCPEnd has the rows of the table of tcpEnd, for an end at second 100, a grace
// of 2 s and one of 10 s for a peer that is alive.
func TestTCPEnd(t *testing.T) {
	at := func(sec int) time.Time { return epoch.Add(time.Duration(sec) * time.Second) }
	timers := Timers{TCPGrace: 2 * time.Second, TCPGraceAlive: 10 * time.Second}
	for _, tt := range []struct {
		name          string
		now           int
		reset         bool
		message, sign int
		lives         bool
		again         int // 0: the connection is reset
		test          bool
	}{
		{"early, nothing came since", 101, false, 50, 50, false, 102, true},
		{"early, a message came since", 101, false, 101, 101, false, 102, false},
		{"early, RST", 101, true, 50, 50, false, 102, false},
		{"RST", 102, true, 102, 102, true, 0, false},
		{"a message came since", 102, false, 101, 101, false, 110, false},
		{"the adapter acknowledges", 103, false, 50, 102, false, 104, false},
		{"the adapter acknowledges, late", 109, false, 50, 109, false, 110, false},
		{"the stack lives", 102, false, 50, 50, true, 104, false},
		{"the stack lives, late", 109, false, 50, 50, true, 110, false},
		{"no sign", 102, false, 50, 50, false, 0, false},
		{"alive for too long", 110, false, 109, 109, true, 0, false},
	} {
		e := tcpEnd{at: at(100), reset: tt.reset}
		v := e.judge(at(tt.now), &timers, liveness{at(tt.message), at(tt.sign), tt.lives})
		if v.wait != (tt.again != 0) || v.wait && !v.again.Equal(at(tt.again)) || v.test != tt.test {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}

// TestHoldTable has the rows of the table of hold.
func TestHoldTable(t *testing.T) {
	for _, tt := range []struct {
		h                   hold
		queued, outstanding int
		waits               bool
	}{
		{hold{}, 1, 0, false}, {hold{}, 1, 1, true}, {hold{}, 100, 1, true}, {hold{}, 101, 1, false},
		{hold{noDelay: true}, 1, 1, false},
		{hold{corked: true}, 199, 0, true}, {hold{corked: true}, 200, 0, false}, {hold{corked: true, push: true}, 1, 1, false},
	} {
		if got := tt.h.waits(tt.queued, 200, tt.outstanding, 100); got != tt.waits {
			t.Errorf("%+v, %d bytes, %d messages outstanding: waits %v", tt.h, tt.queued, tt.outstanding, got)
		}
	}
}

// TestKeepAliveLook: the link is tested when neither it nor the connection was used.
func TestKeepAliveLook(t *testing.T) {
	k := keepAlive{idle: time.Minute, used: epoch}
	if at, test := k.look(epoch.Add(time.Second), epoch); test || !at.Equal(epoch.Add(time.Minute)) {
		t.Errorf("early: %v, %v", at.Sub(epoch), test)
	}
	if at, test := k.look(epoch.Add(time.Minute), epoch.Add(time.Second)); test || !at.Equal(epoch.Add(61*time.Second)) {
		t.Errorf("the link was used: %v, %v", at.Sub(epoch), test)
	}
	used := keepAlive{idle: time.Minute, used: epoch.Add(30 * time.Second)}
	if at, test := used.look(epoch.Add(time.Minute), epoch); test || !at.Equal(epoch.Add(90*time.Second)) {
		t.Errorf("the connection was used, by this side: %v, %v", at.Sub(epoch), test)
	}
	if at, test := k.look(epoch.Add(time.Minute), epoch); !test || !at.Equal(epoch.Add(2*time.Minute)) {
		t.Errorf("due: %v, %v", at.Sub(epoch), test)
	}
}

// TestUrgentMark: how far may be written, and with which flags.
func TestUrgentMark(t *testing.T) {
	const pending, present = wire.ProdUrgentPending, wire.ProdUrgentPresent
	var u urgentMark
	u.set(10, 0)
	u.set(20, 5) // the mark has not gone out: it moves on
	if u.at != 20 || u.next != 0 {
		t.Fatalf("%+v", u)
	}
	u.set(30, 20) // it has
	if u.at != 20 || u.next != 30 {
		t.Fatalf("%+v", u)
	}
	for _, tt := range []struct{ produced, delivered, behind, want uint64 }{
		{40, 19, 0, 20}, {40, 20, 0, 20}, {40, 20, 3, 23}, {40, 20, 50, 29},
	} {
		if got := u.limit(tt.produced, tt.delivered, tt.behind); got != tt.want {
			t.Errorf("%+v: up to %d", tt, got)
		}
	}
	for written, want := range map[uint64]wire.ProducerFlags{19: pending, 20: pending | present, 21: 0} {
		if got := u.flags(written, 1); got != want {
			t.Errorf("written %d: flags %#x, want %#x", written, got, want)
		}
	}
	if u.flags(20, 0) != 0 {
		t.Error("the mark is repeated")
	}
	if u.pass(); u.at != 30 || u.next != 0 || u.waits(29) || !u.waits(30) {
		t.Errorf("passed: %+v", u)
	}
}

// TestPlacementTable has the rows of the table of placement.
func TestPlacementTable(t *testing.T) {
	var p placement
	if f := p.request(epoch, 1, true, 7); f != wire.ProdCursorRequest {
		t.Fatal("U is sent without R")
	}
	p.receive(false, false, false)
	if p.stuck != stuckUnknown {
		t.Fatal("the cursor was not before U")
	}
	p.receive(false, false, true)
	if p.stuck != stuckSuspected || !p.repeat {
		t.Fatalf("nothing new, cursor before U: %+v", p)
	}
	if p.request(epoch, 0, true, 8) == 0 || p.delivered(7) || !p.delivered(8) || p.delivered(8) {
		t.Fatalf("the repeated request: %+v", p)
	}
	if p.receive(false, false, false); p.stuck != stuckSuspected || p.prompt {
		t.Fatalf("nothing new, cursor behind U: %+v", p)
	}
	q := p
	if q.receive(false, false, true); !q.prompt || q.stuck != stuckUnknown {
		t.Errorf("a peer that answers at once: %+v", q)
	}
	if p.timeout(); p.stuck != stuckCertain {
		t.Fatalf("timer: %+v", p)
	}
	if p.skip(); p.lag != 1 || p.stuck != stuckUnknown {
		t.Fatalf("skipped: %+v", p)
	}
	if p.receive(false, false, true); p.stuck != stuckUnknown || p.repeat {
		t.Errorf("a byte is stuck already: %+v", p)
	}
	if got := p.place(10, 0); got != 9 {
		t.Errorf("byte 10 at %d", got)
	}
	if got := p.place(10, 10); got != 8 {
		t.Errorf("byte 10 behind the next urgent byte at %d", got)
	}
	if p.request(epoch, 1, true, 9) != 0 {
		t.Error("it is still asked")
	}
	var none placement
	if none.request(epoch, 1, true, 7); none.delivered(7) {
		t.Error("a request that is not repeated starts the timer")
	}
	if got := none.place(10, 10); got != 10 {
		t.Errorf("byte 10 of a peer that steps over urgent bytes at %d", got)
	}
	none.repeated, none.repeatSeq = true, 7
	if none.reset(); none.delivered(7) {
		t.Error("a request that does not count any more starts the timer")
	}
}

// TestRewind: after failover what was neither delivered nor read is written again,
// in one piece.
func TestRewind(t *testing.T) {
	for _, tt := range []struct{ delivered, read, want uint64 }{{1000, 0, 1000}, {1000, 1200, 1200}, {500, 0, 500}, {1500, 0, 1500}} {
		s := sender{elem: newRing(1<<20, false), written: 1500, read: tt.read}
		s.buf.produced, s.buf.delivered = 2000, tt.delivered
		if s.rewind(); s.written != tt.want || tt.want < 1500 && s.repeat != 1500 {
			t.Errorf("%+v: written %d, repeat %d", tt, s.written, s.repeat)
		}
	}
	s := sender{elem: newRing(1<<20, false), written: 100}
	s.buf.produced = 100 + 200<<10
	if n := s.sendable(); n != 128<<10 {
		t.Errorf("%d bytes are announced at once, want 128 KiB", n)
	}
	s = sender{elem: newRing(1<<20, false), written: 512 << 10}
	s.buf.produced = 600 << 10
	s.rewind()
	if n := s.sendable(); n != 512<<10 {
		t.Errorf("%d bytes are repeated at once, want all", n)
	}
	if s.advance(512 << 10); s.toRepeat() != 0 || s.sendable() != 88<<10 {
		t.Errorf("%d bytes to be repeated, then %d bytes", s.toRepeat(), s.sendable())
	}
}

// TestPlanMove follows a move to another link while this one works.
func TestPlanMove(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.expect("cdc")
	r.c.p.PlanMove()
	r.send(10)
	r.wait(time.Second)
	r.expect("") // nothing new before the move, which waits for the delivery
	r.deliver()
	r.wait(movePause - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc+F")
	r.deliver()
	r.expect("cdc")
	if r.done(); r.at().Delivered != 20 {
		t.Errorf("%d bytes delivered", r.at().Delivered)
	}
	r.c.p.PlanMove()
	r.send(10)
	r.expect("")
	r.c.p.CancelMove()
	r.expect("cdc")
}

// TestMemoryIsGivenBack: the element and the chunks go back when the driver has let
// go of the connection and no message is outstanding.
func TestMemoryIsGivenBack(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.c.Abort(r.now)
	r.expect("cdc cdc+A")
	r.flag(wire.ConnAbnormalClose)
	r.c.p.End(ErrReset)
	if len(r.ended) != 1 || !errors.Is(r.ended[0], ErrAborted) || r.state() != smc.StateClosed {
		t.Fatalf("ended %v in state %s", r.ended, r.state())
	}
	if r.c.p.Release(); r.freed || len(r.chunks) == 0 {
		t.Error("the memory is given back while a message is outstanding")
	}
	if r.done(); !r.freed || len(r.chunks) != 0 {
		t.Errorf("element given back %v, %d chunks left", r.freed, len(r.chunks))
	}
}
