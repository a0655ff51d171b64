// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// over checks how a connection has ended.
func (r *rig) over(want error) {
	r.t.Helper()
	if r.state() != smc.StateClosed || len(r.ended) != 1 || !errors.Is(r.ended[0], want) {
		r.t.Errorf("state %s, ended %v, want %v", r.state(), r.ended, want)
	}
}

// TestPeerResets: a reset by the peer is answered, and the connection is over when the answer
// is delivered (RFC 7609, section 4.8.2, 2A and 2B).
func TestPeerResets(t *testing.T) {
	r := newRig(t, settings{})
	r.wakes = nil
	r.flag(wire.ConnAbnormalClose)
	r.expect("cdc+A")
	if r.state() != smc.StateProcessAbort || !slices.Contains(r.wakes, WakeRead) || !slices.Contains(r.wakes, WakeWrite) {
		t.Errorf("state %s, wakes %v", r.state(), r.wakes)
	}
	r.wantNothing()
	r.c.Abort(r.now)
	r.expect("") // it is under way
	r.done()
	r.over(ErrReset)
}

// wantNothing wants the reader to get the reset and no data.
func (r *rig) wantNothing() {
	r.t.Helper()
	if a, b := r.c.RecvData(); len(a)+len(b) > 0 || !errors.Is(r.c.ReadErr(), ErrReset) || !errors.Is(r.c.RecvEnd(), ErrReset) {
		r.t.Errorf("%d bytes to read, %v, %v", len(a)+len(b), r.c.ReadErr(), r.c.RecvEnd())
	}
}

// TestResetKeepsData: what arrived before a reset by the peer can be read, as over TCP. The
// connection, and with it the element, lasts until then.
func TestResetKeepsData(t *testing.T) {
	resets := map[string]struct {
		by    func(r *rig)
		sends string
	}{
		"A":                    {func(r *rig) { r.flag(wire.ConnAbnormalClose) }, "cdc+A"},
		"A with the last data": {func(r *rig) { r.give(50, 0); r.flag(wire.ConnAbnormalClose) }, "cdc+A"},
		"RST":                  {func(r *rig) { r.c.TCPClosed(r.now, true); r.wait(10 * time.Second) }, "cdc+A"},
	}
	for name, reset := range resets {
		begin := func(t *testing.T) (r *rig, n int) {
			r = newRig(t, settings{})
			r.give(100, 0)
			r.wakes = nil // the program was woken, and has not come yet
			reset.by(r)
			r.expect(reset.sends)
			if !slices.Contains(r.wakes, WakeRead) {
				t.Errorf("wakes %v: the reader is not told of the reset", r.wakes)
			}
			a, b := r.c.RecvData()
			n = len(a) + len(b)
			if n < 100 || r.c.ReadErr() != nil || !errors.Is(r.c.RecvEnd(), ErrReset) || !errors.Is(r.c.WriteErr(), ErrReset) {
				t.Fatalf("%d bytes to read, %v, %v, %v", n, r.c.ReadErr(), r.c.RecvEnd(), r.c.WriteErr())
			}
			return r, n
		}
		t.Run(name+"/read", func(t *testing.T) {
			r, n := begin(t)
			r.c.Consumed(r.now, 60)
			if a, b := r.c.RecvData(); len(a)+len(b) != n-60 || r.c.ReadErr() != nil {
				t.Errorf("%d bytes are left, %v", len(a)+len(b), r.c.ReadErr())
			}
			r.done()
			if name == "RST" {
				r.flag(wire.ConnAbnormalClose)
			}
			r.wait(time.Hour) // a reader that is slow loses nothing
			if len(r.ended) != 0 {
				t.Fatal("the connection ended before the data was read")
			}
			r.c.Consumed(r.now, n-60)
			r.over(ErrReset)
		})
		t.Run(name+"/read before the end", func(t *testing.T) {
			r, n := begin(t)
			r.c.Consumed(r.now, n)
			r.wantNothing()
			r.done()
			if name == "RST" {
				r.flag(wire.ConnAbnormalClose)
			}
			r.over(ErrReset)
		})
		for end, by := range map[string]func(r *rig){
			"closed":  func(r *rig) { r.c.Close(r.now) },
			"aborted": func(r *rig) { r.c.Abort(r.now) },
		} {
			t.Run(name+"/"+end, func(t *testing.T) {
				r, _ := begin(t)
				r.done()
				if name == "RST" {
					r.flag(wire.ConnAbnormalClose)
				}
				by(r)
				r.expect("")
				r.over(ErrReset)
			})
		}
	}
	t.Run("no answer to our A", func(t *testing.T) {
		r := newRig(t, settings{})
		r.give(100, 0)
		r.c.TCPClosed(r.now, true)
		r.wait(time.Hour)
		r.over(ErrReset) // the element is needed, and not used again
		r.wantNothing()
	})
}

// TestProtocolErrorPurges: nothing is read of an element that is not to be trusted.
func TestProtocolErrorPurges(t *testing.T) {
	r := newRig(t, settings{})
	r.give(100, 0)
	r.c.p.abort(ErrProtocol)
	r.wantNothing()
}

// TestPeerResetsUnanswered: without the delivery of the answer, AbortWait is the end.
func TestPeerResetsUnanswered(t *testing.T) {
	r := newRig(t, settings{})
	r.flag(wire.ConnAbnormalClose)
	r.wait(10*time.Second - time.Millisecond)
	if len(r.ended) != 0 {
		t.Errorf("ended %v", r.ended)
	}
	r.wait(time.Millisecond)
	r.over(ErrReset)
	if r.peerWrites {
		t.Error("the peer has said that it writes no more")
	}
}

// TestCloseUnread: a program that closes with unread data resets the connection (RFC 7609,
// section 4.8.1, 3A).
func TestCloseUnread(t *testing.T) {
	r := newRig(t, settings{})
	r.give(10, 0)
	r.c.Close(r.now)
	r.expect("cdc+A")
	if r.state() != smc.StatePeerAbortWait {
		t.Errorf("state %s", r.state())
	}
	r.done()
	r.flag(wire.ConnAbnormalClose)
	r.over(ErrAborted)
	r = newRig(t, settings{})
	r.give(10, 0)
	r.c.Consumed(r.now, 10)
	r.c.Close(r.now)
	r.expect("cdc+C")
}

// TestPeerClosed: after C of the peer nothing can be sent, and what was received can be read
// to its end (RFC 7609, section 4.8.1, 4A).
func TestPeerClosed(t *testing.T) {
	for f, write := range map[wire.StateFlags]error{wire.ConnSendingDone: nil, wire.ConnClosed: ErrPeerClosed} {
		r := newRig(t, settings{})
		r.give(10, 0)
		r.wakes = nil
		r.flag(f)
		if slices.Contains(r.wakes, WakeWrite) != (write != nil) {
			t.Errorf("%#x: wakes %v", f, r.wakes)
		}
		if err := r.c.WriteErr(); !errors.Is(err, write) || r.state() != smc.StateAppCloseWait1 {
			t.Errorf("%#x: %v, want %v; state %s", f, err, write, r.state())
		}
		if r.c.ReadErr() != nil || !errors.Is(r.c.RecvEnd(), io.EOF) {
			t.Errorf("%#x: before the data is read: %v, %v", f, r.c.ReadErr(), r.c.RecvEnd())
		}
		r.c.Consumed(r.now, 10)
		if !errors.Is(r.c.ReadErr(), io.EOF) || !errors.Is(r.c.RecvEnd(), io.EOF) {
			t.Errorf("%#x: after that: %v, %v", f, r.c.ReadErr(), r.c.RecvEnd())
		}
	}
}

// TestPeerClosedEarly: a peer that closes while data waits for it resets the connection (RFC
// 7609, section 4.8.1, 4A).
func TestPeerClosedEarly(t *testing.T) {
	r := newRig(t, settings{})
	for range 5 {
		r.send(4096) // more than the element takes
		r.done()
	}
	r.acts = nil
	r.flag(wire.ConnClosed)
	r.expect("cdc+A")
	if !errors.Is(r.c.WriteErr(), ErrReset) {
		t.Errorf("%v", r.c.WriteErr())
	}
	r.done()
	r.over(ErrReset)
}

// TestCloseWait: a closed connection whose data the peer does not take is reset after
// CloseWait, which begins again with each step of the peer (RFC 7609, section 4.8.1).
func TestCloseWait(t *testing.T) {
	r := newRig(t, settings{})
	for range 5 {
		r.send(4096)
		r.done()
	}
	r.c.Close(r.now)
	r.acts = nil
	r.wait(50 * time.Second)
	r.got(1)
	r.wait(50 * time.Second)
	r.expect("")
	r.wait(10 * time.Second)
	r.expect("cdc+A")
	r.wait(10 * time.Second)
	r.over(ErrCloseTimeout)
	if !r.peerWrites {
		t.Error("the peer may still write: it never said that it is done")
	}
}

// TestUrgentMarkEndsData: what can be read ends before an urgent byte.
func TestUrgentMarkEndsData(t *testing.T) {
	r := newRig(t, settings{})
	r.give(10, wire.ProdUrgentPending|wire.ProdUrgentPresent)
	r.give(5, 0)
	if a, _ := r.c.RecvData(); len(a) != 9 || !errors.Is(r.c.RecvEnd(), ErrUrgentMark) {
		t.Errorf("%d bytes, and then %v", len(a), r.c.RecvEnd())
	}
	r.c.Consumed(r.now, 9)
	if a, _ := r.c.RecvData(); len(a) != 5 || r.c.RecvEnd() != nil {
		t.Errorf("%d bytes, and then %v", len(a), r.c.RecvEnd())
	}
}

// TestTCPExplained: the end of the TCP connection follows from C and A, and from D only if it
// is not by RST.
func TestTCPExplained(t *testing.T) {
	const d, c, a = wire.ConnSendingDone, wire.ConnClosed, wire.ConnAbnormalClose
	for _, tt := range []struct {
		received wire.StateFlags
		reset    bool
		want     bool
	}{{0, false, false}, {0, true, false}, {d, false, true}, {d, true, false}, {c, true, true}, {a, true, true}, {c, false, true}} {
		if got := (&closing{received: tt.received, tcp: tcpEnd{reset: tt.reset}}).tcpExplained(); got != tt.want {
			t.Errorf("received %#x, reset %v: explained %v", tt.received, tt.reset, got)
		}
	}
}

// TestUndisturbed: only a connection at which nothing has happened says that the peer's stack
// lives.
func TestUndisturbed(t *testing.T) {
	for name, event := range map[string]func(*rig){
		"":          func(r *rig) { r.give(10, 0) },
		"D":         func(r *rig) { r.flag(wire.ConnSendingDone) },
		"reset":     func(r *rig) { r.flag(wire.ConnAbnormalClose) },
		"shutdown":  func(r *rig) { r.c.CloseWrite(r.now) },
		"abort":     func(r *rig) { r.c.Abort(r.now) },
		"TCP ended": func(r *rig) { r.c.TCPClosed(r.now, false) },

		"shutdown, data pending": func(r *rig) { r.send(10); r.c.CloseWrite(r.now) },
	} {
		r := newRig(t, settings{})
		event(r)
		if got := r.c.p.Undisturbed(); got != (name == "") {
			t.Errorf("%s: undisturbed %v", name, got)
		}
	}
}

// TestValidationNumber: over the new link, the first message says which message was the
// last one that was delivered (RFC 7609, section 4.6.1). The delivery of that message itself
// changes nothing.
func TestValidationNumber(t *testing.T) {
	r := newRig(t, settings{})
	for range 3 {
		r.send(10)
		r.done()
	}
	r.send(10) // lost
	for range 2 {
		r.fail()
		m := r.acts[0].m
		if m.Flags != wire.ProdFailoverVerify || m.Seq != 3 {
			t.Errorf("the first message has flags %#x, number %d, want 3", m.Flags, m.Seq)
		}
		first := r.outstanding[0]
		r.outstanding = r.outstanding[1:]
		r.expect("cdc+F cdc") // with the data once more
		r.c.p.Delivered(first)
	}
	if at := r.at(); at.Delivered != 30 || at.Written != 40 {
		t.Errorf("%+v", at)
	}
}

// TestRoom: a message goes out with all its writes, or waits for room.
func TestRoom(t *testing.T) {
	r := newRig(t, settings{})
	r.room = 1
	r.send(10)
	r.expect("")
	r.room = 2
	r.c.p.Transmit()
	r.expect("cdc")
	r.room = 0
	r.fail()
	r.expect("")
	r.room = 1
	r.c.p.Transmit()
	r.expect("cdc+F") // it needs no more
}

// TestLinkNotReady: nothing goes out over a link that is not active.
func TestLinkNotReady(t *testing.T) {
	r := newRig(t, settings{})
	r.linkDown = true
	r.send(10)
	r.c.Close(r.now)
	r.expect("")
	r.linkDown = false
	r.c.p.Transmit()
	r.expect("cdc")
}

// TestWriterIsWoken: a producer that found no room is woken once a quarter of the send buffer
// is free.
func TestWriterIsWoken(t *testing.T) {
	r := newRig(t, settings{})
	r.c.SetNoDelay(r.now, true)
	woken := func() bool { return slices.Contains(r.wakes, WakeWrite) }
	r.send(sendSize/4 - 1)
	r.send(1)
	r.send(sendSize - sendSize/4 - 1)
	r.c.SendSpace(1, 1)
	r.send(1)
	if a, b, err := r.c.SendSpace(1, 1); len(a)+len(b) > 0 || err != nil {
		t.Fatalf("%d bytes of room, %v", len(a)+len(b), err)
	}
	r.wakes = nil
	deliver := func() {
		first := r.outstanding[0]
		r.outstanding = r.outstanding[1:]
		r.c.p.Delivered(first)
	}
	deliver()
	if woken() {
		t.Error("woken with less than a quarter")
	}
	deliver()
	if !woken() {
		t.Error("not woken")
	}
	r.wakes = nil
	r.send(10)
	r.done()
	if woken() {
		t.Error("woken without having waited")
	}
}

// TestChunkSizes: a full send buffer takes eight chunks at most, of whole pages.
func TestChunkSizes(t *testing.T) {
	for _, tt := range []struct{ buf, least, want int }{
		{4096, 65536, 4096}, {65536, 4096, 8192}, {1 << 20, 65536, 131072}, {100000, 4096, 16384}, {32768, 4096, 4096}, {32769, 600, 8192}, {4096, 600, 600},
	} {
		if got := chunkFor(tt.buf, tt.least); got != tt.want {
			t.Errorf("buffer %d, least %d: %d, want %d", tt.buf, tt.least, got, tt.want)
		}
	}
}

// TestCheck: a state that contradicts itself is found.
func TestCheck(t *testing.T) {
	for name, spoil := range map[string]func(p *Protocol){
		"read beyond written":      func(p *Protocol) { p.in.read = p.in.written + 1 },
		"more than the element":    func(p *Protocol) { p.in.written = p.in.read + elemSize + 1 },
		"told more than read":      func(p *Protocol) { p.in.told = p.in.read + 1 },
		"written beyond produced":  func(p *Protocol) { p.out.written = p.out.buf.produced + 1 },
		"more than the buffer":     func(p *Protocol) { p.out.buf.produced = p.out.buf.delivered + sendSize + 1 },
		"delivered beyond written": func(p *Protocol) { p.out.written--; p.out.read-- },
		"too many messages":        func(p *Protocol) { p.out.outstanding = maxOutstanding + 2 },
		"negative messages":        func(p *Protocol) { p.out.outstanding = -1 },
		"peer read beyond written": func(p *Protocol) { p.out.read = p.out.written + 1 },
		"window overrun":           func(p *Protocol) { p.out.elem.size = 49 },
		"closed":                   func(p *Protocol) { p.state = smc.StateClosed },
		"freed":                    func(p *Protocol) { p.mem = memFreed },
		"eye catcher":              func(p *Protocol) { p.in.mem[0]++ },
	} {
		r := newRig(t, settings{eye: true})
		r.give(100, 0)
		r.c.Consumed(r.now, 50)
		r.send(100)
		r.done()
		r.got(50)
		if err := r.c.p.Check(); err != nil {
			t.Fatal(err)
		}
		if spoil(&r.c.p); !errors.Is(r.c.p.Check(), ErrInvariant) {
			t.Errorf("%s: %v", name, r.c.p.Check())
		}
	}
}

// TestCheckWrite: a write of the peer must not touch the eye catcher nor what waits to be
// read, and finds zeros, unless it repeats what is there.
func TestCheckWrite(t *testing.T) {
	for _, tt := range []struct {
		name          string
		at            int
		before, after []byte
		ok            bool
	}{
		{"free", 4 + 100, []byte{0, 0}, []byte{1, 2}, true},
		{"eye catcher", 3, []byte{0}, []byte{0}, false},
		{"read already", 4 + 49, []byte{7}, []byte{7}, true},
		{"unread", 4 + 50, []byte{7}, []byte{8}, false},
		{"unread, the last byte", 4 + 99, []byte{7}, []byte{8}, false},
		{"unread, again", 4 + 50, []byte{7, 7}, []byte{7, 7}, true},
		{"of another connection", 4 + 100, []byte{0, 9}, []byte{1, 2}, false},
		{"the next round", 4 + 49, []byte{7}, []byte{8}, true},
		{"the next round, its first byte", 4, []byte{7}, []byte{8}, true},
	} {
		r := newRig(t, settings{eye: true})
		r.give(100, 0)
		r.c.Consumed(r.now, 50)
		if err := r.c.p.CheckWrite(tt.at, tt.before, tt.after); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrInvariant) {
			t.Errorf("%s: %v", tt.name, err)
		}
		r.c.Abort(r.now)
		if err := r.c.p.CheckWrite(max(tt.at, 4), tt.before, tt.after); err != nil {
			t.Errorf("%s, after a reset: %v", tt.name, err)
		}
	}
}

// TestCloseWaitSilent: CloseWait begins with the close, also if data waits.
func TestCloseWaitSilent(t *testing.T) {
	r := newRig(t, settings{})
	for range 5 {
		r.send(4096)
		r.done()
	}
	r.c.Close(r.now)
	r.acts = nil
	r.wait(time.Minute - time.Millisecond)
	r.expect("")
	r.wait(time.Millisecond)
	r.expect("cdc+A")
}

// TestEndIsTold: a reader that was woken for data and has not come yet is woken again for the
// end of the stream.
func TestEndIsTold(t *testing.T) {
	r := newRig(t, settings{})
	if r.give(1, 0); len(r.wakes) != 1 {
		t.Errorf("wakes %v for one byte", r.wakes)
	}
	r.give(10, 0)
	if !slices.Equal(r.wakes, []Wake{WakeRead}) {
		t.Errorf("wakes %v, want one", r.wakes)
	}
	r.flag(wire.ConnSendingDone)
	if !slices.Equal(r.wakes, []Wake{WakeRead, WakeRead}) {
		t.Errorf("wakes %v, want another one", r.wakes)
	}
}

// TestCloseIsRepeated: a C that was lost with its link goes out again over the next one, and
// nothing else.
func TestCloseIsRepeated(t *testing.T) {
	r := newRig(t, settings{})
	r.c.Close(r.now)
	r.expect("cdc+C")
	r.fail()
	r.expect("cdc+F cdc+C")
	r.done()
	r.expect("")
	r.flag(wire.ConnClosed)
	r.over(nil)
}

// TestTCPEnds: a peer whose TCP connection has ended without a word on the link is tested,
// and the connection is reset after the grace, or a longer one if its stack lives.
func TestTCPEnds(t *testing.T) {
	for lives, grace := range map[bool]time.Duration{false: 2 * time.Second, true: 10 * time.Second} {
		r := newRig(t, settings{})
		r.wait(time.Minute) // since the last message
		r.peerLives = lives
		r.c.TCPClosed(r.now, false)
		r.wait(grace - time.Millisecond)
		r.expect("")
		if r.tests == 0 {
			t.Error("the link was not tested")
		}
		r.wait(time.Millisecond)
		r.expect("cdc+A")
		if !errors.Is(r.c.ReadErr(), ErrReset) {
			t.Errorf("%v", r.c.ReadErr())
		}
	}
	r := newRig(t, settings{})
	r.c.TCPClosed(r.now, false)
	r.flag(wire.ConnClosed)
	r.wait(time.Minute)
	r.expect("") // C explains it
}

// TestDataRoundTheEnd: data that goes round the end of the element is read in two parts.
func TestDataRoundTheEnd(t *testing.T) {
	r := newRig(t, settings{})
	r.give(elemSize-10, 0)
	r.c.Consumed(r.now, elemSize-10)
	r.give(30, 0)
	a, b := r.c.RecvData()
	if len(a) != 10 || len(b) != 20 || &a[0] != &r.mem[elemSize-10] || &b[0] != &r.mem[0] {
		t.Errorf("parts of %d and %d bytes", len(a), len(b))
	}
}

// TestEyeCatcher: an element begins with "SMCR" in EBCDIC until the first contact settles
// that it does not (RFC 7609, section 4.2). Then the data begins at its first byte.
func TestEyeCatcher(t *testing.T) {
	r := newRig(t, settings{})
	r.c = New(&r.cfg, r, 0x1111, r.mem, EyeUnsettled, sendSize, DefaultChunk)
	if got := [4]byte(r.mem); got != [4]byte{0xe2, 0xd4, 0xc3, 0xd9} {
		t.Errorf("the element begins with %x", got)
	}
	for _, eye := range []bool{true, false} {
		r.c.p.LayOut(eye, eye)
		start := map[bool]int{true: 4}[eye]
		if got := r.c.Info(); r.c.RecvSize() != elemSize-start || got.RxCons.Count != uint32(start) {
			t.Errorf("eye catcher %v: %d bytes from %d on", eye, r.c.RecvSize(), got.RxCons.Count)
		}
	}
}
