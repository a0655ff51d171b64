// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// TestFailoverReplay: what was not confirmed is written again, except for
// what the peer is known to have read.
func TestFailoverReplay(t *testing.T) {
	s, srv, cli := pair(t, 1, 2, 2, noTest)
	c := srv.c
	produce(c, s.now, 1000)
	srv.h.drain()
	s.settle()
	produce(c, s.now, 500) // seq 2, will be lost
	from := c.link
	srv.h.acts = c.g.TakeActions(srv.h.acts)
	c.g.LinkFailed(s.now, from, errors.New("cable"))
	acts := c.g.TakeActions(nil)
	var got []string
	for _, a := range acts {
		if a.Kind == ActWrite {
			got = append(got, fmt.Sprintf("write(%d+%d)", int(a.Chunk.from)+a.Off, a.Len))
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
		if a.Kind == ActWrite && (int(a.Chunk.from)+a.Off != 1200 || a.Len != 300) {
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
		r := newRig(t, smc.Server, noTest)
		r.open()
		r.give(100, 0)
		r.give(100, 0)
		return r
	}
	r := setup()
	verify(r, 2)
	verify(r, 1)
	r.give(10, 0)
	if r.wait(time.Second); r.c.State() != smc.StateActive || r.c.rprod != 210 {
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
	if r.wait(time.Second); r.c.State() != smc.StateActive {
		t.Errorf("late message: %s", r.c.State())
	}

	r = setup()
	verify(r, 3)
	if r.wait(time.Second); r.c.State() != smc.StatePeerAbortWait || !errors.Is(r.c.ReadErr(), ErrReset) {
		t.Errorf("missed message: %s, %v", r.c.State(), r.c.ReadErr())
	}

	// After failover the producer may repeat what has arrived.
	r = setup()
	verify(r, 2)
	m := r.cdc()
	m.Prod.Count -= 50
	r.recv(r.link, m)
	if r.c.State() != smc.StateActive || r.c.rprod != 200 {
		t.Errorf("repeated data: %s, %d bytes", r.c.State(), r.c.rprod)
	}
}
