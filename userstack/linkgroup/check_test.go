// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestCheck: what Check finds wrong in a group.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want string // "": nothing is wrong
	}{
		{"nothing", func(*rig) {}, ""},
		{"alert token", func(r *rig) { r.g.conns[5] = r.c; delete(r.g.conns, r.c.Token()) }, "is known as 0x5"},
		{"element of two", func(r *rig) { c := r.newConn(); c.rmb, c.elem = r.c.rmb, r.c.elem }, "share RMBE 1"},
		{"element that is free", func(r *rig) { r.c.rmb.elems[0].used = false }, "uses RMBE 1, which counts as free"},
		{"elements of an RMB", func(r *rig) { r.c.rmb.inUse++ }, "RMB with 1 elements in use counts 2"},
		{"connections of a link", func(r *rig) { r.link.conns++ }, "link 1 has 1 connections and counts 2"},
		{"too many work requests", func(r *rig) { r.link.used = len(r.link.sq) + 1 }, "link 1 has 0 requests of 49 work requests in a queue of 48"},
		{"less than no work request", func(r *rig) { r.link.used, r.link.sqLen = -1, -1 }, "link 1 has -1 requests of -1 work requests"},
		{"more requests than work requests", func(r *rig) { r.link.sqLen = r.link.used + 1 }, "link 1 has 1 requests of 0 work requests"},
		{"a link that is gone", func(r *rig) { r.g.links.list = nil }, "1 connections are on link 1, which is gone"},
		{"connections of an RToken", func(r *rig) { r.c.peerRMB.conns = append(r.c.peerRMB.conns, r.c) }, "RToken with 1 connections counts 2"},
		{"alert token of the peer", func(r *rig) { r.g.peerTokens[5] = r.c }, "of the peer, is known as 0x5"},
		{"an RToken that is gone", func(r *rig) { r.g.peerRMBs.list = nil }, "1 RTokens of connections are not known any more"},
		{"dead", func(r *rig) { r.g.end.die(ErrIdle) }, ""},
		{"dead with a connection", func(r *rig) {
			r.g.end.die(ErrIdle)
			r.g.conns[r.c.Token()] = r.c
		}, "a dead group has 1 connections and 0 links"},
		{"dead with a link", func(r *rig) {
			r.g.end.die(ErrIdle)
			r.g.links.list = []*Link{r.link}
		}, "a dead group has 0 connections and 1 links"},
	} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		r.done()
		tt.do(r)
		switch err := r.g.Check(); {
		case tt.want == "":
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		case !errors.Is(err, ErrInvariant) || !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestCheckWrite: what CheckWrite finds wrong in a write to an RMB of four elements, of which
// the first one is used.
func TestCheckWrite(t *testing.T) {
	const elem = 16 << 10
	for _, tt := range []struct {
		name   string
		do     func(e *element, now time.Time) // the last element
		rkey   smc.RKey                        // other than that of the RMB
		off, n int
		ok     bool
		want   string // "": nothing is wrong
	}{
		{name: "to the connection", off: 0, n: 10, ok: true},
		{name: "all of its element", off: 0, n: elem, ok: true},
		{name: "another RKey", rkey: 0xBAD, n: 10},
		{name: "no RKey", rkey: 1, n: 10},
		{name: "before the RMB", off: -1, n: 10, ok: true, want: "goes beyond an RMB"},
		{name: "behind the RMB", off: 4*elem - 1, n: 2, ok: true, want: "a write of 2 bytes at 65535 goes beyond an RMB of 65536"},
		{name: "over the end of an element", off: elem - 1, n: 2, ok: true, want: "a write of 2 bytes at 16383 goes beyond RMBE 1"},
		{name: "element that is not used", off: 3 * elem, n: 1, ok: true, want: "a write of 1 bytes to RMBE 4, which is not in use"},
		{name: "no bytes there", off: 3 * elem, n: 0, ok: true},
		{name: "element that is withdrawn", off: 3 * elem, n: 1, ok: true, do: func(e *element, _ time.Time) { e.withdrawn = true }},
		{name: "element that is to be used again later", off: 3 * elem, n: 1, ok: true, do: func(e *element, now time.Time) { e.notBefore = now.Add(1) }},
		{name: "element that may be used again now", off: 3 * elem, n: 1, ok: true, want: "RMBE 4, which is not in use",
			do: func(e *element, now time.Time) { e.notBefore = now }},
	} {
		r := newRig(t, smc.Server, noTest)
		r.open()
		at := r.c.rmb.at[r.link.slot]
		switch tt.rkey {
		case 0:
			tt.rkey = at.RKey
		case 1:
			tt.rkey = 0 // the RMB has none on the links that do not exist
		}
		if tt.do != nil {
			tt.do(&r.c.rmb.elems[3], r.s.now)
		}
		ok, err := r.g.CheckWrite(r.s.now, tt.rkey, at.Addr+uint64(tt.off), make([]byte, tt.n), make([]byte, tt.n))
		if ok != tt.ok || (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, ErrInvariant) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, %v; want %v, %q", tt.name, ok, err, tt.ok, tt.want)
		}
	}
}

// TestOrderOfConnections: what happens to all connections of a group happens in the order of
// their alert tokens.
func TestOrderOfConnections(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	for i := range 20 {
		c := r.newConn()
		p := peerRMB
		p.Index, p.Token = uint8(i+3), uint32(i+9)
		if err := c.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
	}
	r.take()
	r.acts = nil
	r.g.Terminate(r.s.now, wire.DeleteLinkProgram)
	r.take()
	var last uint32
	n := 0
	for _, a := range r.acts {
		if a.Kind != ActConnClosed {
			continue
		}
		if a.Conn.Token() < last {
			t.Errorf("%#x comes after %#x", a.Conn.Token(), last)
		}
		last = a.Conn.Token()
		n++
	}
	if n != 21 {
		t.Errorf("%d connections have ended, want 21", n)
	}
}

// TestEndSaysResetOnce: the error of a connection whose group has ended names the reset once.
func TestEndSaysResetOnce(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	r.g.LinkFailed(r.s.now, r.link, errAny)
	r.take()
	if len(r.close) != 1 || !errors.Is(r.close[0], errAny) || strings.Count(r.close[0].Error(), conn.ErrReset.Error()) != 1 {
		t.Errorf("closed with %q", r.close)
	}
}

// TestDefaults: what New makes of a Config.
func TestDefaults(t *testing.T) {
	type values struct{ maxConns, autocork, sendQueue, sendChunk, rmbes int }
	for _, tt := range []struct {
		name string
		cfg  Config
		want values
	}{
		{"nothing", Config{}, values{255, conn.DefaultAutocork, defaultSendQueue, conn.DefaultChunk, 16}},
		{"the least", Config{MaxConns: 1, Autocork: -1, SendQueue: 1, SendChunk: 1, RMBEsPerRMB: 1}, values{1, -1, minSendQueue, 1, 1}},
		{"much", Config{MaxConns: 1000, Autocork: 1 << 30, SendQueue: 1000, SendChunk: 1 << 20, RMBEsPerRMB: 1000}, values{1000, 1 << 30, 1000, 1 << 20, 255}},
		{"less than nothing", Config{MaxConns: -1, SendQueue: -1, SendChunk: -1, RMBEsPerRMB: -1}, values{255, conn.DefaultAutocork, minSendQueue, conn.DefaultChunk, 16}},
	} {
		g := New(tt.cfg, nil, epoch)
		got := values{g.MaxConns(), g.connCfg.Autocork, g.cfg.SendQueue, g.cfg.SendChunk, g.rmbs.perRMB}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		if got := New(Config{Role: role}, nil, epoch).cfg.Timers; got != DefaultTimers(role) {
			t.Errorf("%s: timers %+v", role, got)
		}
	}
	if got, want := New(Config{Timers: Timers{Idle: 1}}, nil, epoch).cfg.Timers, (Timers{Idle: 1}); got != want {
		t.Errorf("timers %+v, want %+v", got, want)
	}
}

// TestPortByGID: in version 2 the GID alone tells ports apart, because a PROPOSAL of Linux may
// have no MAC address; in version 1, both do.
func TestPortByGID(t *testing.T) {
	one := newRig(t, smc.Server, noTest)
	one.open()
	two := newRig(t, smc.Server, func(c *Config) { noTest(c); linux(c) })
	two.openV2()
	for i, r := range []*rig{one, two} {
		for _, mac := range []smc.MAC{peerEnd.MAC, {}} {
			want := i == 1 || mac == peerEnd.MAC
			if got := r.g.HasPort(peerHost, peerEnd.GID, mac); got != want {
				t.Errorf("version %d: HasPort with MAC %s: %v", r.g.Version(), mac, got)
			}
			if got := r.g.HasLink(peerEnd.GID, mac, peerEnd.QPN); got != want {
				t.Errorf("version %d: HasLink with MAC %s: %v", r.g.Version(), mac, got)
			}
		}
	}
}
