// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestErrorsAfterEnd: what a program is told once it has ended its side.
func TestErrorsAfterEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		end         func(*rig)
		read, write error
	}{
		"shutdown":           {func(r *rig) { r.c.CloseWrite(r.now) }, nil, ErrWriteClosed},
		"close":              {func(r *rig) { r.c.Close(r.now) }, ErrClosed, ErrClosed},
		"shutdown and close": {func(r *rig) { r.c.CloseWrite(r.now); r.done(); r.c.Close(r.now) }, ErrClosed, ErrClosed},
		"shutdown, peer C":   {func(r *rig) { r.c.CloseWrite(r.now); r.flag(wire.ConnSendingDone) }, nil, ErrWriteClosed},
		"abort":              {func(r *rig) { r.c.Abort(r.now) }, ErrAborted, ErrAborted},
	} {
		r := newRig(t, settings{})
		r.give(10, 0)
		if !errors.Is(tt.read, ErrAborted) {
			r.c.Consumed(r.now, 10)
			if tt.read == nil {
				r.give(10, 0)
			}
		}
		tt.end(r)
		if read, write := r.c.ReadErr(), r.c.WriteErr(); !errors.Is(read, tt.read) || !errors.Is(write, tt.write) {
			t.Errorf("%s: %v and %v, want %v and %v", name, read, write, tt.read, tt.write)
		}
	}
}

// TestShutdownAfterClose: a program that has closed cannot take that back.
func TestShutdownAfterClose(t *testing.T) {
	r := newRig(t, settings{})
	r.send(10)
	r.c.Close(r.now)
	r.c.CloseWrite(r.now)
	r.done()
	r.expect("cdc cdc+C")
}

// TestShutdownHasNoEnd: a connection of which one side has ended its direction lasts as long
// as the programs like (RFC 7609, section 4.8.1).
func TestShutdownHasNoEnd(t *testing.T) {
	r := newRig(t, settings{})
	r.c.CloseWrite(r.now)
	r.done()
	r.expect("cdc+D")
	r.wait(time.Hour)
	r.expect("")
	if r.give(10, 0); r.state() != smc.StatePeerCloseWait1 || r.at().Received != 10 {
		t.Errorf("state %s, %d bytes", r.state(), r.at().Received)
	}
}

// TestAbortTwice: to reset what is being reset is no event.
func TestAbortTwice(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Abort(r.now)
	r.c.Abort(r.now)
	if r.expect("cdc+A"); r.events != 1 {
		t.Errorf("%d events", r.events)
	}
}

// TestAbortStopsTimers: a connection that is being reset waits for AbortWait alone.
func TestAbortStopsTimers(t *testing.T) {
	for name, start := range map[string]func(*rig){
		"TCP":        func(r *rig) { r.c.TCPClosed(r.now, false) },
		"cork":       func(r *rig) { r.c.SetCork(r.now, true); r.send(10) },
		"urgent":     func(r *rig) { r.cfg.Timers.UrgentWait = time.Second; r.urge(1); r.send(1) },
		"question":   func(r *rig) { r.urge(1); r.done(); r.give(0, 0); r.done() },
		"validation": func(r *rig) { r.recv(wire.CDC{Seq: 9, Token: r.c.Token(), Flags: wire.ProdFailoverVerify}) },
	} {
		r := newRig(t, settings{stopsAtUrgent: name == "question"})
		start(r)
		if at, ok := r.c.p.Deadline(); !ok || at.Sub(r.now) > time.Second {
			t.Fatalf("%s: timer %v, %v", name, at.Sub(r.now), ok)
		}
		r.c.Abort(r.now)
		if at, ok := r.c.p.Deadline(); !ok || at.Sub(r.now) != r.cfg.Timers.AbortWait {
			t.Errorf("%s: timer %v, %v, want %v", name, at.Sub(r.now), ok, r.cfg.Timers.AbortWait)
		}
	}
}

// TestNotAnnounced: the end of a connection that was never open is not announced: the
// handshake fails.
func TestNotAnnounced(t *testing.T) {
	r := newRig(t, settings{unopened: true})
	r.c.p.End(ErrReset)
	if len(r.ended) != 0 || len(r.wakes) != 0 || !r.left || r.state() != smc.StateClosed {
		t.Errorf("ended %v, wakes %v, left %v, state %s", r.ended, r.wakes, r.left, r.state())
	}
	r.c.p.Discard(time.Time{})
	if !r.freed {
		t.Error("the element is not given back")
	}
}

// TestEndExchanged: the end is exchanged when each side has sent C or A.
func TestEndExchanged(t *testing.T) {
	const d, c, a = wire.ConnSendingDone, wire.ConnClosed, wire.ConnAbnormalClose
	for _, tt := range []struct {
		sent, received wire.StateFlags
		want           bool
	}{{0, 0, false}, {c, 0, false}, {0, c, false}, {d, c, false}, {c, d, false}, {c, c, true}, {a, c, true}, {c, d | a, true}} {
		p := core{closing: closing{sent: tt.sent, received: tt.received}}
		if got := p.EndExchanged(); got != tt.want {
			t.Errorf("sent %#x, received %#x: exchanged %v", tt.sent, tt.received, got)
		}
	}
}

// TestTCPReset: after RST of the TCP connection, neither D nor signs of life explain that
// the peer says nothing. It also counts if it comes after a FIN.
func TestTCPReset(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"RST":           func(r *rig) { r.c.TCPClosed(r.now, true) },
		"FIN, then RST": func(r *rig) { r.c.TCPClosed(r.now, false); r.c.TCPClosed(r.now, true) },
		"RST, then FIN": func(r *rig) { r.c.TCPClosed(r.now, true); r.c.TCPClosed(r.now, false) },
		"D, then RST":   func(r *rig) { r.flag(wire.ConnSendingDone); r.c.TCPClosed(r.now, true) },
	} {
		r := newRig(t, settings{})
		r.peerLives = true
		end(r)
		r.wait(2*time.Second - time.Millisecond)
		if got := r.sent(); got != "" || name == "RST" && r.tests != 0 {
			t.Errorf("%s: sent %q early, %d tests of the link", name, got, r.tests)
		}
		r.wait(time.Millisecond)
		if got := r.sent(); got != "cdc+A" || !errors.Is(r.c.ReadErr(), ErrReset) {
			t.Errorf("%s: sent %q, %v", name, got, r.c.ReadErr())
		}
	}
	r := newRig(t, settings{})
	r.flag(wire.ConnSendingDone)
	r.c.TCPClosed(r.now, false)
	r.wait(time.Hour)
	if r.expect(""); r.state() != smc.StateAppCloseWait1 {
		t.Errorf("D, then FIN: state %s", r.state())
	}
}

// TestPeerHasToMove: a peer whose CONFIRM named a link that has gone has to move the
// connection in time, or it is reset.
func TestPeerHasToMove(t *testing.T) {
	for moved, want := range map[bool]smc.ConnState{false: smc.StatePeerAbortWait, true: smc.StateActive} {
		r := newRig(t, settings{unopened: true})
		r.c.p.Establish(Remote{Token: peerToken, Size: elemSize, LinkGone: true})
		r.wait(peerMoveWait - time.Millisecond)
		if moved {
			r.recv(wire.CDC{Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
		}
		if r.state() != smc.StateActive {
			t.Errorf("moved %v: state %s early", moved, r.state())
		}
		if r.wait(time.Millisecond); r.state() != want || !moved && !errors.Is(r.c.ReadErr(), ErrReset) {
			t.Errorf("moved %v: state %s, want %s; %v", moved, r.state(), want, r.c.ReadErr())
		}
	}
	// It moved before the connection was open.
	r := newRig(t, settings{unopened: true})
	r.c.p.Receive(wire.CDC{Token: r.c.Token(), Flags: wire.ProdFailoverVerify})
	r.c.p.Establish(Remote{Token: peerToken, Size: elemSize, LinkGone: true})
	if r.wait(time.Hour); r.state() != smc.StateActive {
		t.Errorf("moved before: state %s", r.state())
	}
}

// TestLayOutAfterEstablish: the first contact may settle where the data begins when the
// connection is already open.
func TestLayOutAfterEstablish(t *testing.T) {
	r := newRig(t, settings{})
	for _, eye := range []bool{true, false, true} {
		r.c.p.LayOut(false, eye)
		start := map[bool]int{true: eyeCatcherLen}[eye]
		if i := r.c.Info(); r.at().Window != elemSize-start || i.TxProd.Count != uint32(start) || i.PeerRMBE != elemSize {
			t.Errorf("eye catcher %v: window %d, %+v", eye, r.at().Window, i)
		}
	}
}

// TestCheckBounds: what Check allows.
func TestCheckBounds(t *testing.T) {
	r := newRig(t, settings{})
	r.c.p.out.outstanding = maxOutstanding + 1
	if err := r.c.p.Check(); err != nil {
		t.Error(err)
	}
}

// TestCheckWriteWithoutEye: the first data of an element whose eye catcher is not used goes
// over the one that was written before that was settled, and over nothing else.
func TestCheckWriteWithoutEye(t *testing.T) {
	for _, tt := range []struct {
		at     int
		before byte
		ok     bool
	}{{0, 0xe2, true}, {3, 0xd9, true}, {0, 0xd9, false}, {4, 0xe2, false}, {4, 0, true}} {
		r := newRig(t, settings{})
		if err := r.c.p.CheckWrite(tt.at, []byte{tt.before}, []byte{1}); (err == nil) != tt.ok {
			t.Errorf("byte %d was %#x: %v", tt.at, tt.before, err)
		}
		r.c.Close(r.now)
		if err := r.c.p.CheckWrite(tt.at, []byte{tt.before}, []byte{1}); err != nil {
			t.Errorf("byte %d was %#x, after the close: %v", tt.at, tt.before, err)
		}
	}
}
