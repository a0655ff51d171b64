// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestResetAfterClose: C says already that this side is done, so a reset that comes after it is
// not answered (RFC 7609, appendix A.4). The connection is over when C is delivered.
func TestResetAfterClose(t *testing.T) {
	for _, delivered := range []bool{true, false} {
		r := newRig(t, settings{})
		r.c.Close(r.now)
		r.expect("cdc+C")
		if delivered {
			r.done()
		}
		m := r.cdc() // with data that nobody reads any more
		m.Prod, m.State = r.rx(10), wire.ConnAbnormalClose
		r.recv(m)
		if !delivered {
			if r.state() != smc.StateProcessAbort {
				t.Errorf("state %s before C is delivered", r.state())
			}
			r.done()
		}
		r.expect("")
		r.over(ErrReset)
		if r.peerWrites {
			t.Error("the peer has said that it writes no more")
		}
	}
}

// TestCloseLostAndReset: a C that was lost with its link is sent again, also if the peer has
// reset the connection meanwhile: it still waits for the last word of this side.
func TestCloseLostAndReset(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Close(r.now)
	r.expect("cdc+C")
	r.linkDown = true
	r.fail()
	r.flag(wire.ConnAbnormalClose)
	r.expect("")
	r.linkDown = false
	r.c.p.Transmit()
	r.expect("cdc+F cdc+C")
	r.done()
	r.over(ErrReset)
}

// TestResetWritesNothing: what waits to be sent does not go out with A (RFC 7609, section
// 4.8.2, 1A).
func TestResetWritesNothing(t *testing.T) {
	for name, reset := range map[string]func(*rig){
		"abort": func(r *rig) { r.c.Abort(r.now) },
		"A":     func(r *rig) { r.flag(wire.ConnAbnormalClose) },
	} {
		r := newRig(t, settings{})
		r.send(10)
		r.send(5) // waits for the delivery
		r.acts = nil
		reset(r)
		if len(r.acts) != 1 || r.at().Written != 10 {
			t.Errorf("%s: %d actions, %d bytes are written", name, len(r.acts), r.at().Written)
		}
		r.expect("cdc+A")
	}
}

// TestAnswerWhileMissing: the answer to A counts, also if it comes before a message that a
// validation has named.
func TestAnswerWhileMissing(t *testing.T) {
	r := newRig(t, settings{})
	r.recv(wire.CDC{Seq: 1, Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
	r.c.Abort(r.now)
	r.done()
	r.seq++
	r.flag(wire.ConnAbnormalClose)
	r.over(ErrAborted)
	if r.at().LastSeq != 2 || r.peerWrites {
		t.Errorf("the last message is %d, the peer writes: %v", r.at().LastSeq, r.peerWrites)
	}
}

// TestOrderlyEndElement: after an orderly end the element can be used again (RFC 7609, section
// 4.4.2).
func TestOrderlyEndElement(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Close(r.now)
	r.flag(wire.ConnClosed)
	r.linkDown, r.other = true, true
	r.done()
	r.over(nil)
	if r.peerWrites {
		t.Error("the peer has said that it writes no more")
	}
	if !r.linkDown {
		t.Error("a connection that is over takes another link")
	}
}

// TestCloseWaitSteps: CloseWait begins again when data of a closed connection is delivered or
// read, or C goes out, and with nothing else (RFC 7609, section 4.8.1).
func TestCloseWaitSteps(t *testing.T) {
	for name, tt := range map[string]struct {
		pending bool // the peer's element is full
		down    bool // the link is not ready when the program closes
		step    func(*rig)
		begins  bool
	}{
		"delivered":         {true, false, func(r *rig) { r.done() }, true},
		"read":              {true, false, func(r *rig) { r.got(1) }, true},
		"C goes out":        {false, true, func(r *rig) { r.linkDown = false; r.c.p.Transmit() }, true},
		"a message":         {true, false, func(r *rig) { r.give(0, 0) }, false},
		"data of the peer":  {true, false, func(r *rig) { r.give(10, 0) }, false},
		"read after C":      {false, false, func(r *rig) { r.got(1) }, false},
		"nothing delivered": {true, false, func(r *rig) { r.done() }, false},
	} {
		r := newRig(t, settings{})
		r.c.SetNoDelay(r.now, true)
		r.send(100)
		r.done()
		if tt.pending {
			for range 3 {
				r.send(sendSize)
				r.done()
			}
			r.send(sendSize - 100)
			if name != "delivered" {
				r.done()
			}
			r.send(100)
			if name != "delivered" {
				r.done()
			}
		}
		if name == "nothing delivered" { // a message without data
			r.give(10, wire.ProdCursorRequest)
			r.c.Consumed(r.now, 10)
		}
		r.linkDown = tt.down
		r.c.Close(r.now)
		r.acts = nil
		r.wait(50 * time.Second)
		tt.step(r)
		r.acts = nil
		r.wait(10*time.Second - time.Millisecond)
		r.expect("")
		r.wait(time.Millisecond)
		if got := strings.Contains(r.sent(), "A"); got == tt.begins {
			t.Errorf("%s: the connection is reset after one CloseWait: %v", name, got)
		}
		if !tt.begins {
			continue
		}
		r.wait(50*time.Second - time.Millisecond)
		if got := r.sent(); got != "" {
			t.Errorf("%s: sent %q", name, got)
		}
		r.wait(time.Millisecond)
		if got := r.sent(); !strings.HasSuffix(got, "+A") {
			t.Errorf("%s: sent %q", name, got)
		}
	}
}

// TestNobodyReads: what comes after the program has closed counts as read, and the peer is told
// of it with the next message that goes out anyway. No message follows C (RFC 7609, section
// 4.8.1).
func TestNobodyReads(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Close(r.now)
	r.expect("cdc+C")
	r.done()
	r.give(elemSize, wire.ProdWriterBlocked)
	r.expect("")
	if at := r.at(); at.Read != elemSize {
		t.Errorf("%d bytes are read", at.Read)
	}
	r.c.p.out.nudge.on = true
	r.c.p.nudge()
	r.expect("")

	// A question about an urgent byte neither.
	l := newLinuxRig(t, &linuxReader{})
	l.urge(1)
	l.c.Close(l.now)
	l.done()
	l.expect("cdc+P+U+R cdc+R+C")
	l.give(0, 0)
	l.expect("")
}

// TestEndWaitsForMessages: D goes out when no message is under way, also if that has no data.
func TestEndWaitsForMessages(t *testing.T) {
	r := newRig(t, settings{})
	r.give(10, wire.ProdCursorRequest)
	r.c.Consumed(r.now, 10)
	r.expect("cdc")
	if r.state() != smc.StateActive {
		t.Errorf("state %s", r.state())
	}
	r.c.CloseWrite(r.now)
	r.expect("")
	r.done()
	r.expect("cdc+D")
}

// TestTCPEndsAgain: what counts is the first end of the TCP connection, and none if the peer
// has explained it before.
func TestTCPEndsAgain(t *testing.T) {
	r := newRig(t, settings{})
	r.c.TCPClosed(r.now, false)
	r.wait(1900 * time.Millisecond)
	r.c.TCPClosed(r.now, false)
	r.wait(99 * time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc+A")
	for _, f := range []wire.StateFlags{wire.ConnSendingDone, wire.ConnClosed} {
		r := newRig(t, settings{})
		r.flag(f)
		r.c.TCPClosed(r.now, false)
		if at, ok := r.c.p.Deadline(); ok {
			t.Errorf("%#x: a timer at %s", f, at)
		}
	}
}

// TestRestIsTold: after a reset by the peer, a reader that takes a part of the rest is woken for
// what is left, and a reader that takes all of what there is is not woken without a reset.
func TestRestIsTold(t *testing.T) {
	for _, reset := range []bool{true, false} {
		for _, n := range []int{10, 30} {
			r := newRig(t, settings{})
			r.give(30, 0)
			if reset {
				r.flag(wire.ConnAbnormalClose)
			}
			r.c.RecvData()
			r.wakes = nil
			r.c.Consumed(r.now, n)
			if want := reset || n < 30; slices.Contains(r.wakes, WakeRead) != want {
				t.Errorf("reset %v, %d of 30 bytes are read: wakes %v", reset, n, r.wakes)
			}
		}
	}
}

// TestCheckWriteNextRound: in later rounds, too, a write must not touch what waits to be read,
// and the error names the byte.
func TestCheckWriteNextRound(t *testing.T) {
	r := newRig(t, settings{})
	r.give(elemSize-50, 0)
	r.c.Consumed(r.now, elemSize-50)
	r.give(100, 0)
	for at, want := range map[int]string{elemSize - 51: "", 0: "16384", 49: "16433", 50: ""} {
		err := r.c.p.CheckWrite(at, []byte{7}, []byte{8})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), "byte "+want+",") {
			t.Errorf("a write at %d: %v, want byte %q", at, err, want)
		}
	}
	r = newRig(t, settings{})
	if err := r.c.p.CheckWrite(2, []byte{0xc3, 0xd9}, []byte{1, 2}); err != nil {
		t.Errorf("over an eye catcher that is not used: %v", err)
	}
	if err := r.c.p.CheckWrite(10, []byte{0, 0, 9}, []byte{1, 2, 3}); !errors.Is(err, ErrInvariant) || !strings.Contains(err.Error(), "byte 12 ") {
		t.Errorf("over a byte of another connection: %v", err)
	}
}

// TestNotToldOfRoom: a full send buffer of which all is delivered wakes a producer, but not one
// that has shut its side.
func TestNotToldOfRoom(t *testing.T) {
	for _, shut := range []bool{false, true} {
		r := newRig(t, settings{})
		r.send(sendSize)
		if shut {
			r.c.CloseWrite(r.now)
		}
		r.wakes = nil
		if r.done(); slices.Contains(r.wakes, WakeWrite) == shut {
			t.Errorf("shut %v: wakes %v", shut, r.wakes)
		}
	}
}

// TestKeepAliveUse: whatever the connection sends or receives, over whichever link, postpones
// the test of its link (RFC 7609, section 4.5.3).
func TestKeepAliveUse(t *testing.T) {
	for name, use := range map[string]func(*rig){
		"sent":     func(r *rig) { r.send(1) },
		"received": func(r *rig) { r.c.p.Receive(r.cdc()) }, // over another link
		"link":     func(r *rig) { r.receivedAt = r.now },
	} {
		r := newRig(t, settings{})
		r.c.SetKeepAlive(r.now, time.Minute)
		r.wait(30 * time.Second)
		use(r)
		if r.wait(time.Minute - time.Millisecond); r.tests != 0 {
			t.Errorf("%s: %d tests early", name, r.tests)
		}
		if r.wait(time.Millisecond); r.tests != 1 {
			t.Errorf("%s: %d tests", name, r.tests)
		}
	}
}
