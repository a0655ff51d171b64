// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// links returns a Config edit for groups of up to n links, with TEST LINK off.
func links(n int) func(*Config) {
	return func(c *Config) { noTest(c); c.MaxLinks = n }
}

// checkLinks checks what holds for the links of a group at any time: no two
// are parallel, at most one is asymmetric, and the symmetric ones are within
// what was agreed on.
func (s *sim) checkLinks(when string) {
	s.t.Helper()
	for _, h := range s.hosts {
		if h.gone {
			continue
		}
		var active []*Link
		for _, l := range h.g.links.list {
			if l.state != smc.LinkActive {
				continue
			}
			for _, m := range active {
				if l.dev.ID == m.dev.ID && h.g.links.samePort(l.peer, m.peer) {
					s.t.Errorf("%s: %s: links %d and %d are parallel", when, h.role, l.id, m.id)
				}
			}
			active = append(active, l)
		}
		n := h.g.links.symmetric(active)
		if n > h.g.links.max || len(active)-n > 1 {
			s.t.Errorf("%s: %s: %d links, %d of them symmetric, of %d at most", when, h.role, len(active), n, h.g.links.max)
		}
	}
}

// TestLinkCounts: a group gets as many symmetric links as both hosts have
// devices, up to the limit; with one device on a side an asymmetric link; and
// then it is at rest (RFC 7609, sections 2.2.1, 2.2.2 and 3.5.1.6).
func TestLinkCounts(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		for srv := 1; srv <= 9; srv += 2 {
			for cli := 1; cli <= 9; cli++ {
				t.Run(fmt.Sprintf("max%d-%d-%d", n, srv, cli), func(t *testing.T) {
					s := started(t, srv, cli, links(n))
					s.runUntilIdle()
					want := min(srv, cli, n)
					if want == 1 && max(srv, cli) > 1 {
						want = 2
					}
					for _, h := range s.hosts {
						if got := len(h.g.Links()); got != want {
							t.Errorf("%s: %d links, want %d", h.role, got, want)
						}
						if tt := h.g.Type(); (tt == smc.GroupSymmetric) != (min(srv, cli) > 1) {
							t.Errorf("%s: %s", h.role, tt)
						}
					}
					s.checkLinks("started")
					// A link more than the last is tried once and refused.
					s.trace = nil
					s.pass(200 * time.Second)
					if n := strings.Count(strings.Join(s.trace, " "), "add-link"); n > 0 {
						t.Errorf("%d messages of ADD LINK at rest: %v", n, s.trace)
					}
					s.finish()
				})
			}
		}
	}
}

// TestAsymmetricReplaced: whichever device was missing, its return makes the
// group symmetric, and the asymmetric link goes with its own reason (RFC 7609,
// section 2.2.1 and figure 6).
func TestAsymmetricReplaced(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for dev := range 2 {
			s := started(t, 2, 2, links(2))
			down := device(role, dev)
			s.dead[down.GID] = true
			s.group(role).DeviceDown(s.now, dev)
			s.hosts[role].drain()
			s.pass(20 * time.Second)
			want := map[smc.Role]string{smc.Server: "ASYML/ASYMP", smc.Client: "ASYMP/ASYML"}[role]
			if got := s.types(); got != want {
				t.Errorf("%s without device %d: %s", role, dev, got)
			}
			var reasons []wire.DeleteLinkReason
			tap := s.tap
			s.tap = func(from *host, l *Link, msg []byte) {
				tap(from, l, msg)
				if m, err := wire.ParseDeleteLink(msg); err == nil && !m.Reply {
					reasons = append(reasons, m.Reason)
				}
				// Linux would reject it.
				if m, err := wire.ParseAddLink(msg); err == nil && from.role == smc.Server && m.GID == l.local.GID {
					t.Errorf("%s with device %d again: ADD LINK for a link that ends where its carrier does", role, dev)
				}
			}
			delete(s.dead, down.GID)
			s.group(role).DeviceUp(s.now, down)
			s.hosts[role].drain()
			s.pass(20 * time.Second)
			if got := s.types(); got != "SYM/SYM" || len(s.group(smc.Server).Links()) != 2 {
				t.Errorf("%s with device %d again: %s, %d links", role, dev, got, len(s.group(smc.Server).Links()))
			}
			if len(reasons) != 1 || reasons[0] != wire.DeleteLinkAsymmetric {
				t.Errorf("%s: links were deleted for %v", role, reasons)
			}
			s.finish()
		}
	}
}

// TestUnusedLinkGives: when the asymmetric link is replaced, of the two links at
// the same port the one stays that the peer sends over.
func TestUnusedLinkGives(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for dev := range 2 {
			for used := range 2 {
				s := started(t, 2, 2, links(2))
				down := device(role, dev)
				s.dead[down.GID] = true
				s.group(role).DeviceDown(s.now, dev)
				s.hosts[role].drain()
				s.pass(20 * time.Second)
				id := s.group(smc.Client).Links()[used].id
				for _, h := range s.hosts {
					for _, c := range h.g.conns {
						c.onto = h.g.links.byID(id)
					}
				}
				tap := s.tap
				s.tap = func(from *host, l *Link, msg []byte) {
					tap(from, l, msg)
					if m, err := wire.ParseAddLink(msg); err == nil && from.role == smc.Client && m.QPN == 0 && l.id != id {
						t.Errorf("%s, device %d: the client's request came over link %d, not %d", role, dev, l.id, id)
					}
				}
				delete(s.dead, down.GID)
				s.group(role).DeviceUp(s.now, down)
				s.hosts[role].drain()
				s.pass(20 * time.Second)
				for _, h := range s.hosts {
					if h.g.Type() != smc.GroupSymmetric || len(h.g.Links()) != 2 || h.g.links.byID(id) == nil {
						t.Errorf("%s, device %d: %s has %d links, %s, without link %d", role, dev, h.role, len(h.g.Links()), h.g.Type(), id)
					}
				}
				s.finish()
			}
		}
	}
}

// TestDevicesComeAndGo: whatever happens to the devices, the rules for links
// hold after each step, and in the end all that is possible is there.
func TestDevicesComeAndGo(t *testing.T) {
	whole := 0
	for seed := range uint64(40) {
		s := newSim(t, seed)
		n := 2 + int(seed%7)
		for _, role := range []smc.Role{smc.Server, smc.Client} {
			s.addHost(role, 1+s.rng.IntN(8), links(n))
		}
		srv, cli := s.connectFirst(0, 4096)
		srv.manual, cli.manual = true, true
		s.runUntilIdle()
		for step := range 30 {
			role := smc.Role(s.rng.IntN(2))
			h := s.hosts[role]
			d := device(role, s.rng.IntN(8))
			up := 0
			for _, o := range h.g.links.devices {
				if o.Up && o.ID != d.ID {
					up++
				}
			}
			if s.rng.IntN(2) == 0 && up > 0 {
				s.dead[d.GID] = true
				h.g.DeviceDown(s.now, d.ID)
			} else {
				delete(s.dead, d.GID)
				h.g.DeviceUp(s.now, d)
			}
			h.drain()
			s.pass(time.Duration(s.rng.Int64N(int64(20 * time.Second))))
			if s.hosts[0].gone || s.hosts[1].gone {
				break // the last common path went
			}
			s.checkLinks(fmt.Sprintf("seed %d, step %d", seed, step))
		}
		if !s.hosts[0].gone && !s.hosts[1].gone {
			whole++
			for _, role := range []smc.Role{smc.Server, smc.Client} {
				for i := range 8 {
					delete(s.dead, device(role, i).GID)
					s.group(role).DeviceUp(s.now, device(role, i))
					s.hosts[role].drain()
				}
			}
			s.pass(700 * time.Second)
			for _, h := range s.hosts {
				if got := len(h.g.Links()); got != n {
					t.Errorf("seed %d: %s: %d links in the end, want %d", seed, h.role, got, n)
				}
			}
		}
		s.finish()
	}
	if whole < 10 {
		t.Errorf("only %d groups lived to the end", whole)
	}
}

// TestClientAddLink: the server's answers to the client's ADD LINK (RFC 7609,
// section 3.5.5.1.2).
func TestClientAddLink(t *testing.T) {
	tests := []struct {
		name     string
		srv, cli int
		max      int
		want     string // types afterwards
		add      bool   // the server sends ADD LINK
		sent     bool   // the client asks
	}{
		{"single: must add", 1, 1, 2, "ASYML/ASYMP", true, true},
		{"asymmetric, client lacks a device: must add", 2, 1, 2, "SYM/SYM", true, true},
		{"symmetric below the limit: adds", 3, 2, 3, "SYM/SYM", true, true},
		{"symmetric below the limit, server has none", 2, 2, 3, "SYM/SYM", false, true},
		{"at the limit: the client does not ask", 3, 2, 2, "SYM/SYM", false, false},
		{"at the limit: the server ignores", 3, 2, 2, "SYM/SYM", false, false},
	}
	for _, tt := range tests {
		s := started(t, tt.srv, tt.cli, links(tt.max))
		s.runUntilIdle()
		s.trace = nil
		g := s.group(smc.Client)
		if strings.Contains(tt.name, "ignores") {
			d := device(smc.Client, 7)
			g.links.list[0].sendLLC(wire.AddLink{MAC: d.MAC, GID: d.GID}, nothing, nil)
		} else {
			g.DeviceUp(s.now, device(smc.Client, 7))
		}
		s.hosts[smc.Client].drain()
		s.pass(time.Second)
		got := strings.Join(s.trace, " ")
		if strings.Contains(got, ":add-link c") != tt.add && strings.Contains(got, ":re:add-link") != tt.add {
			t.Errorf("%s: flow %s", tt.name, got)
		}
		if sent := strings.HasPrefix(got, "c"); sent != (tt.sent || strings.Contains(tt.name, "ignores")) {
			t.Errorf("%s: flow %s", tt.name, got)
		}
		if s.types() != tt.want {
			t.Errorf("%s: %s", tt.name, s.types())
		}
		s.finish()
	}
}

// TestSecondAsymmetricLink: a peer that makes more than one asymmetric link,
// or one that a symmetric group has no use for, is refused (RFC 7609, section
// 3.5.5.1.1).
func TestSecondAsymmetricLink(t *testing.T) {
	// The server: a reply that names a port in use.
	s := started(t, 3, 3, links(3))
	s.runUntilIdle()
	g := s.group(smc.Server)
	a := g.links.list
	s.group(smc.Client).DeviceDown(s.now, 2)
	s.hosts[smc.Client].drain()
	s.runUntilIdle()
	g.llc.ex = exchange{kind: exAdd, step: waitAddReply, via: a[0], peerLeft: -1}
	l, err := g.change.create(device(smc.Server, 2))
	if err != nil {
		t.Fatal(err)
	}
	l.setID(g.links.nextID())
	g.llc.ex.link = l
	s.trace = nil
	p := a[0].peer
	g.adding.recvReply(a[0], wire.AddLink{Reply: true, LinkNum: l.id, GID: p.GID, MAC: p.MAC, QPN: 0x999, MTU: 3})
	g.Tick(s.now)
	s.hosts[smc.Server].drain()
	s.runUntilIdle()
	if got := strings.Join(s.trace, " "); !strings.Contains(got, fmt.Sprintf("delete-link(%d)", l.id)) {
		t.Errorf("server: flow %s", got)
	}
	s.checkLinks("server")
	s.finish()

	// The client: a request with a port of the server that has no link, when
	// all its devices have one.
	s = started(t, 2, 2, links(3))
	s.runUntilIdle()
	g = s.group(smc.Client)
	s.trace = nil
	g.Received(s.now, g.links.list[0], mustLLC(t, wire.AddLink{LinkNum: 9, GID: smc.GID{15: 77}, MAC: smc.MAC{5: 77}, QPN: 0x999, MTU: 3}))
	s.hosts[smc.Client].drain()
	s.runUntilIdle()
	if got := strings.Join(s.trace, " "); !strings.HasSuffix(got, "re:add-link-rejected1") {
		t.Errorf("client: flow %s", got)
	}
	s.checkLinks("client")
	s.finish()
}

func mustLLC(t *testing.T, m wire.LLC) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLinkNumbers: a link number is used again only after all others (RFC
// 7609, section 2.2.4), and never 0.
func TestLinkNumbers(t *testing.T) {
	g := newRig(t, smc.Server, noTest).g
	seen := map[uint8]int{}
	for i := range 255 {
		id := g.links.nextID()
		if seen[id]++; id == 0 || seen[id] > 1 {
			t.Fatalf("link number %d after %d others", id, i)
		}
	}
	g.links.list = []*Link{{id: 1, g: g}}
	if id := g.links.nextID(); id != 2 {
		t.Errorf("link number %d while 1 is in use", id)
	}
	g.links.list = nil
}

// TestLinksOfLargeGroup: eight links tell each other's RMBs whole, and a
// connection that loses seven of them lives on.
func TestLinksOfLargeGroup(t *testing.T) {
	s := started(t, 8, 8, func(c *Config) { links(8)(c); c.RMBEsPerRMB = 1 })
	s.runUntilIdle()
	for range 5 {
		s.connect(0, 100, nil)
		s.runUntilIdle()
	}
	for _, h := range s.hosts {
		for _, rt := range h.g.peerRMBs.list {
			for _, l := range h.g.Links() {
				if !rt.at[l.slot].ok {
					t.Errorf("%s: RToken is missing on link %d", h.role, l.id)
				}
			}
		}
	}
	for range 7 {
		g := s.group(smc.Role(s.rng.IntN(2)))
		l := g.Links()[s.rng.IntN(len(g.Links()))]
		s.dead[l.local.GID] = true
		g.DeviceDown(s.now, l.dev.ID)
		s.hosts[g.Role()].drain()
		s.runUntilIdle()
		s.checkLinks("one less")
	}
	if a, b := len(s.group(smc.Server).Links()), len(s.group(smc.Client).Links()); a != 1 || b != 1 {
		t.Errorf("%d and %d links", a, b)
	}
	s.finish()
}
