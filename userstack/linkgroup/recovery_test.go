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

// once makes the simulation lose the first message of a kind, after its
// delivery was confirmed to the sender: the peer's software is at fault, and
// only a timer notices. It returns where the message was.
func (s *sim) once(role smc.Role, word string) *Link {
	lost := new(Link)
	hit := false
	s.block = func(from *host, l *Link, msg []byte) bool {
		if hit || from.role != role || !strings.HasPrefix(describe(msg), word) {
			return false
		}
		hit = true
		*lost = Link{id: l.id}
		return true
	}
	return lost
}

// TestTimeoutRecovery has the timeouts of RFC 7609, appendix C.7.1, in groups
// of three links: what was lost costs the link that carried it, where the RFC
// says so, and is made up for over another link.
func TestTimeoutRecovery(t *testing.T) {
	newRMB := func(role smc.Role) func(*sim) {
		return func(s *sim) { s.connect(0, 100, nil) }
	}
	lose := func(role smc.Role) func(*sim) {
		return func(s *sim) {
			h := s.hosts[role]
			h.g.LinkFailed(s.now, h.g.links.list[0], errAny)
			h.drain()
		}
	}
	add := func(s *sim) { // one of the three is to come back
		g := s.group(smc.Server)
		g.adding.wanted = true
		g.Tick(s.now)
		s.hosts[smc.Server].drain()
	}
	idleRMB := func(s *sim) {
		s.connect(0, 100, nil)
		s.pass(3 * time.Second)
	}
	tests := []struct {
		who     smc.Role
		word    string
		links   int // at the beginning
		do      func(*sim)
		carrier bool // the link that carried it fails
	}{
		{smc.Server, "add-link", 2, add, true},
		{smc.Client, "re:add-link", 2, add, true},
		{smc.Server, "add-link-continuation", 2, add, true},
		{smc.Client, "re:add-link-continuation", 2, add, true},
		{smc.Server, "confirm-link", 2, add, false},
		{smc.Client, "re:confirm-link", 2, add, false},
		{smc.Client, "delete-link", 3, lose(smc.Client), true},
		{smc.Server, "delete-link", 3, lose(smc.Client), true},
		{smc.Client, "re:delete-link", 3, lose(smc.Client), true},
		{smc.Server, "delete-link", 3, lose(smc.Server), true},
		{smc.Client, "re:delete-link", 3, lose(smc.Server), true},
		{smc.Client, "confirm-rkey", 3, newRMB(smc.Client), true},
		{smc.Server, "re:confirm-rkey", 3, newRMB(smc.Client), true},
		{smc.Server, "confirm-rkey", 3, newRMB(smc.Server), true},
		{smc.Client, "re:confirm-rkey", 3, newRMB(smc.Server), true},
		{smc.Server, "delete-rkey", 3, idleRMB, true},
		{smc.Client, "delete-rkey", 3, idleRMB, true},
		{smc.Server, "re:delete-rkey", 3, idleRMB, true},
		{smc.Client, "re:delete-rkey", 3, idleRMB, true},
		{smc.Server, "test-link", 3, func(*sim) {}, true},
		{smc.Client, "test-link", 3, func(*sim) {}, true},
		{smc.Server, "re:test-link", 3, func(*sim) {}, true},
		{smc.Client, "re:test-link", 3, func(*sim) {}, true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s %s", tt.who, tt.word), func(t *testing.T) {
			edit := func(c *Config) {
				noTest(c)
				c.MaxLinks = 3
				c.RMBEsPerRMB = 1
				c.Timers.RMBIdle = time.Second
				if strings.Contains(tt.word, "test-link") && c.Role == tt.who == !strings.HasPrefix(tt.word, "re:") {
					c.Timers.TestLink = 5 * time.Second
				}
			}
			s := started(t, tt.links, 3, edit)
			s.runUntilIdle()
			if tt.links == 2 {
				s.group(smc.Server).links.devices = append(s.group(smc.Server).links.devices, device(smc.Server, 2))
			}
			if n := len(s.group(smc.Server).links.list); n != tt.links {
				t.Fatalf("%d links", n)
			}
			s.trace = nil
			lost := s.once(tt.who, tt.word)
			tt.do(s)
			s.pass(60 * time.Second)
			if lost.id == 0 {
				t.Fatalf("not seen: %v", s.trace)
			}
			for _, h := range s.hosts {
				if h.gone {
					t.Fatalf("%s: group ended: %v\n%v", h.role, h.deadE, s.trace)
				}
				if gone := h.g.links.byID(lost.id) == nil; gone != tt.carrier && !strings.Contains(tt.word, "confirm-link") {
					t.Errorf("%s: link %d is gone: %v\n%v", h.role, lost.id, gone, s.trace)
				}
				if n := len(h.g.links.list); n != 3 {
					t.Errorf("%s: %d links in the end\n%v", h.role, n, s.trace)
				}
				if h.g.llc.ex.kind != exNone || h.g.rkeys.own.kind != rkNone || h.g.rkeys.peer.via != nil {
					t.Errorf("%s: an exchange is left", h.role)
				}
			}
			s.agree()
			s.block = nil
			s.finish()
		})
	}
}

// agree checks that both sides know the same links and each other's RMBs on
// all of them.
func (s *sim) agree() {
	s.t.Helper()
	a, b := s.group(smc.Server), s.group(smc.Client)
	if len(a.links.list) != len(b.links.list) {
		s.t.Errorf("%d and %d links", len(a.links.list), len(b.links.list))
		return
	}
	for _, l := range a.links.list {
		m := b.links.byID(l.id)
		if m == nil || l.state != smc.LinkActive || m.state != smc.LinkActive || l.local != m.peer || m.local != l.peer {
			s.t.Errorf("link %d is not the same on both sides", l.id)
			return
		}
		for _, e := range [][2]*Link{{l, m}, {m, l}} {
			for _, r := range e[0].g.rmbs.list {
				if r.state != rmbKnown {
					continue
				}
				mine := r.at[e[0].slot]
				rt := e[1].g.peerRMBs.find(e[1], mine.RKey)
				if rt == nil || !rt.at[e[1].slot].noAddr && rt.at[e[1].slot].Addr != mine.Addr {
					s.t.Errorf("link %d: the %s does not know RKey %s", l.id, e[1].g.Role(), mine.RKey)
				}
			}
		}
	}
}

// TestTerminateResent: DELETE LINK for all links goes over one link after the
// other (RFC 7609, appendix C.7.1).
func TestTerminateResent(t *testing.T) {
	for _, tt := range []struct {
		role smc.Role
		lose bool // its links fail, or the message is lost unnoticed
		want string
	}{
		{smc.Server, true, "s1:delete-link-all s2:delete-link-all s3:delete-link-all"},
		{smc.Client, true, "c1:delete-link-all c2:delete-link-all c3:delete-link-all"},
		{smc.Server, false, "s1:delete-link-all"},
		{smc.Client, false, "c1:delete-link-all c2:delete-link-all c3:delete-link-all"},
	} {
		s := started(t, 3, 3, links(3))
		s.runUntilIdle()
		h := s.hosts[tt.role]
		for _, p := range h.apps {
			p.c.setLink(h.g.links.list[2]) // so that links are tried in their order
		}
		s.trace = nil
		n := 0
		s.block = func(from *host, l *Link, msg []byte) bool {
			if from != h || !strings.HasPrefix(describe(msg), "delete-link-all") {
				return false
			}
			if n++; tt.lose && n < 3 {
				s.after(time.Millisecond, func() { s.breakQP(l.Data.(*qp)) })
				l.Data.(*qp).broken = true // no completion
			}
			return !tt.lose || n < 3
		}
		h.g.Terminate(s.now, wire.DeleteLinkOperator)
		h.drain()
		s.pass(20 * time.Second)
		var got []string
		for _, m := range s.trace {
			if m[0] == tt.want[0] {
				got = append(got, m)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: flow %v, want %s", tt.role, got, tt.want)
		}
		if !h.gone || tt.lose && !s.hosts[1-tt.role].gone {
			t.Errorf("%s: groups are left: %v, %v", tt.role, h.gone, s.hosts[1-tt.role].gone)
		}
		s.block = nil
		s.finish()
	}
}

// TestTerminateCrossing: both sides end the group at the same time.
func TestTerminateCrossing(t *testing.T) {
	for first := range 2 {
		s := started(t, 2, 2, noTest)
		for i := range 2 {
			h := s.hosts[(first+i)%2]
			h.g.Terminate(s.now, wire.DeleteLinkOperator)
			h.drain()
		}
		s.pass(time.Second)
		for _, h := range s.hosts {
			if !h.gone {
				t.Errorf("%s is not gone", h.role)
			}
		}
		s.finish()
	}
}

// two runs the first contact with two links and attaches the connection.
func (r *rig) two(reply func(l2 *Link)) *Link {
	r.t.Helper()
	r.begin()
	pairs := [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}
	add := wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3}
	srv := r.g.cfg.Role == smc.Server
	r.recv(r.link, r.confirmLink(srv, r.link))
	add.Reply = srv
	r.recv(r.link, add)
	r.recv(r.link, wire.AddLinkCont{Reply: srv, LinkNum: 2, Left: 1, Pairs: pairs})
	l2 := r.g.links.byID(2)
	if reply != nil {
		r.done()
		r.acts = nil
		reply(l2)
		return l2
	}
	r.recv(l2, r.confirmLink(srv, l2))
	r.done()
	if err := errors.Join(r.first...); err != nil || len(r.first) != 1 {
		r.t.Fatalf("first contact: %d outcomes, %v", len(r.first), err)
	}
	if err := r.c.Attach(r.s.now, peerRMB); err != nil {
		r.t.Fatal(err)
	}
	r.acts = nil
	return l2
}

// TestInvalidMessages has the invalid messages of RFC 7609, appendix C.7.1, on
// a link that is not the only one: they cost that link alone.
func TestInvalidMessages(t *testing.T) {
	raw := func(op byte) bytesOf { return append(bytesOf{op, 44, 0, 0}, make([]byte, 40)...) }
	tests := []struct {
		name string
		do   func(r *rig, l2 *Link)
		want [2]string // by role
		why  wire.DeleteLinkReason
	}{
		{"unknown opcode", func(r *rig, _ *Link) { r.recv(r.link, raw(0x33)) },
			[2]string{"delete-link(1)", "delete-link(1)"}, wire.DeleteLinkProtocolViolation},
		{"unknown opcode, optional", func(r *rig, _ *Link) { r.recv(r.link, raw(0x83)) }, [2]string{}, 0},
		{"unknown opcode, b'01'", func(r *rig, _ *Link) { r.recv(r.link, raw(0x47)) },
			[2]string{"delete-link(1)", "delete-link(1)"}, wire.DeleteLinkProtocolViolation},
		{"wrong length", func(r *rig, l2 *Link) { r.recv(l2, append(bytesOf{7, 43, 0, 0}, make([]byte, 40)...)) },
			[2]string{"delete-link(2)", "delete-link(2)"}, wire.DeleteLinkProtocolViolation},
		{"TEST LINK reply with other data", func(r *rig, _ *Link) {
			r.link.testing = true
			r.recv(r.link, wire.TestLink{Reply: true, UserData: [16]byte{1}})
		}, [2]string{"delete-link(1)", "delete-link(1)"}, wire.DeleteLinkProtocolViolation},
		{"CONFIRM RKEY without link 2", func(r *rig, _ *Link) {
			r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: 5, Addr: 7}})
		}, [2]string{"re:confirm-rkey(0) delete-link(2)", "re:confirm-rkey(0) delete-link(2)"}, wire.DeleteLinkProtocolViolation},
		{"CONFIRM RKEY with link 2, to compare", func(r *rig, l2 *Link) {
			r.recv(r.link, wire.ConfirmRKey{Others: 1, This: smc.RToken{RKey: 5, Addr: 7}, Other: [2]wire.LinkRToken{{LinkNum: l2.ID(), RToken: smc.RToken{RKey: 6, Addr: 7}}}})
		}, [2]string{"re:confirm-rkey(1)", "re:confirm-rkey(1)"}, 0},
		{"CONFIRM RKEY, its CONTINUATION never comes", func(r *rig, _ *Link) {
			r.recv(r.link, wire.ConfirmRKey{Others: 3, This: smc.RToken{RKey: 5, Addr: 7}, Other: [2]wire.LinkRToken{{LinkNum: 7}, {LinkNum: 8}}})
			r.wait(3 * time.Second)
		}, [2]string{"re:confirm-rkey(3) delete-link(2)", "re:confirm-rkey(3) delete-link(2)"}, wire.DeleteLinkProtocolViolation},
		{"DELETE LINK of an unknown link", func(r *rig, _ *Link) { r.recv(r.link, wire.DeleteLink{LinkNum: 99}) },
			[2]string{"re:delete-link(99)-unknown", "re:delete-link(99)-unknown"}, wire.DeleteLinkUnknownLink},
		{"DELETE RKEY of an unknown RMB", func(r *rig, _ *Link) { r.recv(r.link, wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{77}}) },
			[2]string{"re:delete-rkey(1)-negative80", "re:delete-rkey(1)-negative80"}, 0},
		{"commands on a link that the client has given up", func(r *rig, l2 *Link) {
			if r.g.cfg.Role == smc.Client {
				r.g.LinkFailed(r.s.now, r.link, errAny)
				r.expect("cdc+F delete-link(1)")
			}
			r.recv(r.link, wire.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{77}})
		}, [2]string{"", "re:delete-rkey(1)-negative80"}, 0},
		{"replies that nobody waits for", func(r *rig, l2 *Link) {
			for _, m := range []wire.LLC{
				wire.ConfirmLink{Reply: true}, wire.ConfirmLink{}, wire.AddLink{Reply: true, LinkNum: 2}, wire.AddLinkCont{Reply: true},
				wire.AddLinkCont{}, wire.DeleteLink{Reply: true, LinkNum: 2}, wire.DeleteLink{Reply: true, All: true}, wire.ConfirmRKey{Reply: true},
				wire.ConfirmRKeyCont{Reply: true}, wire.DeleteRKey{Reply: true}, wire.TestLink{Reply: true},
			} {
				r.recv(l2, m)
			}
		}, [2]string{}, 0},
	}
	for _, tt := range tests {
		for _, role := range []smc.Role{smc.Client, smc.Server} {
			r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
			tt.do(r, r.two(nil))
			r.done()
			if got := strings.TrimPrefix(r.sent(), "cdc+F "); got != tt.want[role] {
				t.Errorf("%s, %s: sent %q, want %q", tt.name, role, got, tt.want[role])
			}
			if tt.why != 0 {
				if m, err := wire.ParseDeleteLink(r.last); err != nil || m.Reason != tt.why {
					t.Errorf("%s, %s: %+v, %v", tt.name, role, m, err)
				}
			}
			if len(r.dead) != 0 || r.g.Conns() != 1 || r.g.links.best(nil) == nil {
				t.Errorf("%s, %s: group ended: %v", tt.name, role, r.dead)
			}
		}
	}
}

// TestConfirmLinkWrongSecond: wrong values in CONFIRM LINK of an added link
// bring that link down (RFC 7609, appendix C.7.1).
func TestConfirmLinkWrongSecond(t *testing.T) {
	for _, role := range []smc.Role{smc.Client, smc.Server} {
		for name, edit := range map[string]func(*wire.ConfirmLink){
			"queue pair":  func(m *wire.ConfirmLink) { m.QPN++ },
			"GID":         func(m *wire.ConfirmLink) { m.GID[0]++ },
			"MAC":         func(m *wire.ConfirmLink) { m.MAC[0]++ },
			"link number": func(m *wire.ConfirmLink) { m.LinkNum = 1 },
		} {
			r := newRig(t, role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(role, 1)) })
			r.two(func(l2 *Link) {
				m := r.confirmLink(role == smc.Server, l2)
				edit(&m)
				r.recv(l2, m)
			})
			if got := r.sent(); got != "delete-link(2)" {
				t.Errorf("%s, %s: sent %q", role, name, got)
			}
			if m, err := wire.ParseDeleteLink(r.last); err != nil || m.Reason != wire.DeleteLinkProtocolViolation {
				t.Errorf("%s, %s: %+v, %v", role, name, m, err)
			}
			if len(r.first) != 0 {
				t.Errorf("%s, %s: data may flow before the peer knows: %v", role, name, r.first)
			}
		}
	}
}

// TestPointOfNoReturn: from when on a first contact that fails is no case for
// DECLINE (RFC 7609, appendices C.3 and C.7).
func TestPointOfNoReturn(t *testing.T) {
	add := wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3}
	rejected := add
	rejected.MTU = 0
	reply := add
	reply.Reply = true
	fail := func(r *rig) { r.g.LinkFailed(r.s.now, r.link, errAny) }
	tests := []struct {
		name string
		role smc.Role
		do   func(r *rig)
		late bool
	}{
		{"server: CONFIRM LINK fails", smc.Server, fail, false},
		{"server: wrong CONFIRM LINK", smc.Server, func(r *rig) { m := r.confirmLink(true, r.link); m.QPN++; r.recv(r.link, m) }, false},
		{"server: no CONFIRM LINK", smc.Server, func(r *rig) { r.unanswered() }, false},
		{"server: no CONFIRM LINK of a client that needs no ADD LINK", smc.Server, func(r *rig) { r.g.links.max = 1; r.unanswered() }, true},
		{"server: ADD LINK fails", smc.Server, func(r *rig) { r.recv(r.link, r.confirmLink(true, r.link)); fail(r) }, false},
		{"server: after ADD LINK was delivered", smc.Server, func(r *rig) {
			r.recv(r.link, r.confirmLink(true, r.link))
			r.done()
			fail(r)
		}, true},
		{"server: after the reply", smc.Server, func(r *rig) {
			r.recv(r.link, r.confirmLink(true, r.link))
			r.recv(r.link, reply)
			fail(r)
		}, true},
		{"server: no ADD LINK reply", smc.Server, func(r *rig) { r.recv(r.link, r.confirmLink(true, r.link)); r.unanswered() }, true},
		{"server: CONFIRM LINK is not acknowledged", smc.Server, func(r *rig) { r.wait(FirstSend + firstGrace) }, false},
		{"client: the reply to CONFIRM LINK is not acknowledged", smc.Client, func(r *rig) {
			r.recv(r.link, r.confirmLink(false, r.link))
			r.wait(FirstSend + firstGrace)
		}, false},
		{"client: no CONFIRM LINK", smc.Client, func(r *rig) { r.wait(time.Minute) }, false},
		{"client: reply to CONFIRM LINK fails", smc.Client, func(r *rig) { r.recv(r.link, r.confirmLink(false, r.link)); fail(r) }, false},
		{"client: no ADD LINK of a peer with eye catchers", smc.Client, func(r *rig) {
			m := r.confirmLink(false, r.link)
			m.NoEyecatcher = false
			r.recv(r.link, m)
			r.unanswered()
		}, true},
		{"client: ADD LINK reply fails", smc.Client, func(r *rig) {
			r.recv(r.link, r.confirmLink(false, r.link))
			r.recv(r.link, add)
			fail(r)
		}, false},
		{"client: after the reply was delivered", smc.Client, func(r *rig) {
			r.recv(r.link, r.confirmLink(false, r.link))
			r.recv(r.link, add)
			r.done()
			fail(r)
		}, true},
		{"client: no ADD LINK CONTINUATION", smc.Client, func(r *rig) {
			r.recv(r.link, r.confirmLink(false, r.link))
			r.recv(r.link, add)
			r.unanswered()
		}, true},
	}
	for _, tt := range tests {
		r := newRig(t, tt.role, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(tt.role, 1)) })
		r.begin()
		tt.do(r)
		r.take()
		if len(r.first) != 1 || r.first[0] == nil || errors.Is(r.first[0], ErrNoFallback) != tt.late {
			t.Errorf("%s: outcome %v", tt.name, r.first)
		}
	}
	// A client that refused the second link is through.
	r := newRig(t, smc.Client, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(false, r.link))
	r.recv(r.link, rejected)
	if len(r.first) != 1 || r.first[0] != nil || !r.g.first.committed {
		t.Errorf("client that refused a link: %v", r.first)
	}
}

// TestClientAsksAgainForLink: a client with a device to spare asks again after a link
// could not be added (RFC 7609, appendix C.7.1).
func TestClientAsksAgainForLink(t *testing.T) {
	r := newRig(t, smc.Client, func(c *Config) { noTest(c); c.Devices = append(c.Devices, device(smc.Client, 1)) })
	r.two(func(l2 *Link) {
		r.wait(6 * time.Second)
		r.expect("delete-link(2)")
		r.recv(r.link, wire.DeleteLink{LinkNum: 2, Reason: wire.DeleteLinkLostPath})
		r.done()
		r.expect("re:delete-link(2)")
	})
	if len(r.first) != 1 || r.first[0] != nil {
		t.Fatalf("outcome %v", r.first)
	}
	r.wait(10 * time.Second)
	r.expect("add-link")
	if m, err := wire.ParseAddLink(r.last); err != nil || m.Reply || m.GID != device(smc.Client, 1).GID {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestDeleteLinkOrderly: an operator takes a link away under traffic and
// nobody notices; the last one goes with the group.
func TestDeleteLinkOrderly(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		s := started(t, 2, 2, func(c *Config) { noTest(c); c.Timers.AddLinkRetry = 0 })
		s.trace = nil
		h := s.hosts[role]
		h.g.DeleteLink(s.now, h.g.links.list[0], wire.DeleteLinkOperator)
		h.drain()
		s.pass(time.Second)
		want := "s2:delete-link(1) c2:re:delete-link(1)"
		if role == smc.Client {
			want = "c2:delete-link(1) " + want
		}
		s.flow(want)
		s.agree()
		if s.types() != "SINGLE/SINGLE" || h.g.Conns() != 1 {
			t.Errorf("%s: %s, %d connections", role, s.types(), h.g.Conns())
		}
		h.g.DeleteLink(s.now, h.g.links.list[0], wire.DeleteLinkOperator)
		h.drain()
		s.pass(time.Second)
		for _, h := range s.hosts {
			if !h.gone {
				t.Errorf("%s: the group lives on", h.role)
			}
		}
		s.finish()
	}
}

// unanswered lets the peer acknowledge what was posted, and say nothing.
func (r *rig) unanswered() {
	r.done()
	r.wait(time.Minute)
}
