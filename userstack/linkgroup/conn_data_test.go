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

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

func noTest(c *Config) { c.Timers.TestLink = 0 }

// TestGather: while a message is outstanding more data waits for the next, up
// to half of the send buffer; then a second goes out, and no third.
func TestGather(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
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

// TestStash: messages that overtake the handshake are kept.
func TestStash(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	copy(c.element(), "hello")
	r.recv(r.link, wire.CDC{Seq: 1, Token: c.Token(), Prod: wire.Cursor{Count: 3}})
	r.recv(r.link, wire.CDC{Seq: 3, Token: c.Token(), Prod: wire.Cursor{Count: 5}, State: wire.ConnSendingDone})
	r.recv(r.link, wire.CDC{Seq: 2, Token: c.Token(), Prod: wire.Cursor{Count: 4}})
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
	if c.State() != smc.StateAppCloseWait1 {
		t.Errorf("state %s", c.State())
	}
}

// TestWakeUps: a wake-up for each reason to look, and none twice.
func TestWakeUps(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
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
// kind of peer. The eye catcher is in the element before CLC names it. After that, only
// the peer writes to the element (RFC 7609, section 4.4.1).
func TestEyeCatcher(t *testing.T) {
	tests := []struct {
		name     string
		role     smc.Role
		own      bool // configured
		peerNone bool // what the peer's message says
		saysNone bool // what ours says
		eye      bool
		peerEye  bool
	}{
		{"server without, Linux client", smc.Server, false, true, true, false, false},
		{"server without, RFC client", smc.Server, false, false, true, true, true},
		{"server with, client that mirrors", smc.Server, true, false, false, true, true},
		{"server with, client without", smc.Server, true, true, false, true, false},
		{"client, Linux server", smc.Client, false, true, true, false, false},
		{"client, RFC server", smc.Client, false, false, false, true, true},
		{"client with, Linux server", smc.Client, true, true, true, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.role, func(c *Config) { noTest(c); c.EyeCatcher = tt.own })
			r.begin()
			before := bytes.Clone(r.c.element())
			if !bytes.HasPrefix(before, eyeCatcher) {
				t.Error("no eye catcher in the element that CLC names")
			}
			m := r.confirmLink(tt.role == smc.Server, r.link)
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
			if !bytes.Equal(r.c.element(), before) {
				t.Error("the element has changed")
			}
			if got, want := r.c.ours().start > 0, tt.eye; got != want {
				t.Errorf("our cursors skip it: %v", got)
			}
			if got, want := r.c.theirs().start > 0, tt.peerEye; got != want {
				t.Errorf("the peer's cursors skip it: %v", got)
			}
		})
	}
}

// TestAttach checks what CLC may say.
func TestAttach(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
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
	if r.c.State() != smc.StateActive {
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
		if old.State() != smc.StateClosed || !errors.Is(old.ReadErr(), conn.ErrReset) {
			t.Errorf("old connection: %s, %v", old.State(), old.ReadErr())
		}
	}
}

// TestZeroed: nothing of an earlier connection is left in an element.
func TestZeroed(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
	r.open()
	for i := range r.c.element() {
		r.c.element()[i] = 0xEE
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
	if i := bytes.IndexFunc(c.element(), func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d is not zero", i)
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
		if len(h.g.rmbs.list) != 13 {
			t.Errorf("%s: %d RMBs for 200 connections", h.role, len(h.g.rmbs.list))
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
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.SendQueue, c.RMBEsPerRMB = 16, 16 })
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
			produce(c, r.s.now, 10)
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

// TestWritesBeforeMessages: when several connections send at once, all writes
// come before the messages that announce them, and the messages stay in order. A
// failover validation keeps its place.
func TestWritesBeforeMessages(t *testing.T) {
	s, srv, _ := pair(t, 1, 1, 1, nil)
	var second *app
	s.connect(0, 16<<10, func(srv, cli *app) {
		srv.manual, cli.manual = true, true
		second = srv
	})
	s.runUntilIdle()
	if second == nil || !second.open {
		t.Fatal("no second connection")
	}
	g := srv.h.g
	g.TakeActions(nil)
	for n, c := range []*Conn{srv.c, second.c} {
		produce(c, s.now, 10+n)
	}
	name := map[*Conn]string{srv.c: "1", second.c: "2"}
	told := func() string {
		var b strings.Builder
		for _, a := range g.TakeActions(nil) {
			switch {
			case a.Kind == ActWrite:
				fmt.Fprintf(&b, "write%s(%d) ", name[a.Conn], a.Len)
			case a.Kind == ActSend:
				m, err := wire.ParseCDC(a.Msg[:])
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "cdc%s(%d,%v) ", name[a.Conn], m.Prod.Count, m.Flags&wire.ProdFailoverVerify != 0)
			}
		}
		return b.String()
	}
	if got, want := told(), "write1(10) write2(11) cdc1(10,false) cdc2(11,false) "; got != want {
		t.Errorf("actions %q, want %q", got, want)
	}
	g.Sent(s.now, srv.c.link, srv.c.link.lastToken)
	produce(second.c, s.now, 12)
	srv.c.Protocol().Moved() // which is followed by a validation
	produce(srv.c, s.now, 13)
	if got, want := told(), "write2(12) cdc2(23,false) cdc1(0,true) "; got != want {
		t.Errorf("with a validation: actions %q, want %q", got, want)
	}
}

// TestUnknownToken: a message for a connection that does not exist has no effect.
func TestUnknownToken(t *testing.T) {
	r := newRig(t, smc.Client, noTest)
	r.open()
	m := r.cdc()
	m.Token++
	m.Prod.Count = 1 << 30
	r.recv(r.link, m)
	if r.c.State() != smc.StateActive || !r.g.CanAccept() {
		t.Errorf("state %s, the group takes connections: %v", r.c.State(), r.g.CanAccept())
	}
}
