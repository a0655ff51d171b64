// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// record makes the simulation keep the LLC messages that are delivered, as
// "who:link:message".
func (s *sim) record() {
	s.tap = func(from *host, l *Link, msg []byte) {
		if !wire.IsCDC(msg) {
			s.trace = append(s.trace, fmt.Sprintf("%c%d:%s", from.role.String()[0], l.id, describe(msg)))
		}
	}
}

// flow compares the messages since the last call, one a line.
func (s *sim) flow(want string) {
	s.t.Helper()
	got := strings.Join(s.trace, " ")
	s.trace = nil
	if want = strings.Join(strings.Fields(want), " "); got != want {
		s.t.Errorf("flow\n%s\nwant\n%s", strings.ReplaceAll(got, " ", "\n"), strings.ReplaceAll(want, " ", "\n"))
	}
}

func (s *sim) group(r smc.Role) *Group { return s.hosts[r].g }

// types returns the types of the two groups.
func (s *sim) types() string {
	return s.group(smc.Server).Type().String() + "/" + s.group(smc.Client).Type().String()
}

func started(t *testing.T, srvDevs, cliDevs int, edit func(*Config)) *sim {
	t.Helper()
	s := newSim(t, 1)
	s.addHost(smc.Server, srvDevs, edit)
	s.addHost(smc.Client, cliDevs, edit)
	s.record()
	srv, cli := s.connectFirst(0, 4096)
	srv.manual, cli.manual = true, true
	s.runUntilIdle()
	return s
}

func (s *sim) pass(d time.Duration) {
	s.run(d, func() bool { return false })
}

// TestFirstContact has the flows of RFC 7609, section 3.5.1, for each number
// of devices.
func TestFirstContact(t *testing.T) {
	const first = "s1:confirm-link c1:re:confirm-link s1:add-link "
	const second = "c1:re:add-link s1:add-link-continuation(1) c1:re:add-link-continuation(1) s2:confirm-link c2:re:confirm-link"
	tests := []struct {
		srv, cli int
		flow     string
		types    string
	}{
		{1, 1, first + "c1:re:add-link-rejected1", "SINGLE/SINGLE"},
		{2, 1, first + second, "ASYMP/ASYML"},
		{1, 2, first + second, "ASYML/ASYMP"},
		{2, 2, first + second, "SYM/SYM"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d-%d", tt.srv, tt.cli), func(t *testing.T) {
			s := started(t, tt.srv, tt.cli, noTest)
			s.flow(tt.flow)
			if got := s.types(); got != tt.types {
				t.Errorf("types %s, want %s", got, tt.types)
			}
			sl, cl := s.group(smc.Server).Links(), s.group(smc.Client).Links()
			if len(sl) != len(cl) {
				t.Fatalf("%d and %d links", len(sl), len(cl))
			}
			for i, l := range sl {
				m := cl[i]
				if l.ID() != m.ID() || l.UID() != m.PeerUID() || l.PeerUID() != m.UID() || l.Local() != m.Peer() || l.Peer() != m.Local() || l.State() != smc.LinkActive || m.State() != smc.LinkActive {
					t.Errorf("link %d: %+v and %+v", i, l.Local(), m.Peer())
				}
			}
			for _, h := range s.hosts {
				if len(h.g.peerRMBs.list) != 1 {
					t.Fatalf("%s knows %d RMBs", h.role, len(h.g.peerRMBs.list))
				}
				for _, l := range h.g.Links() {
					if !h.g.peerRMBs.list[0].at[l.slot].ok || h.g.peerRMBs.list[0].at[l.slot].noAddr {
						t.Errorf("%s: RToken on link %d is missing", h.role, l.id)
					}
				}
			}
			s.rtokensAgree(t)
			s.finish()
		})
	}
}

// rtokensAgree fails unless the RMB of each host has an RToken of its own on each link, and
// the peer knows it as that of the link.
func (s *sim) rtokensAgree(t *testing.T) {
	t.Helper()
	for role, h := range s.hosts {
		peer := s.hosts[1-role]
		links := map[smc.RToken]uint8{}
		for i, l := range h.g.Links() {
			own := h.g.rmbs.list[0].at[l.slot]
			known := peer.g.peerRMBs.list[0].at[peer.g.Links()[i].slot]
			if !own.ok || own.RToken != known.RToken {
				t.Errorf("%s: RToken %+v on link %d, the peer knows %+v", h.role, own, l.id, known)
			}
			if other, ok := links[own.RToken]; ok {
				t.Errorf("%s: one RToken on links %d and %d", h.role, other, l.id)
			}
			links[own.RToken] = l.id
		}
	}
}

// TestFirstContactErrors: what can go wrong before data flows.
func TestFirstContactErrors(t *testing.T) {
	lost := func(words ...string) func(s *sim) {
		return func(s *sim) {
			s.block = func(_ *host, _ *Link, msg []byte) bool { return slices.Contains(words, describe(msg)) }
		}
	}
	tests := []struct {
		name     string
		edit     func(s *sim)
		srv, cli error // of ActFirstLink
		types    string
		flow     string // "" is not compared
	}{
		{"C.7.1 no CONFIRM LINK", lost("confirm-link"), ErrSilent, ErrSilent, "NONE/NONE", ""},
		{"C.7.1 no CONFIRM LINK reply", lost("re:confirm-link"), ErrSilent, nil, "NONE/NONE", ""},
		{"C.7.1 no ADD LINK", lost("add-link"), ErrTimeout, nil, "NONE/NONE", ""},
		{"C.7.1 no ADD LINK reply", lost("re:add-link"), ErrTimeout, ErrTimeout, "NONE/NONE", ""},
		{"C.7.1 no ADD LINK CONTINUATION", lost("add-link-continuation(1)"), ErrTimeout, ErrTimeout, "NONE/NONE", ""},
		{"C.7.1 second CONFIRM LINK is lost", func(s *sim) {
			s.block = func(_ *host, l *Link, msg []byte) bool { return l.id == 2 }
		}, nil, nil, "SINGLE/SINGLE", `s1:confirm-link c1:re:confirm-link s1:add-link c1:re:add-link
			s1:add-link-continuation(1) c1:re:add-link-continuation(1) s2:confirm-link
			s1:delete-link(2) c1:re:delete-link(2)`},
		{"second link cannot be created by the server", func(s *sim) { s.after(1500*time.Nanosecond, func() { s.hosts[smc.Server].failQP = 1 }) },
			nil, nil, "SYM/SYM", ""}, // at the second try

		{"second link cannot be created by the client", func(s *sim) { s.after(1500*time.Nanosecond, func() { s.hosts[smc.Client].failQP = 1 }) },
			nil, nil, "SINGLE/SINGLE", "s1:confirm-link c1:re:confirm-link s1:add-link c1:re:add-link-rejected1"},
		{"first link is dead", func(s *sim) { s.dead[device(smc.Server, 0).GID] = true }, errAny, ErrSilent, "NONE/NONE", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t, 1)
			s.addHost(smc.Server, 2, noTest)
			s.addHost(smc.Client, 2, noTest)
			s.record()
			tt.edit(s)
			srv, cli := s.connectFirst(0, 4096)
			srv.manual, cli.manual = true, true
			s.pass(time.Second)
			for i, want := range map[smc.Role]error{smc.Server: tt.srv, smc.Client: tt.cli} {
				got := s.hosts[i].first
				if want == errAny && got != nil {
					continue
				}
				if !errors.Is(got, want) || want == nil && got != nil {
					t.Errorf("%s: %v, want %v", i, got, want)
				}
			}
			if got := s.types(); tt.types != "NONE/NONE" && got != tt.types {
				t.Errorf("types %s, want %s", got, tt.types)
			}
			if tt.flow != "" {
				s.flow(tt.flow)
			}
			s.block = nil
			for _, h := range s.hosts {
				for _, p := range h.apps {
					if !p.open {
						p.c.Cancel(s.now)
						p.closed = true
						h.drain()
					}
				}
			}
			s.finish()
		})
	}
}

var errAny = errors.New("any error")

// TestConfirmLinkWrong: values that contradict CLC decline the connection.
func TestConfirmLinkWrong(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		for name, edit := range map[string]func(*wire.ConfirmLink){
			"queue pair":  func(m *wire.ConfirmLink) { m.QPN++ },
			"GID":         func(m *wire.ConfirmLink) { m.GID[0]++ },
			"MAC":         func(m *wire.ConfirmLink) { m.MAC[0]++ },
			"link number": func(m *wire.ConfirmLink) { m.LinkNum = 0 },
		} {
			r := newRig(t, role, nil)
			r.begin()
			m := r.confirmLink(role == smc.Server, r.link)
			edit(&m)
			r.recv(r.link, m)
			if len(r.first) != 1 || !errors.Is(r.first[0], ErrProtocol) || len(r.dead) != 1 {
				t.Errorf("%s, %s: outcome %v, dead %v", role, name, r.first, r.dead)
			}
			r.c.Cancel(r.s.now)
			if len(r.h.rmbs)+len(r.h.chunks)+len(r.s.qps) != 0 {
				t.Errorf("%s, %s: something is left", role, name)
			}
		}
	}
}

// TestAddLinkReply: what the server does with replies.
func TestAddLinkReply(t *testing.T) {
	good := wire.AddLink{Reply: true, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3}
	tests := []struct {
		name string
		edit func(*wire.AddLink)
		want string
	}{
		{"good", func(m *wire.AddLink) {}, "add-link-continuation(1)"},
		{"rejected", func(m *wire.AddLink) { m.Rejected, m.Reason = true, 1 }, ""},
		{"parallel", func(m *wire.AddLink) { m.MAC, m.GID = peerEnd.MAC, peerEnd.GID }, "delete-link(2)"},
		{"undefined MTU", func(m *wire.AddLink) { m.MTU = 6 }, "delete-link(2)"},
		{"no queue pair", func(m *wire.AddLink) { m.QPN = 0 }, "delete-link(2)"},
		{"other link", func(m *wire.AddLink) { m.LinkNum = 3 }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Server, noTest)
			r.begin()
			r.recv(r.link, r.confirmLink(true, r.link))
			r.expect("confirm-link add-link")
			m := good
			tt.edit(&m)
			r.recv(r.link, m)
			r.expect(tt.want)
		})
	}
}

// TestAddLinkRequest: what the client does with requests.
func TestAddLinkRequest(t *testing.T) {
	tests := []struct {
		name string
		edit func(*wire.AddLink)
		want string
	}{
		{"other port", func(m *wire.AddLink) {}, "re:add-link"},
		{"same port", func(m *wire.AddLink) { m.MAC, m.GID = peerEnd.MAC, peerEnd.GID }, "re:add-link-rejected1"},
		{"undefined MTU", func(m *wire.AddLink) { m.MTU = 0 }, "re:add-link-rejected2"},
		{"MTU too large", func(m *wire.AddLink) { m.MTU = 6 }, "re:add-link-rejected2"},
		{"link number in use", func(m *wire.AddLink) { m.LinkNum = 1 }, "re:add-link-rejected1"},
		{"link number 0", func(m *wire.AddLink) { m.LinkNum = 0 }, "re:add-link-rejected1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, smc.Client, noTest)
			r.begin()
			r.recv(r.link, r.confirmLink(false, r.link))
			r.expect("re:confirm-link")
			m := wire.AddLink{MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3}
			tt.edit(&m)
			r.recv(r.link, m)
			r.expect(tt.want)
			if rejected := strings.Contains(tt.want, "rejected"); rejected != (len(r.first) == 1) {
				t.Errorf("outcomes %v", r.first)
			}
		})
	}
}

// TestContinuations: each side has its own number of RMBs to tell (RFC 7609,
// appendix A.3.3).
func TestContinuations(t *testing.T) {
	for _, n := range [][2]int{{1, 1}, {5, 1}, {1, 5}, {4, 3}, {9, 9}, {255, 2}, {100, 255}} {
		s := started(t, 1, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
		g := s.group(smc.Server)
		// A second link that is added late, when there are RMBs.
		l2 := g.Links()[1]
		g.LinkFailed(s.now, l2, errors.New("cable"))
		s.hosts[smc.Server].drain()
		s.runUntilIdle()
		for role, count := range n {
			for range count - 1 {
				if _, err := s.hosts[role].newApp(100, 0, 100); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.runUntilIdle()
		s.trace = nil
		g.adding.wanted = true
		g.Tick(s.now)
		s.hosts[smc.Server].drain()
		s.runUntilIdle()
		var want []string
		want = append(want, "s1:add-link", "c1:re:add-link")
		// hosts are indexed by role: 0 client, 1 server.
		for sn, cn := n[1], n[0]; ; sn, cn = max(0, sn-2), max(0, cn-2) {
			want = append(want, fmt.Sprintf("s1:add-link-continuation(%d)", sn), fmt.Sprintf("c1:re:add-link-continuation(%d)", cn))
			if sn <= 2 && cn <= 2 {
				break
			}
		}
		want = append(want, "s3:confirm-link", "c3:re:confirm-link")
		s.flow(strings.Join(want, " "))
		for _, h := range s.hosts {
			for _, rt := range h.g.peerRMBs.list {
				for _, l := range h.g.Links() {
					if !rt.at[l.slot].ok {
						t.Errorf("%v: RToken is missing on link %d", n, l.id)
					}
				}
			}
			for _, p := range h.apps {
				if p.id == 100 {
					p.c.Cancel(s.now)
					p.closed = true
				}
			}
		}
		s.finish()
	}
}

// TestContinuationCount: counts that do not add up are a protocol error on
// the link that carries the exchange.
func TestContinuationCount(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(true, r.link))
	r.recv(r.link, wire.AddLink{Reply: true, MAC: smc.MAC{5: 8}, GID: smc.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
	r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 5, Pairs: [2]wire.RKeyPair{{RefRKey: 1}, {RefRKey: 2}}})
	r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 4, Pairs: [2]wire.RKeyPair{{RefRKey: 3}, {RefRKey: 4}}})
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrProtocol) {
		t.Errorf("dead: %v", r.dead)
	}
}
