// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// removedLinkRig is a group of two links and a connection whose ACCEPT and CONFIRM are
// under way.
type removedLinkRig struct {
	*rig
	l2   *Link
	next *Conn
	said ConnParams // what CONFIRM or ACCEPT, which names the first link, says
}

func newRemovedLinkRig(t *testing.T, role smc.Role) *removedLinkRig {
	r := &removedLinkRig{rig: newRig(t, role, func(c *Config) {
		noTest(c)
		c.Timers.AddLinkRetry = 0
		c.RMBEsPerRMB = 16
		c.Devices = append(c.Devices, device(role, 1))
	})}
	r.l2 = r.two(nil)
	r.next = r.conn()
	r.said = peerRMB
	r.said.Index, r.said.Token = 9, 9
	return r
}

func (r *removedLinkRig) conn() *Conn {
	r.t.Helper()
	c, err := r.g.NewConn(r.s.now, 0, 100)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// lose has a link of a server fail and be deleted.
func (r *removedLinkRig) lose(l *Link) {
	r.t.Helper()
	r.g.LinkFailed(r.s.now, l, errAny)
	r.done()
	r.recv(r.l2, wire.DeleteLink{Reply: true, LinkNum: l.id})
	r.done()
	if r.g.links.byID(l.id) != nil {
		r.t.Fatalf("link %d is still there", l.id)
	}
}

// add has a server add a link with that queue pair of the peer, over which its
// RMBs, named as on the second link, have these RKeys.
func (r *removedLinkRig) add(qpn smc.QPN, pairs ...wire.RKeyPair) *Link {
	r.t.Helper()
	id := r.g.links.lastID + 1
	r.g.adding.wanted = true
	r.g.Tick(r.s.now)
	r.recv(r.l2, wire.AddLink{Reply: true, MAC: peerEnd.MAC, GID: peerEnd.GID, QPN: smc.QPN(qpn), LinkNum: id, MTU: 3})
	m := wire.AddLinkCont{Reply: true, LinkNum: id, Left: uint8(len(pairs))}
	copy(m.Pairs[:], pairs)
	r.recv(r.l2, m)
	l := r.g.links.byID(id)
	r.recv(l, r.confirmLink(true, l))
	r.done()
	if l.state != smc.LinkActive {
		r.t.Fatalf("link %d is %s", id, l.state)
	}
	return l
}

func (r *removedLinkRig) pair(ref, rkey smc.RKey) wire.RKeyPair {
	return wire.RKeyPair{RefRKey: ref, New: smc.RToken{RKey: rkey, Addr: 5}}
}

// TestConfirmOfRemovedLink: CONFIRM names a link that was removed while it was under
// way. The RMB is known on all links, and the connection goes on over another.
func TestConfirmOfRemovedLink(t *testing.T) {
	r := newRemovedLinkRig(t, smc.Server)
	r.lose(r.link)
	if !r.g.HasLink(peerEnd.GID, peerEnd.MAC, peerEnd.QPN) || r.g.HasPort(peerHost, peerEnd.GID, peerEnd.MAC) {
		t.Error("the link counts for a proposal, or not for CONFIRM")
	}
	// The client has written already, and has moved.
	copy(r.next.element(), "early")
	r.recv(r.l2, wire.CDC{Seq: 1, Token: r.next.Token(), Prod: wire.Cursor{Count: 5}})
	r.recv(r.l2, wire.CDC{Seq: 0, Token: r.next.Token(), Flags: wire.ProdFailoverVerify})
	if err := r.next.Attach(r.s.now, r.said); err != nil {
		t.Fatal(err)
	}
	if a, _ := r.next.RecvData(); string(a) != "early" {
		t.Errorf("read %q", a)
	}
	r.take()
	r.acts = nil
	produce(r.next, r.s.now, 10)
	r.take()
	if a := r.acts[0]; a.Kind != ActWrite || a.Link != r.l2 || a.RKey != 0xBBBB || a.RemoteAddr != 9+8*16<<10 {
		t.Errorf("writes with %+v", a)
	}
	if err := r.g.Check(); err != nil {
		t.Error(err)
	}
}

// TestConfirmOfRemovedLinkNotMoved: a client that never moves the connection cannot
// use it.
func TestConfirmOfRemovedLinkNotMoved(t *testing.T) {
	for _, moves := range []bool{false, true} {
		r := newRemovedLinkRig(t, smc.Server)
		r.lose(r.link)
		if err := r.next.Attach(r.s.now, r.said); err != nil {
			t.Fatal(err)
		}
		r.wait(9 * time.Second)
		if moves {
			r.recv(r.l2, wire.CDC{Seq: 0, Token: r.next.Token(), Flags: wire.ProdFailoverVerify})
		}
		if r.wait(time.Minute); errors.Is(r.next.ReadErr(), conn.ErrReset) == moves {
			t.Errorf("the client moves it: %v, and the connection has %v", moves, r.next.ReadErr())
		}
	}
}

// TestConfirmOfUnknownLink: what the group does not remember, or not any more, is
// refused.
func TestConfirmOfUnknownLink(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *removedLinkRig)
		want error
	}{
		{"just in time", func(r *removedLinkRig) { r.wait(ConfirmWait - time.Second) }, nil},
		{"too late", func(r *removedLinkRig) { r.wait(ConfirmWait) }, ErrNoLink},
		{"never heard of", func(r *removedLinkRig) { r.said.Link.QPN++ }, ErrNoLink},
		{"no queue pair", func(r *removedLinkRig) { r.said.Link.QPN = 0 }, ErrNoLink},
		{"another port", func(r *removedLinkRig) { r.said.Link.MAC[0]++ }, ErrNoLink},
		{"unknown RMB", func(r *removedLinkRig) { r.said.RKey++ }, ErrNoLink},
		{"RKey of another link", func(r *removedLinkRig) { r.said.RKey = 0xBBBB }, ErrNoLink},
		{"RMB deleted", func(r *removedLinkRig) {
			r.recv(r.l2, wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{0xBBBB}})
		}, ErrNoLink},
		{"RMB not told on a new link", func(r *removedLinkRig) {
			r.c.Abort(r.s.now)
			r.c.TCPClosed(r.s.now, true)
			r.wait(time.Minute / 4)
			r.add(0x902)
		}, ErrNoLink},
		{"RMB on no active link", func(r *removedLinkRig) { r.c.peerRMB.at[r.l2.slot] = slotToken{} }, ErrUnknownRKey},
		{"links came and went since", func(r *removedLinkRig) {
			for i := range smc.QPN(maxRemoved) {
				r.lose(r.add(0x910+i, r.pair(0xBBBB, smc.RKey(0xD0+i))))
			}
			if len(r.g.peerRMBs.removed) != maxRemoved {
				r.t.Errorf("%d links are remembered", len(r.g.peerRMBs.removed))
			}
		}, ErrNoLink},
		{"not so many", func(r *removedLinkRig) {
			for i := range smc.QPN(maxRemoved - 1) {
				r.lose(r.add(0x910+i, r.pair(0xBBBB, smc.RKey(0xD0+i))))
			}
		}, nil},
		{"group ends", func(r *removedLinkRig) {
			r.g.LinkFailed(r.s.now, r.l2, errAny)
			if len(r.g.peerRMBs.removed) > 0 {
				r.t.Error("a dead group remembers")
			}
		}, ErrGroupDead},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRemovedLinkRig(t, smc.Server)
			r.lose(r.link)
			tt.do(r)
			if err := r.next.Attach(r.s.now, r.said); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if err := r.g.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestConfirmAfterSlotReuse: a new link takes the place of the removed one in the
// tables, and the peer's RKeys on the two collide.
func TestConfirmAfterSlotReuse(t *testing.T) {
	r := newRemovedLinkRig(t, smc.Server)
	// Another RMB of the peer, known on both links.
	r.recv(r.l2, wire.ConfirmRKey{Others: 1, This: smc.RToken{RKey: 0xB2, Addr: 0x200}, Other: [2]wire.LinkRToken{{LinkNum: 1, RToken: smc.RToken{RKey: 0xA2, Addr: 0x100}}}})
	slot := r.link.slot
	r.lose(r.link)
	l3 := r.add(0x902, r.pair(0xBBBB, 0xA2), r.pair(0xB2, peerRMB.RKey))
	if l3.slot != slot {
		t.Fatalf("the new link has slot %d, want %d", l3.slot, slot)
	}
	first, second := r.c.peerRMB, r.g.peerRMBs.find(r.l2, 0xB2)
	token := uint32(20)
	for _, tt := range []struct {
		qpn  smc.QPN
		rkey smc.RKey
		want *rtoken
	}{
		{peerEnd.QPN, peerRMB.RKey, first}, {peerEnd.QPN, 0xA2, second},
		{0x902, 0xA2, first}, {0x902, peerRMB.RKey, second},
	} {
		c, p := r.conn(), peerRMB
		token++
		p.Index, p.Token, p.Link.QPN, p.RKey = uint8(token), token, tt.qpn, tt.rkey
		if l := r.g.links.to(p.Link); l != nil {
			p.VAddr = tt.want.at[l.slot].Addr
		}
		if err := c.Attach(r.s.now, p); err != nil {
			t.Fatal(err)
		}
		if c.peerRMB != tt.want {
			t.Errorf("RKey %s on queue pair %s is another RMB", tt.rkey, tt.qpn)
		}
	}
	// A queue pair that the peer uses again is the new link's.
	r.lose(l3)
	r.add(peerEnd.QPN, r.pair(0xBBBB, 0xE1), r.pair(0xB2, 0xE2))
	if err := r.next.Attach(r.s.now, r.said); !errors.Is(err, ErrUnknownRKey) {
		t.Errorf("an RKey of the queue pair that was there before: %v", err)
	}
	r.said.RKey, r.said.VAddr = 0xE2, 5
	if err := r.next.Attach(r.s.now, r.said); err != nil || r.next.peerRMB != second {
		t.Errorf("%v", err)
	}
}

// TestAttachWhereKnown: the connection takes a link over which the peer's RMB is
// known.
func TestAttachWhereKnown(t *testing.T) {
	r := newRemovedLinkRig(t, smc.Server)
	r.lose(r.link)
	l3 := r.add(0x902, r.pair(0xBBBB, 0xC1))
	for _, l := range []*Link{r.l2, l3} {
		other := r.g.links.best(l)
		at := &r.c.peerRMB.at[other.slot]
		was := *at
		*at = slotToken{}
		c := r.conn()
		c.setLink(other)
		r.said.Token, r.said.Index = uint32(l.id), l.id+8
		if err := c.Attach(r.s.now, r.said); err != nil || c.link != l {
			t.Errorf("on link %d: %v", c.link.id, err)
		}
		*at = was
		if err := r.g.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestAcceptOfLostLink: a client declines an ACCEPT that names a link which is
// gone; but it knows the link group.
func TestAcceptOfLostLink(t *testing.T) {
	r := newRemovedLinkRig(t, smc.Client)
	r.recv(r.l2, wire.DeleteLink{LinkNum: 1, Reason: wire.DeleteLinkLostPath})
	r.done()
	if len(r.g.links.list) != 1 {
		t.Fatal("the link is still there")
	}
	if !r.g.HasLink(peerEnd.GID, peerEnd.MAC, peerEnd.QPN) {
		t.Error("the link is forgotten")
	}
	if err := r.next.Attach(r.s.now, r.said); !errors.Is(err, ErrNoLink) {
		t.Error(err)
	}
}

// TestEarlyValidation: a client that has moved the connection before CONFIRM was
// processed sends a failover validation, which counts later.
func TestEarlyValidation(t *testing.T) {
	msg := func(seq int) wire.CDC { return wire.CDC{Seq: uint16(seq), Prod: wire.Cursor{Count: uint32(10 * seq)}} }
	valid := func(seq int) wire.CDC { return wire.CDC{Seq: uint16(seq), Flags: wire.ProdFailoverVerify} }
	for _, tt := range []struct {
		name          string
		before, after []wire.CDC
		prod          uint64
		lost          bool
	}{
		{"nothing was confirmed", []wire.CDC{msg(1), valid(0)}, []wire.CDC{msg(2)}, 20, false},
		{"all is there", []wire.CDC{msg(1), msg(2), valid(2)}, nil, 20, false},
		{"news before CONFIRM", []wire.CDC{msg(1), valid(1), msg(2)}, nil, 20, false},
		{"news after CONFIRM", []wire.CDC{msg(1), valid(1)}, []wire.CDC{msg(2)}, 20, false},
		{"late, before CONFIRM", []wire.CDC{msg(1), valid(2), msg(2), msg(3)}, nil, 30, false},
		{"late, after CONFIRM", []wire.CDC{msg(1), valid(2), msg(3)}, []wire.CDC{msg(2)}, 30, false},
		{"twice", []wire.CDC{msg(1), valid(1), msg(2), valid(2)}, []wire.CDC{msg(3)}, 30, false},
		{"lost", []wire.CDC{msg(1), valid(2)}, nil, 10, true},
		{"lost, with news", []wire.CDC{msg(1), valid(2), msg(3)}, []wire.CDC{msg(4)}, 10, true},
		{"all lost", []wire.CDC{valid(1)}, nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRemovedLinkRig(t, smc.Server)
			r.lose(r.link)
			c := r.next
			play := func(list []wire.CDC) {
				for _, m := range list {
					m.Token = c.Token()
					r.recv(r.l2, m)
				}
			}
			play(tt.before)
			r.wait(time.Second) // CONFIRM takes its time
			if err := c.Attach(r.s.now, r.said); err != nil {
				t.Fatal(err)
			}
			play(tt.after)
			r.wait(200 * time.Millisecond)
			if lost := errors.Is(c.ReadErr(), conn.ErrReset); lost != tt.lost {
				t.Errorf("reset: %v, want %v", lost, tt.lost)
			}
			if !tt.lost && c.Positions().Received != tt.prod {
				t.Errorf("%d bytes arrived, want %d", c.Positions().Received, tt.prod)
			}
		})
	}
}

// TestMovedBeforeConfirm: after the move the client may announce less than before.
func TestMovedBeforeConfirm(t *testing.T) {
	r := newRemovedLinkRig(t, smc.Server)
	r.lose(r.link)
	c := r.next
	r.recv(r.l2, wire.CDC{Seq: 1, Token: c.Token(), Prod: wire.Cursor{Count: 100}})
	r.recv(r.l2, wire.CDC{Token: c.Token(), Flags: wire.ProdFailoverVerify})
	if err := c.Attach(r.s.now, r.said); err != nil {
		t.Fatal(err)
	}
	r.recv(r.l2, wire.CDC{Seq: 2, Token: c.Token(), Prod: wire.Cursor{Count: 50}})
	r.recv(r.l2, wire.CDC{Seq: 3, Token: c.Token(), Prod: wire.Cursor{Count: 120}})
	if c.State() != smc.StateActive || c.Positions().Received != 120 {
		t.Errorf("%s, %d bytes", c.State(), c.Positions().Received)
	}
}
