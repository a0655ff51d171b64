// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestRing checks cursors against counting byte by byte.
func TestRing(t *testing.T) {
	for _, eye := range []bool{false, true} {
		r := newRing(10, eye)
		cu := wire.Cursor{Count: uint32(r.start)}
		for pos := range uint64(300) {
			if got := r.cursor(pos); got != cu {
				t.Fatalf("eye %v, byte %d: %+v, want %+v", eye, pos, got, cu)
			}
			if cu.Count++; cu.Count == 10 {
				cu.Count, cu.Wrap = uint32(r.start), cu.Wrap+1
			}
		}
	}
}

func TestRingAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing(16<<10<<rapid.IntRange(0, 15).Draw(t, "code"), rapid.Bool().Draw(t, "eye"))
		pos := rapid.Uint64Range(0, 1<<50).Draw(t, "pos")
		d := rapid.Uint64Range(0, uint64(r.size)).Draw(t, "ahead")
		if got, ok := r.ahead(r.cursor(pos+d), pos); !ok || got != d {
			t.Fatalf("%d ahead of %d: %d %v", d, pos, got, ok)
		}
		// What is behind comes out as too far ahead.
		if pos >= d && d > 0 {
			if got, _ := r.ahead(r.cursor(pos-d), pos); got != uint64(r.size)<<16-d {
				t.Fatalf("%d behind %d: %d", d, pos, got)
			}
		}
		// The end of the element is the start of the next round.
		full := pos / uint64(r.size) * uint64(r.size)
		end := wire.Cursor{Wrap: uint16(full / uint64(r.size)), Count: uint32(r.start + r.size)}
		if got, ok := r.ahead(end, full); !ok || got != uint64(r.size) {
			t.Fatalf("end of the element: %d %v", got, ok)
		}
		for _, bad := range []uint32{uint32(r.start+r.size) + 1, 1 << 31} {
			if _, ok := r.ahead(wire.Cursor{Count: bad}, pos); ok {
				t.Fatalf("offset %d accepted", bad)
			}
		}
		if _, ok := r.ahead(wire.Cursor{Count: 0}, pos); ok && r.start > 0 {
			t.Fatal("offset in the eye catcher accepted")
		}
	})
}

// TestWindowUpdates has the examples of RFC 7609, section 4.5.1, and the
// other lines of the table above wantUpdate, for an element of 16384 bytes.
func TestWindowUpdates(t *testing.T) {
	const full = 16384
	tests := []struct {
		name    string
		written int // by the peer
		flags   wire.ProducerFlags
		read    int
		want    string
	}{
		{"a: window 50 of 64", full * 14 / 64, 0, full * 14 / 64, ""},
		{"b: window 30 of 64, gain 1 of 64", full * 34 / 64, 0, full / 64, ""},
		{"c: window 30 of 64, all read", full * 34 / 64, 0, full * 34 / 64, "cdc"},
		{"half the window is enough", full / 2, 0, full / 2, ""},
		{"less than half, a tenth read", full/2 + 1, 0, (full + 9) / 10, "cdc"},
		{"less than half, less than a tenth", full/2 + 1, 0, full / 10, ""},
		{"full, one byte read", full, 0, 1, ""},
		{"writer blocked", full, wire.ProdWriterBlocked, 1, "cdc"},
		{"update requested", 10, wire.ProdCursorRequest, 1, "cdc"},
		{"urgent data read", 10, wire.ProdUrgentPending | wire.ProdUrgentPresent, 9, "cdc"},
		{"urgent data ahead", 10, wire.ProdUrgentPending | wire.ProdUrgentPresent, 8, ""},
		{"urgent data announced", 10, wire.ProdUrgentPending, 10, ""},
	}
	for _, tt := range tests {
		for _, before := range []int{0, 5000} { // bytes of which the peer knows that they were read
			t.Run(fmt.Sprintf("%s, after %d", tt.name, before), func(t *testing.T) {
				r := newRig(t, settings{})
				r.give(before, 0)
				r.c.Consumed(r.now, before)
				r.send(1)
				r.acts = nil
				if at := r.at(); at.Told != uint64(before) {
					t.Fatalf("the peer was told of %d bytes", at.Told)
				}
				r.give(tt.written, tt.flags)
				r.expect("")
				r.c.Consumed(r.now, tt.read)
				if got := r.sent(); got != tt.want {
					t.Errorf("sent %q, want %q", got, tt.want)
				}
				if r.state() != smc.StateActive {
					t.Errorf("state %s", r.state())
				}
			})
		}
	}
	for read, want := range map[int]string{1637: "", 1638: "cdc"} { // a tenth is 1638 bytes
		r := newRig(t, settings{eye: true})
		r.give(full/2+1, 0)
		r.c.Consumed(r.now, read)
		if got := r.sent(); got != want {
			t.Errorf("%d bytes read of an element with an eye catcher: sent %q, want %q", read, got, want)
		}
	}
}

// TestLateRequest: the peer says that it waits when all it could learn was
// read before.
func TestLateRequest(t *testing.T) {
	for _, f := range []wire.ProducerFlags{wire.ProdWriterBlocked, wire.ProdCursorRequest} {
		r := newRig(t, settings{})
		r.give(100, 0)
		r.c.Consumed(r.now, 100)
		r.expect("")
		r.give(0, f)
		r.expect("cdc")
		r.done()
		r.give(0, f)
		r.expect("")
	}
}

// TestPiggyback: data carries the consumer cursor.
func TestPiggyback(t *testing.T) {
	r := newRig(t, settings{})
	r.give(100, 0)
	r.c.Consumed(r.now, 60)
	r.send(5)
	acts := r.acts
	if len(acts) < 2 {
		t.Fatalf("%d actions", len(acts))
	}
	w, m := acts[len(acts)-2], acts[len(acts)-1]
	if w.k == nil || w.off != 0 || w.n != 5 || w.at != 0 {
		t.Errorf("write: %+v", w)
	}
	want := wire.CDC{Seq: 1, Token: peerToken, Prod: wire.Cursor{Count: 5}, Cons: wire.Cursor{Count: 60}}
	if m.m != want {
		t.Errorf("%+v, want %+v", m.m, want)
	}
}

// TestWrap writes over the ends of a chunk and of the peer's element.
func TestWrap(t *testing.T) {
	r := newRig(t, settings{chunk: 600})
	// Chunks of 600 bytes, element of 16384 bytes.
	for range 16 {
		r.send(1000)
		r.done()
		r.got(1000)
	}
	r.acts = nil
	r.c.SetNoDelay(r.now, true)
	r.send(500)
	r.send(600)
	var writes []string
	for _, a := range r.acts {
		if a.k != nil {
			writes = append(writes, fmt.Sprintf("%d+%d>%d", a.off, a.n, a.at))
		}
	}
	if got, want := strings.Join(writes, " "), "0+384>16000 384+116>0 500+100>116 0+500>216"; got != want {
		t.Errorf("writes %s, want %s", got, want)
	}
	m := r.last
	if want := (wire.Cursor{Wrap: 1, Count: 716}); m.Prod != want {
		t.Errorf("producer cursor %+v, want %+v", m.Prod, want)
	}
}

// TestBlocked follows a sender into a closed window and out of it (RFC 7609,
// sections 4.7.3 and 4.7.4).
func TestBlocked(t *testing.T) {
	r := newRig(t, settings{})
	for range 4 {
		r.send(4096)
		r.done()
	}
	r.acts = nil
	r.send(1)
	r.expect("cdc+B")
	r.send(2000)
	r.done()
	r.expect("")
	r.got(100) // not worth a write
	r.expect("")
	r.got(2000)
	r.expect("cdc")
	if free := 16384 - int(r.at().Written-r.at().PeerRead); free != 2100-2001 {
		t.Errorf("window %d", free)
	}
}

// TestBlockedFillsWindow: a writer that has more than the window takes fills the
// element with the message that sets B (RFC 7609, section 4.5.2). After that, it waits
// until a tenth of the element is free.
func TestBlockedFillsWindow(t *testing.T) {
	r := newRig(t, settings{})
	for _, n := range []int{4096, 4096, 4096, 3000} {
		r.send(n)
		r.done()
	}
	r.acts = nil
	const free = elemSize - 15288
	r.send(4000)
	if w := r.acts[0]; w.k == nil || w.n != free || w.at != 15288 {
		t.Errorf("wrote %d bytes at %d, want %d at 15288", w.n, w.at, free)
	}
	r.expect("cdc+B")
	if w := r.at().Window; w != 0 {
		t.Errorf("window %d, want 0", w)
	}
	r.done()
	r.got(elemSize/10 - 1)
	r.expect("")
	r.got(1)
	r.expect("cdc+B")
	if at := r.at(); at.Window != 0 || at.Written != 15288+free+elemSize/10 {
		t.Errorf("%d bytes are written, window %d", at.Written, at.Window)
	}
}

// TestPeerFull: a message says whether data has to wait behind it for the peer. One that only
// repeats that the writer is blocked does not.
func TestPeerFull(t *testing.T) {
	r := newRig(t, settings{})
	full := func() bool { return r.outstanding[len(r.outstanding)-1].PeerFull() }
	for range 4 {
		if r.send(4096); full() {
			t.Error("the element is full of data, and nothing waits")
		}
		r.done()
	}
	r.acts = nil
	if r.send(1); !full() {
		t.Error("data waits: the peer is not full")
	}
	r.done()
	r.give(elemSize, wire.ProdWriterBlocked)
	r.c.Consumed(r.now, elemSize)
	r.expect("cdc+B cdc+B")
	if full() {
		t.Error("a message that repeats that the writer is blocked says that the peer is full")
	}
	r.done()
	r.send(4000)
	r.got(elemSize / 4)
	if r.expect("cdc"); full() {
		t.Error("all data has gone out, and the peer is full")
	}
	r.done()
	r.got(elemSize / 8)
	if r.send(2000); full() {
		t.Error("2143 bytes are free for 2000")
	}
	r.done()
	r.send(2000)
	r.expect("cdc cdc+B")
	if !full() {
		t.Error("a message that fills the element does not say so")
	}
	r.done()
	r.got(elemSize / 10)
	r.expect("cdc+B")
	if !full() {
		t.Error("a message that fills the element again does not say so")
	}
}

// TestWindowNeverOverrun checks the writes against the cursors, with any
// pattern of reading.
func TestWindowNeverOverrun(t *testing.T) {
	r := newRig(t, settings{eye: true})
	for i := range 3000 {
		a, b, _ := r.c.SendSpace(1, 4096)
		if n := len(a) + len(b); n > 0 {
			r.c.Produced(r.now, 1+i%n)
		}
		r.done()
		if unread := r.at().Written - r.at().PeerRead; unread > uint64(r.c.p.out.elem.size) {
			t.Fatalf("%d bytes in an element of %d", unread, r.c.p.out.elem.size)
		} else if i%3 == 0 && unread > 0 {
			r.got(1 + i*7%int(unread))
		}
		for _, a := range r.acts {
			if a.k != nil && (a.at < 4 || a.at+a.n > elemSize) {
				t.Fatalf("write of %d at %d", a.n, a.at)
			}
		}
		r.acts = nil
	}
	if r.at().PeerRead < 100000 {
		t.Errorf("only %d bytes went through", r.at().PeerRead)
	}
}

// TestBadCursors: whatever the peer claims about cursors, it is checked, and
// costs no more than the connection.
func TestBadCursors(t *testing.T) {
	tests := []struct {
		name string
		edit func(r *rig, m *wire.CDC)
		ok   bool
	}{
		{"producer beyond the element", func(r *rig, m *wire.CDC) { m.Prod.Count = 16385 }, false},
		{"producer over unread bytes", func(r *rig, m *wire.CDC) { m.Prod = r.rx(r.at().Read + 16385) }, false},
		{"producer fills the element", func(r *rig, m *wire.CDC) { m.Prod = r.rx(r.at().Read + 16384) }, true},
		{"producer behind", func(r *rig, m *wire.CDC) { m.Prod = r.rx(r.at().Received - 1) }, false},
		{"producer wraps ahead", func(r *rig, m *wire.CDC) { m.Prod.Wrap += 2 }, false},
		{"producer at the very end", func(r *rig, m *wire.CDC) { m.Prod.Count = 16384 }, true},
		{"consumer beyond the element", func(r *rig, m *wire.CDC) { m.Cons.Count = 1 << 30 }, false},
		{"consumer beyond the producer", func(r *rig, m *wire.CDC) { m.Cons = r.tx(r.at().Written + 1) }, false},
		{"consumer behind", func(r *rig, m *wire.CDC) { m.Cons = r.tx(r.at().PeerRead - 1) }, false},
		{"consumer at the producer", func(r *rig, m *wire.CDC) { m.Cons = r.tx(r.at().Written) }, true},
		{"old message", func(r *rig, m *wire.CDC) { m.Seq -= 2; m.Prod.Count = 1 << 30 }, true},
		{"old message of another round", func(r *rig, m *wire.CDC) { m.Seq += 0x8000; m.Prod.Count = 1 << 30 }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, settings{})
			r.give(1000, 0)
			r.c.Consumed(r.now, 500)
			r.send(300)
			r.done()
			r.got(200)
			m := r.cdc()
			tt.edit(r, &m)
			r.recv(m)
			if ok := r.c.State() == smc.StateActive; ok != tt.ok {
				t.Errorf("state %s", r.c.State())
			}
		})
	}
}
