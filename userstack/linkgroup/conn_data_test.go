// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"smcr/userstack/wire"
)

func noTest(c *Config) { c.Timers.TestLink = 0 }

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
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Server, noTest)
			r.open()
			r.give(tt.written, tt.flags)
			r.expect("")
			r.c.Consumed(r.s.now, tt.read)
			if got := r.sent(); got != tt.want {
				t.Errorf("sent %q, want %q", got, tt.want)
			}
		})
	}
}

// TestLateRequest: the peer says that it waits when all it could learn was
// read before.
func TestLateRequest(t *testing.T) {
	for _, f := range []wire.ProducerFlags{wire.ProdWriterBlocked, wire.ProdCursorRequest} {
		r := newRig(t, Client, noTest)
		r.open()
		r.give(100, 0)
		r.c.Consumed(r.s.now, 100)
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
	r := newRig(t, Server, noTest)
	r.open()
	r.give(100, 0)
	r.c.Consumed(r.s.now, 60)
	r.send(5)
	acts := r.acts
	if len(acts) < 2 {
		t.Fatalf("%d actions", len(acts))
	}
	w, m := acts[len(acts)-2], acts[len(acts)-1]
	if w.Kind != ActWrite || w.Off != 0 || w.Len != 5 || w.RKey != peerRMB.RKey || w.RemoteAddr != peerRMB.VAddr+16384 || w.Token != 0 {
		t.Errorf("write: %+v", w)
	}
	got, err := wire.ParseCDC(m.Msg[:])
	want := wire.CDC{Seq: 1, Token: peerRMB.Token, Prod: wire.Cursor{Count: 5}, Cons: wire.Cursor{Count: 60}}
	if err != nil || got != want || m.Token == 0 {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// TestGather: while a message is outstanding more data waits for the next, up
// to half of the send buffer; then a second goes out, and no third.
func TestGather(t *testing.T) {
	r := newRig(t, Server, noTest)
	r.open()
	for range 5 {
		r.send(10)
	}
	r.expect("cdc")
	r.do("ok")
	acts := r.acts
	if len(acts) != 2 || acts[0].Len != 40 || acts[0].Off != 10 {
		t.Errorf("actions after completion: %+v", acts)
	}
	r.done()
	r.acts = nil
	r.send(10)
	r.send(2048)
	r.expect("cdc")
	r.send(1)
	r.expect("cdc")
	r.send(1900)
	r.expect("")
	r.do("ok")
	r.expect("cdc")
}

// TestWrap writes over the ends of the send ring and of the peer's element.
func TestWrap(t *testing.T) {
	r := newRig(t, Server, noTest)
	r.open()
	// Send ring of 4096 bytes, element of 16384 bytes.
	for range 16 {
		r.send(1000)
		r.done()
		r.got(1000)
	}
	r.acts = nil
	r.send(1000)
	var writes []string
	for _, a := range r.acts {
		if a.Kind == ActWrite {
			writes = append(writes, fmt.Sprintf("%d+%d>%d", a.Off, a.Len, a.RemoteAddr-peerRMB.VAddr-16384))
		}
	}
	if got, want := strings.Join(writes, " "), "3712+384>16000 0+616>0"; got != want {
		t.Errorf("writes %s, want %s", got, want)
	}
	m, _ := wire.ParseCDC(r.acts[len(r.acts)-1].Msg[:])
	if want := (wire.Cursor{Wrap: 1, Count: 616}); m.Prod != want {
		t.Errorf("producer cursor %+v, want %+v", m.Prod, want)
	}
}

// TestBlocked follows a sender into a closed window and out of it (RFC 7609,
// sections 4.7.3 and 4.7.4).
func TestBlocked(t *testing.T) {
	r := newRig(t, Server, noTest)
	r.open()
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
	if free := 16384 - int(r.c.sent-r.c.pcons); free != 2100-2001 {
		t.Errorf("window %d", free)
	}
}

// TestWindowNeverOverrun checks the writes against the cursors, with any
// pattern of reading.
func TestWindowNeverOverrun(t *testing.T) {
	r := newRig(t, Server, func(c *Config) { noTest(c); c.EyeCatcher = true })
	r.openEye()
	for i := range 3000 {
		a, b := r.c.SendSpace()
		if n := len(a) + len(b); n > 0 {
			r.c.Produced(r.s.now, 1+i%n)
		}
		r.done()
		if unread := r.c.sent - r.c.pcons; unread > uint64(r.c.tx.size) {
			t.Fatalf("%d bytes in an element of %d", unread, r.c.tx.size)
		} else if i%3 == 0 && unread > 0 {
			r.got(1 + i*7%int(unread))
		}
		for _, a := range r.acts {
			if off := a.RemoteAddr - peerRMB.VAddr - 16384; a.Kind == ActWrite && (off < 4 || off+uint64(a.Len) > 16384) {
				t.Fatalf("write of %d at %d", a.Len, off)
			}
		}
		r.acts = nil
	}
	if r.c.pcons < 100000 {
		t.Errorf("only %d bytes went through", r.c.pcons)
	}
}

// TestBadCursors: whatever the peer claims about cursors, it is checked, and
// costs no more than the connection.
func TestBadCursors(t *testing.T) {
	tests := []struct {
		name string
		edit func(c *Conn, m *wire.CDC)
		ok   bool
	}{
		{"producer beyond the element", func(c *Conn, m *wire.CDC) { m.Prod.Count = 16385 }, false},
		{"producer over unread bytes", func(c *Conn, m *wire.CDC) { m.Prod = c.rx.cursor(c.rcons + 16385) }, false},
		{"producer fills the element", func(c *Conn, m *wire.CDC) { m.Prod = c.rx.cursor(c.rcons + 16384) }, true},
		{"producer behind", func(c *Conn, m *wire.CDC) { m.Prod = c.rx.cursor(c.rprod - 1) }, false},
		{"producer wraps ahead", func(c *Conn, m *wire.CDC) { m.Prod.Wrap += 2 }, false},
		{"producer at the very end", func(c *Conn, m *wire.CDC) { m.Prod.Count = 16384 }, true},
		{"consumer beyond the element", func(c *Conn, m *wire.CDC) { m.Cons.Count = 1 << 30 }, false},
		{"consumer beyond the producer", func(c *Conn, m *wire.CDC) { m.Cons = c.tx.cursor(c.sent + 1) }, false},
		{"consumer behind", func(c *Conn, m *wire.CDC) { m.Cons = c.tx.cursor(c.pcons - 1) }, false},
		{"consumer at the producer", func(c *Conn, m *wire.CDC) { m.Cons = c.tx.cursor(c.sent) }, true},
		{"old message", func(c *Conn, m *wire.CDC) { m.Seq -= 2; m.Prod.Count = 1 << 30 }, true},
		{"old message of another round", func(c *Conn, m *wire.CDC) { m.Seq += 0x8000; m.Prod.Count = 1 << 30 }, true},
		{"unknown token", func(c *Conn, m *wire.CDC) { m.Token++; m.Prod.Count = 1 << 30 }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Client, noTest)
			r.open()
			r.give(1000, 0)
			r.c.Consumed(r.s.now, 500)
			r.send(300)
			r.done()
			r.got(200)
			m := r.cdc()
			tt.edit(r.c, &m)
			r.recv(r.link, m)
			if ok := r.c.State() == StateActive; ok != tt.ok {
				t.Errorf("state %s", r.c.State())
			}
			if !r.g.CanAccept() {
				t.Error("the group suffers")
			}
		})
	}
}

// TestStash: messages that overtake the handshake are kept.
func TestStash(t *testing.T) {
	r := newRig(t, Server, noTest)
	r.open()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	copy(c.mem, "hello")
	r.recv(r.link, wire.CDC{Seq: 1, Token: c.token, Prod: wire.Cursor{Count: 3}})
	r.recv(r.link, wire.CDC{Seq: 3, Token: c.token, Prod: wire.Cursor{Count: 5}, State: wire.ConnSendingDone})
	r.recv(r.link, wire.CDC{Seq: 2, Token: c.token, Prod: wire.Cursor{Count: 4}})
	if a, _ := c.RecvData(); len(a) != 0 {
		t.Fatal("data before the connection is open")
	}
	p := peerRMB
	p.Index, p.Token = 3, 5
	if err := c.Attach(r.s.now, p); err != nil {
		t.Fatal(err)
	}
	if a, _ := c.RecvData(); string(a) != "hello" {
		t.Errorf("got %q", a)
	}
	if c.State() != StateAppCloseWait1 {
		t.Errorf("state %s", c.State())
	}
}

// TestWakeUps: a wake-up for each reason to look, and none twice.
func TestWakeUps(t *testing.T) {
	r := newRig(t, Server, noTest)
	r.open()
	look := func(want string) {
		t.Helper()
		got := r.kinds()
		got = slices.DeleteFunc(got, func(k string) bool { return k == "send" || k == "write" })
		r.acts = nil
		if s := strings.Join(got, " "); s != want {
			t.Fatalf("woken for %q, want %q", s, want)
		}
	}
	r.kinds()
	r.acts = nil
	r.give(10, 0)
	look("wake-read")
	r.give(10, 0)
	look("") // not looked at yet
	r.c.RecvData()
	r.give(10, 0)
	look("wake-read")
	r.c.RecvData()
	r.c.Consumed(r.s.now, 10)
	look("wake-read") // there is more
	r.send(4095)
	r.done()
	look("") // was never full
	r.send(4096)
	r.done()
	look("wake-write")
	r.do("C")
	look("wake-read wake-write")
}

// TestEyeCatcher: who has eye catchers is agreed in CONFIRM LINK, for every
// kind of peer.
func TestEyeCatcher(t *testing.T) {
	tests := []struct {
		name     string
		role     Role
		own      bool // configured
		peerNone bool // what the peer's message says
		saysNone bool // what ours says
		eye      bool
		peerEye  bool
	}{
		{"server without, Linux client", Server, false, true, true, false, false},
		{"server without, RFC client", Server, false, false, true, true, true},
		{"server with, client that mirrors", Server, true, false, false, true, true},
		{"server with, client without", Server, true, true, false, true, false},
		{"client, Linux server", Client, false, true, true, false, false},
		{"client, RFC server", Client, false, false, false, true, true},
		{"client with, Linux server", Client, true, true, true, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.role, func(c *Config) { noTest(c); c.EyeCatcher = tt.own })
			r.begin()
			m := r.confirmLink(tt.role == Server, r.link)
			m.NoEyecatcher = tt.peerNone
			r.take()
			r.recv(r.link, m)
			var ours wire.ConfirmLink
			for _, a := range r.acts {
				if m, err := wire.ParseConfirmLink(a.Msg[:]); a.Kind == ActSend && err == nil {
					ours = m
				}
			}
			if ours.NoEyecatcher != tt.saysNone || r.g.eye != tt.eye || r.g.peerEye != tt.peerEye {
				t.Errorf("says none %v, has %v, peer has %v", ours.NoEyecatcher, r.g.eye, r.g.peerEye)
			}
			if err := r.c.Attach(r.s.now, peerRMB); err != nil {
				t.Fatal(err)
			}
			if has := bytes.HasPrefix(r.c.mem, eyeCatcher[:]); has != tt.eye {
				t.Errorf("eye catcher in the element: %v", has)
			}
			if got, want := r.c.rx.start > 0, tt.eye; got != want {
				t.Errorf("our cursors skip it: %v", got)
			}
			if got, want := r.c.tx.start > 0, tt.peerEye; got != want {
				t.Errorf("the peer's cursors skip it: %v", got)
			}
		})
	}
}

// TestAttach checks what CLC may say.
func TestAttach(t *testing.T) {
	r := newRig(t, Server, noTest)
	r.open()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		edit func(*ConnParams)
		want error
	}{
		{func(p *ConnParams) { p.Index = 0 }, ErrInvalidParams},
		{func(p *ConnParams) { p.Token = 0 }, ErrInvalidParams},
		{func(p *ConnParams) { p.SizeCode = 16 }, ErrInvalidParams},
		{func(p *ConnParams) { p.Link.QPN++ }, ErrNoLink},
		{func(p *ConnParams) { p.Link.MAC[0]++ }, ErrNoLink},
	} {
		p := peerRMB
		p.Index, p.Token = 9, 9
		tt.edit(&p)
		if err := c.Attach(r.s.now, p); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	p := peerRMB
	p.Index, p.Token = 9, 9
	if err := c.Attach(r.s.now, p); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(r.s.now, p); !errors.Is(err, ErrSequence) {
		t.Errorf("second Attach: %v", err)
	}
	if r.c.State() != StateActive {
		t.Error("a connection with another element suffers")
	}
	// The same token makes the older one obsolete, and so does an element
	// that shares bytes, whatever size it is said to have.
	for _, edit := range []func(*ConnParams){
		func(p *ConnParams) { p.Token = 9; p.Index = 20 },
		func(p *ConnParams) { p.Token = 10; p.Index = 10; p.SizeCode = 1 },
	} {
		old := c
		if c, err = r.g.NewConn(r.s.now, 0, 100); err != nil {
			t.Fatal(err)
		}
		q := p
		edit(&q)
		if err := c.Attach(r.s.now, q); err != nil {
			t.Fatal(err)
		}
		if old.State() != StateClosed || !errors.Is(old.ReadErr(), ErrReset) {
			t.Errorf("old connection: %s, %v", old.State(), old.ReadErr())
		}
	}
}

// TestZeroed: nothing of an earlier connection is left in an element.
func TestZeroed(t *testing.T) {
	r := newRig(t, Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
	r.open()
	for i := range r.c.mem {
		r.c.mem[i] = 0xEE
	}
	m := r.c.rmb
	r.do("C")
	r.do("close")
	r.do("ok")
	r.c.Release()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil || c.rmb != m {
		t.Fatal("element is not used again", err)
	}
	if i := bytes.IndexFunc(c.mem, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d is not zero", i)
	}
}

// TestFailoverReplay: what was not confirmed is written again, except for
// what the peer is known to have read.
func TestFailoverReplay(t *testing.T) {
	s, srv, cli := pair(t, 1, 2, 2, noTest)
	c := srv.c
	c.Produced(s.now, 1000)
	srv.h.drain()
	s.settle()
	c.Produced(s.now, 500) // seq 2, will be lost
	from := c.link
	srv.h.acts = c.g.TakeActions(srv.h.acts)
	c.g.LinkFailed(s.now, from, errors.New("cable"))
	acts := c.g.TakeActions(nil)
	var got []string
	for _, a := range acts {
		if a.Kind == ActWrite {
			got = append(got, fmt.Sprintf("write(%d+%d)", a.Off, a.Len))
		} else if a.Kind == ActSend {
			got = append(got, describe(a.Msg[:]))
		}
		if (a.Kind == ActSend || a.Kind == ActWrite) && a.Link == from {
			t.Error("action on the failed link")
		}
	}
	want := fmt.Sprintf("cdc+F write(1000+500) cdc delete-link(%d)", from.id)
	if s := strings.Join(got, " "); s != want {
		t.Errorf("actions %q, want %q", s, want)
	}
	f, _ := wire.ParseCDC(acts[0].Msg[:])
	if want := (wire.CDC{Seq: 1, Token: cli.c.token, Flags: wire.ProdFailoverVerify}); f != want {
		t.Errorf("validation %+v, want %+v", f, want)
	}
	// The peer had read 200 bytes of the 500: their place may be taken.
	c.sent, c.replay, c.pcons = 1500, 0, 1200
	c.inflight = 0
	c.move(c.link)
	for _, a := range c.g.TakeActions(nil) {
		if a.Kind == ActWrite && (a.Off != 1200 || a.Len != 300) {
			t.Errorf("write(%d+%d)", a.Off, a.Len)
		}
	}
}

// TestFailoverValidation: the receiver resets a connection that has missed
// a message, after a moment for one that is only late.
func TestFailoverValidation(t *testing.T) {
	verify := func(r *rig, seq uint16) {
		r.recv(r.link, wire.CDC{Seq: seq, Token: r.c.token, Flags: wire.ProdFailoverVerify, Prod: wire.Cursor{Count: 1 << 31}})
	}
	setup := func() *rig {
		r := newRig(t, Server, noTest)
		r.open()
		r.give(100, 0)
		r.give(100, 0)
		return r
	}
	r := setup()
	verify(r, 2)
	verify(r, 1)
	r.give(10, 0)
	if r.wait(time.Second); r.c.State() != StateActive || r.c.rprod != 210 {
		t.Errorf("nothing missed: %s, %d bytes", r.c.State(), r.c.rprod)
	}

	r = setup()
	verify(r, 3)
	late := r.cdc()
	late.Prod.Count += 50
	next := r.cdc()
	next.Prod.Count += 80
	r.recv(r.link, next)
	if r.c.rprod != 200 {
		t.Error("newer message processed before the check")
	}
	r.recv(r.link, late)
	if r.c.rprod != 280 {
		t.Errorf("%d bytes after the late message, want 280", r.c.rprod)
	}
	if r.wait(time.Second); r.c.State() != StateActive {
		t.Errorf("late message: %s", r.c.State())
	}

	r = setup()
	verify(r, 3)
	if r.wait(time.Second); r.c.State() != StatePeerAbortWait || !errors.Is(r.c.ReadErr(), ErrReset) {
		t.Errorf("missed message: %s, %v", r.c.State(), r.c.ReadErr())
	}

	// After failover the producer may repeat what has arrived.
	r = setup()
	verify(r, 2)
	m := r.cdc()
	m.Prod.Count -= 50
	r.recv(r.link, m)
	if r.c.State() != StateActive || r.c.rprod != 200 {
		t.Errorf("repeated data: %s, %d bytes", r.c.State(), r.c.rprod)
	}
}

// TestManyConns: 200 connections share the two links evenly.
func TestManyConns(t *testing.T) {
	s, _, _ := pair(t, 3, 2, 2, func(c *Config) { c.RMBEsPerRMB = 16 })
	s.maxDelay = 100 * time.Microsecond
	for range 199 {
		s.connect(0, 8192, func(a, b *app) {
			for _, p := range []*app{a, b} {
				p.total, p.chunk, p.manual = 20000, 5000, true
			}
		})
	}
	s.run(time.Second, func() bool {
		open := 0
		for _, h := range s.hosts {
			for _, p := range h.apps {
				if p.open {
					open++
				}
			}
		}
		return open == 400
	})
	for _, h := range s.hosts {
		if n := h.g.Conns(); n != 200 {
			t.Errorf("%s: %d connections", h.role, n)
		}
		if len(h.g.rmbs) != 13 {
			t.Errorf("%s: %d RMBs for 200 connections", h.role, len(h.g.rmbs))
		}
		for _, l := range h.g.Links() {
			if n := l.ConnCount(); n < 90 || n > 110 {
				t.Errorf("%s: %d connections on link %d", h.role, n, l.ID())
			}
		}
	}
	for _, h := range s.hosts {
		for _, p := range h.apps {
			if p.manual = p.id == 1; !p.manual {
				p.wake()
			}
		}
	}
	s.run(time.Minute, func() bool { return s.hosts[0].g.Conns() == 1 && s.hosts[1].g.Conns() == 1 })
	for _, h := range s.hosts {
		for _, p := range h.apps {
			if p.id > 1 && (p.closeErr != nil || p.read != 20000) {
				t.Errorf("conn %d: %d bytes, %v", p.id, p.read, p.closeErr)
			}
		}
	}
	s.finish()
}

// TestFair: a connection with much to say does not starve others, and a full
// send queue keeps the order.
func TestFair(t *testing.T) {
	r := newRig(t, Server, func(c *Config) { noTest(c); c.SendQueue, c.RMBEsPerRMB = 16, 16 })
	r.open()
	var conns []*Conn
	for i := range 10 {
		c, err := r.g.NewConn(r.s.now, 0, 4096)
		if err != nil {
			t.Fatal(err)
		}
		p := peerRMB
		p.Index, p.Token = uint8(10+i), uint32(100+i)
		if err := c.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	r.acts = nil
	for range 3 {
		for _, c := range conns {
			c.Produced(r.s.now, 10)
		}
	}
	posted := func() (list []uint32) {
		r.take()
		for _, a := range r.acts {
			if a.Kind == ActSend {
				m, _ := wire.ParseCDC(a.Msg[:])
				list = append(list, m.Token)
			}
		}
		r.acts = nil
		return list
	}
	if got, want := posted(), []uint32{100, 101, 102, 103, 104, 105}; !slices.Equal(got, want) {
		t.Errorf("first round %v, want %v", got, want)
	}
	r.do("ok")
	if got, want := posted(), []uint32{106, 107, 108, 109, 100, 101}; !slices.Equal(got, want) {
		t.Errorf("second round %v, want %v", got, want)
	}
}
