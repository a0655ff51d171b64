// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestLostBeforeConfirmed: the only active link fails while CONFIRM LINK of the next one
// is under way. The connections go on over the next link, since its other end may have
// confirmed it already.
func TestLostBeforeConfirmed(t *testing.T) {
	for _, when := range []string{"confirm-link", "re:confirm-link"} {
		for _, first := range []bool{true, false} {
			for _, role := range []smc.Role{smc.Server, smc.Client} {
				t.Run(fmt.Sprintf("%s/first=%t/%s", when, first, role), func(t *testing.T) {
					testLostBeforeConfirmed(t, when, first, role)
				})
			}
		}
	}
}

// testLostBeforeConfirmed has the link fail on the host with that role when a message
// arrives, and later on the other host.
func testLostBeforeConfirmed(t *testing.T, when string, first bool, role smc.Role) {
	const total = 200_000
	devices := 1
	if first {
		devices = 2
	}
	s := newSim(t, 1)
	for _, r := range []smc.Role{smc.Server, smc.Client} {
		s.addHost(r, devices, noTest)
	}
	lose := func(r smc.Role) {
		h := s.hosts[r]
		if l := h.g.links.byID(1); l != nil {
			h.g.LinkFailed(s.now, l, errAny)
			h.drain()
		}
	}
	lost := false
	s.tap = func(_ *host, l *Link, msg []byte) {
		if l.id == 1 || describe(msg) != when {
			return
		}
		lost = true
		s.at(s.now, func() { lose(role) }) // before the message is handled
		s.after(time.Millisecond, func() { lose(1 - role) })
	}
	srv, cli := s.connectFirst(0, 4096)
	srv.total, cli.total = total, total
	srv.wake()
	cli.wake()
	if !first {
		for _, r := range []smc.Role{smc.Server, smc.Client} {
			s.group(r).DeviceUp(s.now, device(r, 1))
			s.hosts[r].drain()
		}
	}
	s.run(time.Minute, func() bool { return srv.closed && cli.closed })
	if !lost {
		t.Fatal("the second link was not added")
	}
	for _, p := range []*app{srv, cli} {
		if p.read != total || p.closeErr != nil {
			t.Errorf("%s: read %d of %d bytes, closed with %v", p.h.role, p.read, total, p.closeErr)
		}
	}
	if got := s.types(); got != "SINGLE/SINGLE" {
		t.Errorf("types %s", got)
	}
	s.finish()
}

// TestNextLinkNotConfirmed: the only active link fails, and the next one is never
// confirmed. The group ends when the time for CONFIRM LINK is over.
func TestNextLinkNotConfirmed(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		r := newRig(t, role, func(c *Config) {
			noTest(c)
			c.Devices = append(c.Devices, device(role, 1))
		})
		r.two(func(*Link) { r.g.LinkFailed(r.s.now, r.link, errAny) })
		if r.take(); len(r.dead) > 0 {
			t.Errorf("%s: the group ended at once: %v", role, r.dead)
		}
		if err := r.g.Check(); err != nil {
			t.Error(err)
		}
		r.wait(time.Minute)
		if len(r.dead) != 1 || !errors.Is(r.dead[0], conn.ErrReset) || !errors.Is(r.dead[0], ErrTimeout) {
			t.Errorf("%s: the group ended with %v", role, r.dead)
		}
	}
}

// unconfirmed has the server add a link over via to a client's device, up to CONFIRM LINK.
func (r *rig) unconfirmed(via *Link, id uint8) *Link {
	r.t.Helper()
	r.recv(via, wire.AddLink{LinkNum: id, MAC: smc.MAC{5: id}, GID: smc.GID{15: id}, QPN: smc.QPN(id), MTU: 3})
	m := wire.AddLinkCont{LinkNum: id}
	for _, rt := range r.g.peerRMBs.list {
		if at := rt.at[via.slot]; at.ok {
			m.Pairs[m.Left] = wire.RKeyPair{RefRKey: at.RKey, New: smc.RToken{RKey: smc.RKey(0xE000 + int(id)), Addr: 9}}
			m.Left++
		}
	}
	r.recv(via, m)
	if ex := r.g.llc.ex; ex.step != waitConfirm || ex.link.id != id {
		r.t.Fatalf("link %d is not waiting for CONFIRM LINK", id)
	}
	return r.g.llc.ex.link
}

// TestDeletedBeforeConfirmed: a client waits for the next link also if a link of which it has
// just said that it is deleted is still there, and connections still use that link. The
// group goes on when CONFIRM LINK comes, even after the time that an answer may take.
func TestDeletedBeforeConfirmed(t *testing.T) {
	for _, tt := range []struct {
		name     string
		drained  bool // the answer to DELETE LINK went out before the last link was lost
		lostToo  bool // the queue pair of the deleted link fails, too
		confirms bool
	}{
		{"answered", true, false, true},
		{"answered, never confirmed", true, false, false},
		{"not answered", false, false, true},
		{"not answered, never confirmed", false, false, false},
		{"not answered, lost", false, true, true},
	} {
		r := manyLinks(t, 2, nil)
		l2 := r.g.links.byID(11)
		if !tt.drained {
			r.send(10) // not completed
		}
		r.recv(l2, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
		r.take()
		next := r.unconfirmed(l2, 20)
		r.acts = nil
		r.g.LinkFailed(r.s.now, l2, errAny)
		if tt.lostToo {
			r.g.LinkFailed(r.s.now, r.link, errAny)
		}
		r.wait(4900 * time.Millisecond)
		if len(r.dead) > 0 {
			t.Errorf("%s: the group did not wait: %v", tt.name, r.dead)
			continue
		}
		if err := r.g.Check(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !tt.confirms {
			r.wait(time.Second)
			if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) {
				t.Errorf("%s: dead %v", tt.name, r.dead)
			}
			continue
		}
		r.recv(next, r.confirmLink(false, next))
		r.done()
		if r.c.Link() != next || r.active() != 1 || len(r.dead) > 0 {
			t.Errorf("%s: the connection is on link %d, %d links, dead %v", tt.name, r.c.Link().ID(), r.active(), r.dead)
		}
		r.wait(2 * time.Second)
		if r.g.links.byID(1) != nil {
			t.Errorf("%s: link 1 is still there", tt.name)
		}
		if err := r.g.Check(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
