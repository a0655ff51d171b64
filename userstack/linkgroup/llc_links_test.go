// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestLinkDeletion has the flows of RFC 7609, sections 3.5.5.1.3 and
// 3.5.5.1.4.
func TestLinkDeletion(t *testing.T) {
	tests := []struct {
		name  string
		role  smc.Role
		event func(s *sim, g *Group)
		flow  string
	}{
		{"server loses a link", smc.Server, func(s *sim, g *Group) { g.LinkFailed(s.now, g.links.list[0], errAny) },
			"s2:delete-link(1) c2:re:delete-link(1)"},
		{"server loses the other link", smc.Server, func(s *sim, g *Group) { g.LinkFailed(s.now, g.links.list[1], errAny) },
			"s1:delete-link(2) c1:re:delete-link(2)"},
		{"client loses a link", smc.Client, func(s *sim, g *Group) { g.LinkFailed(s.now, g.links.list[0], errAny) },
			"c2:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
		{"device of the server", smc.Server, func(s *sim, g *Group) { g.DeviceDown(s.now, 1) },
			"s1:delete-link(2) c1:re:delete-link(2)"},
		{"device of the client", smc.Client, func(s *sim, g *Group) { g.DeviceDown(s.now, 0) },
			"c2:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
		{"client asks in order", smc.Client, func(s *sim, g *Group) {
			g.links.list[0].sendLLC(wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator}, nothing, nil)
		}, "c1:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
		{"client asks for an unknown link", smc.Client, func(s *sim, g *Group) {
			g.links.list[0].sendLLC(wire.DeleteLink{LinkNum: 9}, nothing, nil)
		}, "c1:delete-link(9) s1:re:delete-link(9)-unknown"},
		{"server deletes an unknown link", smc.Server, func(s *sim, g *Group) {
			g.links.list[0].sendLLC(wire.DeleteLink{LinkNum: 9}, nothing, nil)
		}, "s1:delete-link(9) c1:re:delete-link(9)-unknown"},
		{"both lose the same link", smc.Client, func(s *sim, g *Group) {
			g.LinkFailed(s.now, g.links.list[0], errAny)
			s.hosts[smc.Client].drain()
			srv := s.group(smc.Server)
			srv.LinkFailed(s.now, srv.links.list[0], errAny)
			s.hosts[smc.Server].drain()
		}, "c2:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := started(t, 2, 2, noTest)
			s.trace = nil
			g := s.group(tt.role)
			tt.event(s, g)
			s.hosts[tt.role].drain()
			s.runUntilIdle()
			s.flow(tt.flow)
			if !strings.Contains(tt.name, "unknown") {
				if got := s.types(); got != "SINGLE/SINGLE" {
					t.Errorf("types %s", got)
				}
				for _, h := range s.hosts {
					if len(h.g.links.list) != 1 || h.g.links.list[0].ConnCount() != 1 || h.g.Conns() != 1 {
						t.Errorf("%s: %d links, %d connections", h.role, len(h.g.links.list), h.g.Conns())
					}
				}
			}
			s.finish()
		})
	}
}

// TestDeletionTimeouts: a deletion without answer costs the link that
// carries it (RFC 7609, appendix C.7.1). The last one has more time, and is tested before
// it fails: Linux first waits for what it has sent on the link that is deleted.
func TestDeletionTimeouts(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		s := started(t, 2, 2, noTest)
		s.block = func(from *host, _ *Link, msg []byte) bool {
			return strings.Contains(describe(msg), "delete-link(") || strings.Contains(describe(msg), "test-link")
		}
		g := s.group(role)
		g.LinkFailed(s.now, g.links.list[0], errAny)
		s.hosts[role].drain()
		s.pass(10 * time.Second)
		if s.hosts[role].gone {
			t.Errorf("the %s has not waited: %v", role, s.hosts[role].deadE)
		}
		// The adapter of the server acknowledges the nudges of the connection, so the answer to
		// TEST LINK may only be late.
		s.pass(map[smc.Role]time.Duration{smc.Server: 6 * time.Second, smc.Client: 15 * time.Second}[role])
		if !s.hosts[role].gone || !errors.Is(s.hosts[role].deadE, conn.ErrReset) {
			t.Errorf("%s: %v", role, s.hosts[role].deadE)
		}
		s.block = nil
		s.finish()
	}
}

// TestLinuxDeletesLate: a Linux server that takes minutes to delete a link costs
// nothing as long as it answers TEST LINK; one that does not has lost the
// carrier too.
func TestLinuxDeletesLate(t *testing.T) {
	for _, alive := range []bool{true, false} {
		s := started(t, 2, 2, func(c *Config) { noTest(c); linux(c) })
		s.block = func(from *host, _ *Link, msg []byte) bool {
			what := describe(msg)
			return strings.HasPrefix(what, "delete-link(") || !alive && from.role == smc.Server && what == "re:test-link"
		}
		g, h := s.group(smc.Client), s.hosts[smc.Client]
		g.LinkFailed(s.now, g.links.list[0], errAny)
		h.drain()
		s.pass(2 * time.Minute)
		if h.gone == alive {
			t.Errorf("the server answers TEST LINK: %v; the client's group ended: %v, %v", alive, h.gone, h.deadE)
		}
		s.block = nil
		if alive {
			s.pass(time.Minute)
			if got := s.types(); got != "SYM/SYM" {
				t.Errorf("in the end: %s", got)
			}
		}
		s.finish()
	}
}

// TestBothLinksLost: nothing is left but to reset.
func TestBothLinksLost(t *testing.T) {
	s := started(t, 2, 2, noTest)
	g := s.group(smc.Server)
	l1, l2 := g.links.list[0], g.links.list[1]
	g.LinkFailed(s.now, l1, errAny)
	g.LinkFailed(s.now, l2, errAny)
	g.LinkFailed(s.now, l2, errAny)
	g.Sent(s.now, l1, 1)
	g.Received(s.now, l1, make([]byte, 44))
	g.Tick(s.now)
	g.DeviceUp(s.now, device(smc.Server, 0))
	g.DeviceDown(s.now, 0)
	g.Terminate(s.now, wire.DeleteLinkOperator)
	s.hosts[smc.Server].drain()
	for _, p := range s.hosts[smc.Server].apps {
		if !errors.Is(p.closeErr, conn.ErrReset) {
			t.Errorf("closed with %v", p.closeErr)
		}
	}
	s.finish()
}

// TestNewDevice: devices that come up make the group redundant again.
func TestNewDevice(t *testing.T) {
	const add = "c1:re:add-link s1:add-link-continuation(1) c1:re:add-link-continuation(1) s2:confirm-link c2:re:confirm-link "
	s := started(t, 1, 1, noTest)
	s.trace = nil
	up := func(role smc.Role, i int) {
		s.group(role).DeviceUp(s.now, device(role, i))
		s.hosts[role].drain()
		s.runUntilIdle()
	}
	// The client's second device: the server adds an asymmetric link.
	up(smc.Client, 1)
	s.flow("c1:add-link s1:add-link " + strings.ReplaceAll(strings.ReplaceAll(add, "s2", "s3"), "c2", "c3"))
	if got := s.types(); got != "ASYML/ASYMP" {
		t.Errorf("types %s", got)
	}
	up(smc.Client, 1) // again
	s.flow("")
	// The server's second device: a symmetric link replaces it.
	up(smc.Server, 1)
	if n := len(s.group(smc.Server).Links()); n != 2 {
		t.Errorf("%d links", n)
	}
	if got := s.types(); got != "SYM/SYM" {
		t.Errorf("types %s", got)
	}
	if got := strings.Join(s.trace, " "); !strings.HasSuffix(got, ":confirm-link s4:delete-link(3) c4:re:delete-link(3)") {
		t.Errorf("flow %s", got)
	}
	// One more of each changes nothing: two links are enough.
	s.trace = nil
	up(smc.Server, 2)
	up(smc.Client, 2)
	s.flow("")
	// A device that dies is replaced by the spare one, after a while.
	s.group(smc.Server).DeviceDown(s.now, 1)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	if got := s.types(); got != "SINGLE/SINGLE" {
		t.Errorf("types %s", got)
	}
	s.pass(6 * time.Second)
	if got := s.types(); got != "SYM/SYM" {
		t.Errorf("types %s", got)
	}
	s.finish()
}

// TestLostLinkNotDrained: a client that asks for an orderly deletion of a link
// that it says is lost, as Linux does, gets it, but nothing waits for what is
// under way there.
func TestLostLinkNotDrained(t *testing.T) {
	for _, reason := range []wire.DeleteLinkReason{wire.DeleteLinkLostPath, wire.DeleteLinkOperator} {
		s := started(t, 2, 2, noTest)
		lost := s.group(smc.Server).links.byID(2)
		asked := false
		s.tap = func(from *host, _ *Link, msg []byte) {
			if from.role != smc.Server || describe(msg) != "delete-link(2)" {
				return
			}
			asked = true
			if lost.qpOpen != (reason == wire.DeleteLinkOperator) {
				t.Errorf("%s: queue pair of the link is open: %v", reason, lost.qpOpen)
			}
		}
		s.group(smc.Client).links.list[0].sendLLC(wire.DeleteLink{LinkNum: 2, Orderly: true, Reason: reason}, nothing, nil)
		s.hosts[smc.Client].drain()
		s.runUntilIdle()
		if got := s.types(); !asked || got != "SINGLE/SINGLE" {
			t.Errorf("%s: types %s, deleted %v", reason, got, asked)
		}
		s.finish()
	}
}

// TestDeviceUpDuringAddLink: a device that comes up while an asymmetric link is
// being added gets its link at once when that is there.
func TestDeviceUpDuringAddLink(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		s := started(t, 2, 2, noTest)
		g := s.group(role)
		g.DeviceDown(s.now, 0)
		s.hosts[role].drain()
		up := false
		s.tap = func(from *host, _ *Link, msg []byte) {
			if !up && from.role == smc.Server && strings.HasPrefix(describe(msg), "add-link") {
				up = true
				s.after(time.Microsecond/2, func() {
					g.DeviceUp(s.now, device(role, 0))
					s.hosts[role].drain()
				})
			}
		}
		s.pass(6 * time.Second) // the asymmetric link comes after 5
		if got := s.types(); !up || got != "SYM/SYM" {
			t.Errorf("%s: types %s, %v", role, got, s.trace)
		}
		s.finish()
	}
}

// TestAddLinkRejectedTooEarly: a client that tells of a device and rejects the
// link for it, as Linux does when the port is not active yet, is asked again
// soon.
func TestAddLinkRejectedTooEarly(t *testing.T) {
	s := started(t, 1, 1, noTest)
	sh, ch := s.hosts[smc.Server], s.hosts[smc.Client]
	ch.failQP = 1
	ch.g.DeviceUp(s.now, device(smc.Client, 1))
	ch.drain()
	s.runUntilIdle()
	if got := s.types(); got != "SINGLE/SINGLE" || sh.g.timers[timerAdd].IsZero() {
		t.Fatalf("types %s: %v", got, s.trace)
	}
	s.pass(6 * time.Second)
	if got := s.types(); got != "ASYML/ASYMP" {
		t.Errorf("types %s: %v", got, s.trace)
	}
	s.finish()
}

// TestAddLinkRetry: the server tries again, with growing pauses (RFC 7609,
// appendix C.8).
func TestAddLinkRetry(t *testing.T) {
	s := newSim(t, 1)
	s.addHost(smc.Server, 2, noTest)
	s.addHost(smc.Client, 2, noTest)
	s.dead[device(smc.Server, 1).GID] = true
	s.record()
	srv, cli := s.connectFirst(0, 4096)
	srv.manual, cli.manual = true, true
	if got := s.types(); got != "SINGLE/SINGLE" {
		t.Fatalf("types %s", got)
	}
	s.pass(60 * time.Second)
	tries := strings.Count(strings.Join(s.trace, " "), "s1:add-link ")
	if tries < 3 || tries > 5 {
		t.Errorf("%d tries in a minute", tries)
	}
	delete(s.dead, device(smc.Server, 1).GID)
	s.pass(60 * time.Second)
	if got := s.types(); got != "SYM/SYM" {
		t.Errorf("types %s", got)
	}
	s.finish()
}

// TestCollisions has the collisions of RFC 7609, section 3.5.5.3.
func TestCollisions(t *testing.T) {
	// CONFIRM RKEY of the client meets ADD LINK of the server: refused, and
	// repeated with the new link afterwards.
	s := started(t, 1, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
	g := s.group(smc.Server)
	g.LinkFailed(s.now, g.links.list[1], errAny)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	s.trace = nil
	if _, err := s.hosts[smc.Client].newApp(50, 0, 100); err != nil {
		t.Fatal(err)
	}
	g.adding.wanted = true
	g.Tick(s.now)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	s.pass(100 * time.Millisecond)
	s.flow(`c1:confirm-rkey(0) s1:add-link s1:re:confirm-rkey(0)-negative-retry c1:re:add-link
		s1:add-link-continuation(1) c1:re:add-link-continuation(1) s3:confirm-link c3:re:confirm-link
		c1:confirm-rkey(1) s1:re:confirm-rkey(1)`)
	// TEST LINK is answered in the middle of an exchange.
	g.LinkFailed(s.now, g.links.list[1], errAny)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	s.trace = nil
	g.adding.wanted = true
	g.Tick(s.now)
	s.group(smc.Client).links.list[0].sendLLC(wire.TestLink{}, nothing, nil)
	s.hosts[smc.Client].drain()
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	if !slices.Contains(s.trace, "s1:re:test-link") || s.types() != "ASYML/ASYMP" {
		t.Errorf("flow %v, types %s", s.trace, s.types())
	}
	for _, h := range s.hosts {
		for _, p := range h.apps {
			if p.id == 50 {
				p.c.Cancel(s.now)
				p.closed = true
			}
		}
	}
	s.finish()

	// Both sides tell RMBs at the same time: no collision.
	s = started(t, 2, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
	s.trace = nil
	for _, h := range s.hosts {
		if _, err := h.newApp(50, 0, 100); err != nil {
			t.Fatal(err)
		}
	}
	s.runUntilIdle()
	if got := strings.Join(s.trace, " "); strings.Count(got, "re:confirm-rkey(1)") != 2 || strings.Contains(got, "negative") {
		t.Errorf("flow %s", got)
	}

	// DELETE LINK all ends any exchange.
	r := newRig(t, smc.Client, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(false, r.link))
	r.recv(r.link, wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
	r.recv(r.link, wire.DeleteLink{All: true, Reason: wire.DeleteLinkOperator})
	if len(r.dead) != 1 || len(r.first) != 1 || !errors.Is(r.first[0], ErrTerminated) {
		t.Errorf("dead %v, outcome %v", r.dead, r.first)
	}

	// DELETE LINK of the client during ADD LINK waits.
	r = newRig(t, smc.Server, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(true, r.link))
	r.expect("confirm-link add-link")
	r.recv(r.link, wire.AddLink{Reply: true, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
	r.expect("add-link-continuation(1)")
	r.recv(r.link, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.recv(r.link, wire.AddLink{}) // a request of a client: ignored
	r.expect("")
	r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: smc.RToken{RKey: 0xBBBB, Addr: 9}}}})
	r.expect("confirm-link")
	l2 := r.g.links.list[1]
	r.recv(l2, r.confirmLink(true, l2))
	r.done()
	r.expect("delete-link(1)")
	r.recv(l2, wire.DeleteLink{Reply: true, LinkNum: 1})
	if len(r.g.links.list) != 1 || r.g.links.list[0] != l2 || len(r.first) != 1 || r.first[0] != nil {
		t.Errorf("links %d, outcome %v", len(r.g.links.list), r.first)
	}
	// The RToken from ADD LINK CONTINUATION is what CLC named on the first
	// link.
	p := peerRMB
	p.Link = l2.peer
	p.RKey, p.VAddr = 0xBBBB, 9
	if err := r.c.Attach(r.s.now, p); err != nil {
		t.Error(err)
	}
}

// TestFlood: a peer that asks and does not take answers costs its group, not
// our memory.
func TestFlood(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	for range 5000 {
		r.recv(r.link, wire.TestLink{})
		r.acts = nil
	}
	if n := len(r.link.llcq); n > maxLLCQueue {
		t.Errorf("%d answers are queued", n)
	}
	if r.wait(10 * time.Second); len(r.dead) != 1 {
		t.Error("the group lives on")
	}
}

// TestSequence: calls at the wrong time.
func TestSequence(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	if _, err := r.g.NewConn(r.s.now, 0, 1); !errors.Is(err, ErrSequence) {
		t.Errorf("NewConn: %v", err)
	}
	if err := r.g.ConnectFirst(r.s.now, peerRMB); !errors.Is(err, ErrSequence) {
		t.Errorf("ConnectFirst: %v", err)
	}
	if r.g.CanAccept() || r.g.HasPort(peerHost, peerEnd.GID, peerEnd.MAC) {
		t.Error("usable without a link")
	}
	r.open()
	if _, err := r.g.FirstLink(r.s.now); !errors.Is(err, ErrSequence) {
		t.Errorf("FirstLink: %v", err)
	}
	if _, err := r.g.NewConn(r.s.now, 16, 1); !errors.Is(err, ErrInvalidParams) {
		t.Errorf("NewConn: %v", err)
	}
	if !r.g.CanAccept() || !r.g.HasPort(peerHost, peerEnd.GID, peerEnd.MAC) || !r.g.HasLink(peerEnd.GID, peerEnd.MAC, peerEnd.QPN) || r.g.HasLink(peerEnd.GID, peerEnd.MAC, 1) {
		t.Error("HasLink, CanAccept")
	}

	r = newRig(t, smc.Client, nil)
	r.g.DeviceDown(r.s.now, 0)
	if _, err := r.g.FirstLink(r.s.now); !errors.Is(err, ErrNoDevice) {
		t.Errorf("FirstLink: %v", err)
	}
	r.g.DeviceUp(r.s.now, device(smc.Client, 0))
	if _, err := r.g.FirstLink(r.s.now); err != nil {
		t.Error(err)
	}
	if err := r.g.ConnectFirst(r.s.now, ConnParams{Link: Endpoint{QPN: 1, MTU: 9}}); !errors.Is(err, ErrInvalidParams) {
		t.Errorf("ConnectFirst: %v", err)
	}
	// Given up before anything was sent.
	r.g.Terminate(r.s.now, wire.DeleteLinkProgram)
	r.take()
	if len(r.dead) != 1 || len(r.s.qps) != 0 {
		t.Errorf("dead %v, %d queue pairs", r.dead, len(r.s.qps))
	}
}

// TestFull: MaxConns is kept.
func TestFull(t *testing.T) {
	r := newRig(t, smc.Server, func(c *Config) { noTest(c); c.MaxConns = 3 })
	r.open()
	for range 2 {
		if _, err := r.g.NewConn(r.s.now, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.g.NewConn(r.s.now, 0, 1); !errors.Is(err, ErrFull) || r.g.CanAccept() {
		t.Errorf("NewConn: %v", err)
	}
}
