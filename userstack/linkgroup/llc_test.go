// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

func (s *sim) group(r Role) *Group { return s.hosts[r].g }

// types returns the types of the two groups.
func (s *sim) types() string {
	return s.group(Server).Type().String() + "/" + s.group(Client).Type().String()
}

func started(t *testing.T, srvDevs, cliDevs int, edit func(*Config)) *sim {
	t.Helper()
	s := newSim(t, 1)
	s.addHost(Server, srvDevs, edit)
	s.addHost(Client, cliDevs, edit)
	s.record()
	srv, cli := s.connectFirst(0, 4096)
	srv.manual, cli.manual = true, true
	s.settle()
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
		{2, 1, first + second, "ASYMMETRIC_PEER/ASYMMETRIC_LOCAL"},
		{1, 2, first + second, "ASYMMETRIC_LOCAL/ASYMMETRIC_PEER"},
		{2, 2, first + second, "SYMMETRIC/SYMMETRIC"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d-%d", tt.srv, tt.cli), func(t *testing.T) {
			s := started(t, tt.srv, tt.cli, noTest)
			s.flow(tt.flow)
			if got := s.types(); got != tt.types {
				t.Errorf("types %s, want %s", got, tt.types)
			}
			sl, cl := s.group(Server).Links(), s.group(Client).Links()
			if len(sl) != len(cl) {
				t.Fatalf("%d and %d links", len(sl), len(cl))
			}
			for i, l := range sl {
				m := cl[i]
				if l.ID() != m.ID() || l.UID() != m.PeerUID() || l.PeerUID() != m.UID() || l.Local() != m.Peer() || l.Peer() != m.Local() || l.State() != LinkActive || m.State() != LinkActive {
					t.Errorf("link %d: %+v and %+v", i, l.Local(), m.Peer())
				}
			}
			for _, h := range s.hosts {
				if len(h.g.rtokens) != 1 {
					t.Fatalf("%s knows %d RMBs", h.role, len(h.g.rtokens))
				}
				for _, l := range h.g.Links() {
					if !h.g.rtokens[0].at[l.slot].ok || h.g.rtokens[0].at[l.slot].noAddr {
						t.Errorf("%s: RToken on link %d is missing", h.role, l.id)
					}
				}
			}
			s.finish()
		})
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
		{"C.7.1 no CONFIRM LINK", lost("confirm-link"), ErrTimeout, ErrTimeout, "NONE/NONE", ""},
		{"C.7.1 no CONFIRM LINK reply", lost("re:confirm-link"), ErrTimeout, nil, "NONE/NONE", ""},
		{"C.7.1 no ADD LINK", lost("add-link"), ErrTimeout, nil, "NONE/NONE", ""},
		{"C.7.1 no ADD LINK reply", lost("re:add-link"), ErrTimeout, ErrTimeout, "NONE/NONE", ""},
		{"C.7.1 no ADD LINK CONTINUATION", lost("add-link-continuation(1)"), ErrTimeout, ErrTimeout, "NONE/NONE", ""},
		{"C.7.1 second CONFIRM LINK is lost", func(s *sim) {
			s.block = func(_ *host, l *Link, msg []byte) bool { return l.id == 2 }
		}, nil, nil, "SINGLE/SINGLE", `s1:confirm-link c1:re:confirm-link s1:add-link c1:re:add-link
			s1:add-link-continuation(1) c1:re:add-link-continuation(1) s2:confirm-link
			c1:delete-link(2) s1:delete-link(2) c1:re:delete-link(2)`},
		{"second link cannot be created by the server", func(s *sim) { s.after(1500*time.Nanosecond, func() { s.hosts[Server].failQP = 1 }) },
			nil, nil, "SINGLE/SINGLE", ""},
		{"second link cannot be created by the client", func(s *sim) { s.after(1500*time.Nanosecond, func() { s.hosts[Client].failQP = 1 }) },
			nil, nil, "SINGLE/SINGLE", "s1:confirm-link c1:re:confirm-link s1:add-link c1:re:add-link-rejected1"},
		{"first link is dead", func(s *sim) { s.dead[device(Server, 0).GID] = true }, errAny, ErrTimeout, "NONE/NONE", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t, 1)
			s.addHost(Server, 2, noTest)
			s.addHost(Client, 2, noTest)
			s.record()
			tt.edit(s)
			srv, cli := s.connectFirst(0, 4096)
			srv.manual, cli.manual = true, true
			s.pass(time.Second)
			for i, want := range map[Role]error{Server: tt.srv, Client: tt.cli} {
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
	for _, role := range []Role{Server, Client} {
		for name, edit := range map[string]func(*wire.ConfirmLink){
			"queue pair":  func(m *wire.ConfirmLink) { m.QPN++ },
			"GID":         func(m *wire.ConfirmLink) { m.GID[0]++ },
			"MAC":         func(m *wire.ConfirmLink) { m.MAC[0]++ },
			"link number": func(m *wire.ConfirmLink) { m.LinkNum = 0 },
		} {
			r := newRig(t, role, nil)
			r.begin()
			m := r.confirmLink(role == Server, r.link)
			edit(&m)
			r.recv(r.link, m)
			if len(r.first) != 1 || !errors.Is(r.first[0], ErrProtocol) || len(r.dead) != 1 {
				t.Errorf("%s, %s: outcome %v, dead %v", role, name, r.first, r.dead)
			}
			r.c.Cancel(r.s.now)
			if len(r.h.rmbs)+len(r.h.sbufs)+len(r.s.qps) != 0 {
				t.Errorf("%s, %s: something is left", role, name)
			}
		}
	}
}

// TestAddLinkReply: what the server does with replies.
func TestAddLinkReply(t *testing.T) {
	good := wire.AddLink{Reply: true, MAC: wire.MAC{5: 8}, GID: wire.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3}
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
			r := newRig(t, Server, noTest)
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
			r := newRig(t, Client, noTest)
			r.begin()
			r.recv(r.link, r.confirmLink(false, r.link))
			r.expect("re:confirm-link")
			m := wire.AddLink{MAC: wire.MAC{5: 8}, GID: wire.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3}
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
	for _, n := range [][2]int{{1, 1}, {5, 1}, {1, 5}, {4, 3}, {9, 9}} {
		s := started(t, 1, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
		g := s.group(Server)
		// A second link that is added late, when there are RMBs.
		l2 := g.Links()[1]
		g.LinkFailed(s.now, l2, errors.New("cable"))
		s.hosts[Server].drain()
		s.settle()
		for role, count := range n {
			for range count - 1 {
				if _, err := s.hosts[role].newApp(100, 0, 100); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.settle()
		s.trace = nil
		g.addWanted = true
		g.Tick(s.now)
		s.hosts[Server].drain()
		s.settle()
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
			for _, rt := range h.g.rtokens {
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
	r := newRig(t, Server, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(true, r.link))
	r.recv(r.link, wire.AddLink{Reply: true, MAC: wire.MAC{5: 8}, GID: wire.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
	r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 5, Pairs: [2]wire.RKeyPair{{RefRKey: 1}, {RefRKey: 2}}})
	r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 4, Pairs: [2]wire.RKeyPair{{RefRKey: 3}, {RefRKey: 4}}})
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrProtocol) {
		t.Errorf("dead: %v", r.dead)
	}
}

// TestConfirmRKey: a new RMB is told for all links, before the connection
// may go on (RFC 7609, section 3.5.5.2.1), and deleted when it is not used.
func TestConfirmRKey(t *testing.T) {
	s := started(t, 2, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 2 })
	s.trace = nil
	var apps []*app
	for range 2 {
		s.connect(0, 100, func(a, b *app) {
			a.manual, b.manual = true, true
			apps = append(apps, a, b)
		})
	}
	s.settle()
	// The first RMB has room for one more, the third connection needs
	// another.
	s.flow("s1:confirm-rkey(1) c1:re:confirm-rkey(1) c1:confirm-rkey(1) s1:re:confirm-rkey(1)")
	for _, h := range s.hosts {
		for _, rt := range h.g.rtokens {
			for _, l := range h.g.Links() {
				if at := rt.at[l.slot]; !at.ok || at.noAddr {
					t.Errorf("%s: RToken is missing on link %d", h.role, l.id)
				}
			}
		}
	}
	// The connections send nothing and end.
	for _, p := range apps {
		p.manual = false
		p.wake()
	}
	s.run(time.Second, func() bool { return s.group(Server).Conns() == 1 && s.group(Client).Conns() == 1 })
	s.trace = nil
	s.pass(61 * time.Second)
	if got := strings.Join(s.trace, " "); strings.Count(got, ":delete-rkey(1)") != 4 || strings.Count(got, "re:delete-rkey(1)") != 2 {
		t.Errorf("flow %s", got)
	}
	for _, h := range s.hosts {
		if len(h.rmbs) != 1 || len(h.g.rtokens) != 1 {
			t.Errorf("%s: %d RMBs, knows %d", h.role, len(h.rmbs), len(h.g.rtokens))
		}
	}
	s.finish()
}

// TestConfirmRKeyMany: with more than three links there are continuations.
func TestConfirmRKeyMany(t *testing.T) {
	s := started(t, 6, 6, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1; c.MaxLinks = 6 })
	s.settle()
	if n := len(s.group(Server).Links()); n != 6 {
		t.Fatalf("%d links", n)
	}
	s.trace = nil
	s.connect(0, 100, nil)
	s.settle()
	var via byte
	if len(s.trace) > 0 {
		via = s.trace[0][1]
	}
	want := "sX:confirm-rkey(5) cX:re:confirm-rkey(5) sX:confirm-rkey-continuation(3) cX:re:confirm-rkey-continuation(3)"
	got := strings.Join(s.trace[:min(4, len(s.trace))], " ")
	if got != strings.ReplaceAll(want, "X", string(via)) {
		t.Errorf("flow %s", got)
	}
	for _, rt := range s.group(Client).rtokens {
		for _, l := range s.group(Client).Links() {
			if !rt.at[l.slot].ok {
				t.Errorf("RToken is missing on link %d", l.id)
			}
		}
	}
	s.finish()
}

// TestConfirmRKeyAnswers: the replies to our request.
func TestConfirmRKeyAnswers(t *testing.T) {
	setup := func() (*rig, *Conn, wire.ConfirmRKey) {
		r := newRig(t, Server, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
		r.open()
		c, err := r.g.NewConn(r.s.now, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		r.expect("confirm-rkey(0)")
		return r, c, wire.ConfirmRKey{Reply: true, This: c.rmb.at[0].RToken}
	}
	ready := func(r *rig) (n int, err error) {
		r.take()
		for _, a := range r.acts {
			if a.Kind == ActConnReady {
				n, err = n+1, a.Err
			}
		}
		return n, err
	}

	r, _, m := setup()
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || err != nil {
		t.Errorf("positive: %d, %v", n, err)
	}

	r, _, m = setup()
	m.Negative = true
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || !errors.Is(err, ErrRejected) {
		t.Errorf("negative: %d, %v", n, err)
	}

	r, _, m = setup()
	m.Negative, m.Retry = true, true
	r.recv(r.link, m)
	if n, _ := ready(r); n != 0 {
		t.Error("negative with retry: not waiting")
	}
	r.wait(time.Second)
	r.expect("confirm-rkey(0)")
	m.Negative, m.Retry = false, false
	r.recv(r.link, m)
	if n, err := ready(r); n != 1 || err != nil {
		t.Errorf("second try: %d, %v", n, err)
	}

	// For ever refused.
	r, _, m = setup()
	m.Negative, m.Retry = true, true
	for range 600 {
		r.recv(r.link, m)
		r.wait(51 * time.Millisecond)
		r.done()
	}
	if n, err := ready(r); n != 1 || !errors.Is(err, ErrTimeout) {
		t.Errorf("for ever refused: %d, %v", n, err)
	}

	// No answer: the link is lost, and with it the group.
	r, _, _ = setup()
	r.wait(3 * time.Second)
	if n, err := ready(r); n != 1 || err == nil || len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) {
		t.Errorf("no answer: %d, %v, dead %v", n, err, r.dead)
	}
}

// TestRKeyRequests: the peer's RMBs.
func TestRKeyRequests(t *testing.T) {
	r := newRig(t, Client, noTest)
	r.open()
	key := func(k uint32) wire.ConfirmRKey { return wire.ConfirmRKey{This: wire.RToken{RKey: k, Addr: 7}} }
	r.recv(r.link, key(1))
	r.expect("re:confirm-rkey(0)")
	r.recv(r.link, key(1)) // again is fine
	r.expect("re:confirm-rkey(0)")
	if len(r.g.rtokens) != 2 {
		t.Errorf("%d RMBs", len(r.g.rtokens))
	}
	m := wire.DeleteRKey{Count: 3}
	m.RKeys = [8]uint32{5, 1, 6}
	r.recv(r.link, m)
	r.expect("re:delete-rkey(3)-negativea0")
	if len(r.g.rtokens) != 1 {
		t.Errorf("%d RMBs", len(r.g.rtokens))
	}
	for k := range uint32(300) {
		r.recv(r.link, key(1000+k))
		r.done()
	}
	if len(r.g.rtokens) != maxRMBs {
		t.Errorf("%d RMBs", len(r.g.rtokens))
	}
	r.sent()
	r.recv(r.link, key(1))
	r.expect("re:confirm-rkey(0)-negative")
	// Links that do not exist are skipped, and a continuation that nothing
	// came before is refused.
	m2 := key(1000)
	m2.Others = 1
	m2.Other[0].LinkNum = 77
	r.recv(r.link, m2)
	r.expect("re:confirm-rkey(1)")
	r.recv(r.link, wire.ConfirmRKeyCont{Left: 1})
	r.expect("re:confirm-rkey-continuation(1)")
	if len(r.dead) != 0 {
		t.Errorf("dead: %v", r.dead)
	}
}

// TestTestLink: a silent link is tested and one without answer is lost.
func TestTestLink(t *testing.T) {
	r := newRig(t, Server, nil)
	r.open()
	r.wait(29 * time.Second)
	r.expect("")
	r.give(1, 0) // a sign of life
	r.wait(2 * time.Second)
	r.expect("")
	r.wait(28 * time.Second)
	r.expect("test-link")
	r.recv(r.link, wire.TestLink{Reply: true, UserData: r.link.testData})
	r.wait(29 * time.Second)
	r.expect("")
	r.wait(2 * time.Second)
	r.expect("test-link")
	r.wait(2 * time.Second)
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrTimeout) || len(r.close) != 1 || !errors.Is(r.close[0], ErrReset) {
		t.Errorf("dead %v, closed %v", r.dead, r.close)
	}

	r = newRig(t, Client, nil)
	r.open()
	r.recv(r.link, wire.TestLink{UserData: [16]byte{1, 2, 3}})
	r.expect("re:test-link")
	if m, _ := wire.ParseTestLink(r.last); m.UserData != [16]byte{1, 2, 3} {
		t.Errorf("user data %v", m.UserData)
	}
	r.recv(r.link, wire.TestLink{Reply: true}) // nobody asked
	r.wait(31 * time.Second)
	r.expect("test-link")
	r.recv(r.link, wire.TestLink{Reply: true})
	if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrProtocol) {
		t.Errorf("wrong answer: dead %v", r.dead)
	}
}

// TestIdle: a group without connections ends after a while, by the server.
func TestIdle(t *testing.T) {
	s := started(t, 1, 1, nil)
	for _, h := range s.hosts {
		for _, p := range h.apps {
			p.c.Close(s.now)
			h.drain()
		}
	}
	s.pass(599 * time.Second)
	if s.hosts[0].gone || s.hosts[1].gone {
		t.Fatal("too early")
	}
	if !slices.Contains(s.trace, "s1:test-link") && !slices.Contains(s.trace, "c1:test-link") {
		t.Error("no TEST LINK")
	}
	s.trace = nil
	s.pass(2 * time.Second)
	s.flow("s1:delete-link-all")
	if !errors.Is(s.hosts[Server].deadE, ErrIdle) || !errors.Is(s.hosts[Client].deadE, ErrTerminated) {
		t.Errorf("dead: %v, %v", s.hosts[Server].deadE, s.hosts[Client].deadE)
	}
	s.finish()
}

// TestTerminate: from either side, all connections end at once.
func TestTerminate(t *testing.T) {
	for role, want := range map[Role]string{
		Server: "s1:delete-link-all",
		Client: "c1:delete-link-all s1:delete-link-all",
	} {
		s := started(t, 1, 1, noTest)
		s.trace = nil
		h := s.hosts[role]
		h.g.Terminate(s.now, wire.DeleteLinkOperator)
		h.g.Terminate(s.now, wire.DeleteLinkOperator)
		if h.g.CanAccept() {
			t.Error("takes connections")
		}
		if _, err := h.g.NewConn(s.now, 0, 1); !errors.Is(err, ErrGroupDead) {
			t.Errorf("NewConn: %v", err)
		}
		h.drain()
		s.settle()
		s.flow(want)
		for r, h := range s.hosts {
			if !h.gone {
				t.Errorf("%s is not gone", Role(r))
			}
			for _, p := range h.apps {
				want := ErrReset
				if h.role == role {
					want = ErrAborted
				}
				if !errors.Is(p.closeErr, want) {
					t.Errorf("%s: connection ended with %v", h.role, p.closeErr)
				}
			}
		}
		s.finish()
	}
	// A peer that does not take the message is left.
	r := newRig(t, Client, noTest)
	r.open()
	r.g.Terminate(r.s.now, wire.DeleteLinkOperator)
	r.expect("delete-link-all")
	r.wait(3 * time.Second)
	if len(r.dead) != 1 {
		t.Error("waits for ever")
	}
}

// TestViolations: messages that no sound peer sends.
func TestViolations(t *testing.T) {
	tests := []struct {
		name string
		msg  []byte
		dead bool
	}{
		{"unknown opcode", append([]byte{0x33, 44, 0, 0}, make([]byte, 40)...), true},
		{"optional opcode", append([]byte{0x8F, 44, 0, 0}, make([]byte, 40)...), false},
		{"optional opcode, other length", append([]byte{0xBF, 0, 0, 99}, make([]byte, 40)...), false},
		{"short", make([]byte, 10), true},
		{"empty", nil, true},
		{"wrong length", append([]byte{7, 43, 0, 0}, make([]byte, 40)...), true},
		{"too many RKeys", append([]byte{9, 44, 0, 0, 9}, make([]byte, 39)...), true},
		{"CDC of wrong length", append([]byte{0xFE, 43, 0, 0}, make([]byte, 40)...), true},
	}
	for _, tt := range tests {
		r := newRig(t, Server, noTest)
		r.open()
		r.g.Received(r.s.now, r.link, tt.msg)
		got := r.sent()
		if want := map[bool]string{true: "delete-link-all", false: ""}[tt.dead]; got != want {
			t.Errorf("%s: sent %q", tt.name, got)
		}
		if tt.dead {
			if m, _ := wire.ParseDeleteLink(r.last); m.Reason != wire.DeleteLinkProtocolViolation || m.Orderly {
				t.Errorf("%s: %+v", tt.name, m)
			}
			r.done()
			if len(r.dead) != 1 || !errors.Is(r.dead[0], ErrProtocol) || len(r.close) != 1 {
				t.Errorf("%s: dead %v, closed %v", tt.name, r.dead, r.close)
			}
		}
	}
}

// TestLinkDeletion has the flows of RFC 7609, sections 3.5.5.1.3 and
// 3.5.5.1.4.
func TestLinkDeletion(t *testing.T) {
	tests := []struct {
		name  string
		role  Role
		event func(s *sim, g *Group)
		flow  string
	}{
		{"server loses a link", Server, func(s *sim, g *Group) { g.LinkFailed(s.now, g.links[0], errAny) },
			"s2:delete-link(1) c2:re:delete-link(1)"},
		{"server loses the other link", Server, func(s *sim, g *Group) { g.LinkFailed(s.now, g.links[1], errAny) },
			"s1:delete-link(2) c1:re:delete-link(2)"},
		{"client loses a link", Client, func(s *sim, g *Group) { g.LinkFailed(s.now, g.links[0], errAny) },
			"c2:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
		{"device of the server", Server, func(s *sim, g *Group) { g.DeviceDown(s.now, 1) },
			"s1:delete-link(2) c1:re:delete-link(2)"},
		{"device of the client", Client, func(s *sim, g *Group) { g.DeviceDown(s.now, 0) },
			"c2:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
		{"client asks in order", Client, func(s *sim, g *Group) {
			g.links[0].sendLLC(wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator}, nothing, nil)
		}, "c1:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
		{"client asks for an unknown link", Client, func(s *sim, g *Group) {
			g.links[0].sendLLC(wire.DeleteLink{LinkNum: 9}, nothing, nil)
		}, "c1:delete-link(9) s1:re:delete-link(9)-unknown"},
		{"server deletes an unknown link", Server, func(s *sim, g *Group) {
			g.links[0].sendLLC(wire.DeleteLink{LinkNum: 9}, nothing, nil)
		}, "s1:delete-link(9) c1:re:delete-link(9)-unknown"},
		{"both lose the same link", Client, func(s *sim, g *Group) {
			g.LinkFailed(s.now, g.links[0], errAny)
			s.hosts[Client].drain()
			srv := s.group(Server)
			srv.LinkFailed(s.now, srv.links[0], errAny)
			s.hosts[Server].drain()
		}, "c2:delete-link(1) s2:delete-link(1) c2:re:delete-link(1)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := started(t, 2, 2, noTest)
			s.trace = nil
			g := s.group(tt.role)
			tt.event(s, g)
			s.hosts[tt.role].drain()
			s.settle()
			s.flow(tt.flow)
			if !strings.Contains(tt.name, "unknown") {
				if got := s.types(); got != "SINGLE/SINGLE" {
					t.Errorf("types %s", got)
				}
				for _, h := range s.hosts {
					if len(h.g.links) != 1 || h.g.links[0].ConnCount() != 1 || h.g.Conns() != 1 {
						t.Errorf("%s: %d links, %d connections", h.role, len(h.g.links), h.g.Conns())
					}
				}
			}
			s.finish()
		})
	}
}

// TestDeletionTimeouts: a deletion without answer costs the link that
// carries it (RFC 7609, appendix C.7.1).
func TestDeletionTimeouts(t *testing.T) {
	for _, role := range []Role{Server, Client} {
		s := started(t, 2, 2, noTest)
		s.block = func(from *host, _ *Link, msg []byte) bool { return strings.Contains(describe(msg), "delete-link(") }
		g := s.group(role)
		g.LinkFailed(s.now, g.links[0], errAny)
		s.hosts[role].drain()
		s.pass(10 * time.Second)
		if !s.hosts[role].gone || !errors.Is(s.hosts[role].deadE, ErrReset) {
			t.Errorf("%s: %v", role, s.hosts[role].deadE)
		}
		s.block = nil
		s.finish()
	}
}

// TestBothLinksLost: nothing is left but to reset.
func TestBothLinksLost(t *testing.T) {
	s := started(t, 2, 2, noTest)
	g := s.group(Server)
	l1, l2 := g.links[0], g.links[1]
	g.LinkFailed(s.now, l1, errAny)
	g.LinkFailed(s.now, l2, errAny)
	g.LinkFailed(s.now, l2, errAny)
	g.Sent(s.now, l1, 1)
	g.Received(s.now, l1, make([]byte, 44))
	g.Tick(s.now)
	g.DeviceUp(s.now, device(Server, 0))
	g.DeviceDown(s.now, 0)
	g.Terminate(s.now, wire.DeleteLinkOperator)
	s.hosts[Server].drain()
	for _, p := range s.hosts[Server].apps {
		if !errors.Is(p.closeErr, ErrReset) {
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
	up := func(role Role, i int) {
		s.group(role).DeviceUp(s.now, device(role, i))
		s.hosts[role].drain()
		s.settle()
	}
	// The client's second device: the server adds an asymmetric link.
	up(Client, 1)
	s.flow("c1:add-link s1:add-link " + strings.ReplaceAll(strings.ReplaceAll(add, "s2", "s3"), "c2", "c3"))
	if got := s.types(); got != "ASYMMETRIC_LOCAL/ASYMMETRIC_PEER" {
		t.Errorf("types %s", got)
	}
	up(Client, 1) // again
	s.flow("")
	// The server's second device: a symmetric link replaces it.
	up(Server, 1)
	if n := len(s.group(Server).Links()); n != 2 {
		t.Errorf("%d links", n)
	}
	if got := s.types(); got != "SYMMETRIC/SYMMETRIC" {
		t.Errorf("types %s", got)
	}
	if got := strings.Join(s.trace, " "); !strings.HasSuffix(got, ":confirm-link s3:delete-link(1) c3:re:delete-link(1)") {
		t.Errorf("flow %s", got)
	}
	// One more of each changes nothing: two links are enough.
	s.trace = nil
	up(Server, 2)
	up(Client, 2)
	s.flow("")
	// A device that dies is replaced by the spare one, after a while.
	s.group(Server).DeviceDown(s.now, 1)
	s.hosts[Server].drain()
	s.settle()
	if got := s.types(); got != "SINGLE/SINGLE" {
		t.Errorf("types %s", got)
	}
	s.pass(6 * time.Second)
	if got := s.types(); got != "SYMMETRIC/SYMMETRIC" {
		t.Errorf("types %s", got)
	}
	s.finish()
}

// TestAddLinkRetry: the server tries again, with growing pauses (RFC 7609,
// appendix C.8).
func TestAddLinkRetry(t *testing.T) {
	s := newSim(t, 1)
	s.addHost(Server, 2, noTest)
	s.addHost(Client, 2, noTest)
	s.dead[device(Server, 1).GID] = true
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
	delete(s.dead, device(Server, 1).GID)
	s.pass(60 * time.Second)
	if got := s.types(); got != "SYMMETRIC/SYMMETRIC" {
		t.Errorf("types %s", got)
	}
	s.finish()
}

// TestCollisions has the collisions of RFC 7609, section 3.5.5.3.
func TestCollisions(t *testing.T) {
	// CONFIRM RKEY of the client meets ADD LINK of the server: refused, and
	// repeated with the new link afterwards.
	s := started(t, 1, 2, func(c *Config) { noTest(c); c.RMBEsPerRMB = 1 })
	g := s.group(Server)
	g.LinkFailed(s.now, g.links[1], errAny)
	s.hosts[Server].drain()
	s.settle()
	s.trace = nil
	if _, err := s.hosts[Client].newApp(50, 0, 100); err != nil {
		t.Fatal(err)
	}
	g.addWanted = true
	g.Tick(s.now)
	s.hosts[Server].drain()
	s.settle()
	s.pass(100 * time.Millisecond)
	s.flow(`c1:confirm-rkey(0) s1:add-link s1:re:confirm-rkey(0)-negative-retry c1:re:add-link
		s1:add-link-continuation(1) c1:re:add-link-continuation(1) s3:confirm-link c3:re:confirm-link
		c1:confirm-rkey(1) s1:re:confirm-rkey(1)`)
	// TEST LINK is answered in the middle of an exchange.
	g.LinkFailed(s.now, g.links[1], errAny)
	s.hosts[Server].drain()
	s.settle()
	s.trace = nil
	g.addWanted = true
	g.Tick(s.now)
	s.group(Client).links[0].sendLLC(wire.TestLink{}, nothing, nil)
	s.hosts[Client].drain()
	s.hosts[Server].drain()
	s.settle()
	if !slices.Contains(s.trace, "s1:re:test-link") || s.types() != "ASYMMETRIC_LOCAL/ASYMMETRIC_PEER" {
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
	s.settle()
	if got := strings.Join(s.trace, " "); strings.Count(got, "re:confirm-rkey(1)") != 2 || strings.Contains(got, "negative") {
		t.Errorf("flow %s", got)
	}

	// DELETE LINK all ends any exchange.
	r := newRig(t, Client, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(false, r.link))
	r.recv(r.link, wire.AddLink{MAC: wire.MAC{5: 8}, GID: wire.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
	r.recv(r.link, wire.DeleteLink{All: true, Reason: wire.DeleteLinkOperator})
	if len(r.dead) != 1 || len(r.first) != 1 || !errors.Is(r.first[0], ErrTerminated) {
		t.Errorf("dead %v, outcome %v", r.dead, r.first)
	}

	// DELETE LINK of the client during ADD LINK waits.
	r = newRig(t, Server, noTest)
	r.begin()
	r.recv(r.link, r.confirmLink(true, r.link))
	r.expect("confirm-link add-link")
	r.recv(r.link, wire.AddLink{Reply: true, MAC: wire.MAC{5: 8}, GID: wire.GID{15: 8}, QPN: 0x901, LinkNum: 2, MTU: 3})
	r.expect("add-link-continuation(1)")
	r.recv(r.link, wire.DeleteLink{LinkNum: 1, Orderly: true, Reason: wire.DeleteLinkOperator})
	r.recv(r.link, wire.AddLink{}) // a wish: ignored
	r.expect("")
	r.recv(r.link, wire.AddLinkCont{Reply: true, LinkNum: 2, Left: 1, Pairs: [2]wire.RKeyPair{{RefRKey: peerRMB.RKey, New: wire.RToken{RKey: 0xBBBB, Addr: 9}}}})
	r.expect("confirm-link")
	l2 := r.g.links[1]
	r.recv(l2, r.confirmLink(true, l2))
	r.done()
	r.expect("delete-link(1)")
	r.recv(l2, wire.DeleteLink{Reply: true, LinkNum: 1})
	if len(r.g.links) != 1 || r.g.links[0] != l2 || len(r.first) != 1 || r.first[0] != nil {
		t.Errorf("links %d, outcome %v", len(r.g.links), r.first)
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
	r := newRig(t, Server, noTest)
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
	r := newRig(t, Server, noTest)
	if _, err := r.g.NewConn(r.s.now, 0, 1); !errors.Is(err, ErrSequence) {
		t.Errorf("NewConn: %v", err)
	}
	if err := r.g.ConnectFirst(r.s.now, peerEnd); !errors.Is(err, ErrSequence) {
		t.Errorf("ConnectFirst: %v", err)
	}
	if r.g.CanAccept() || r.g.HasLink(peerEnd.GID, peerEnd.MAC, 0) {
		t.Error("usable without a link")
	}
	r.open()
	if _, err := r.g.FirstLink(r.s.now); !errors.Is(err, ErrSequence) {
		t.Errorf("FirstLink: %v", err)
	}
	if _, err := r.g.NewConn(r.s.now, 16, 1); !errors.Is(err, ErrInvalidParams) {
		t.Errorf("NewConn: %v", err)
	}
	if !r.g.CanAccept() || !r.g.HasLink(peerEnd.GID, peerEnd.MAC, 0) || !r.g.HasLink(peerEnd.GID, peerEnd.MAC, peerEnd.QPN) || r.g.HasLink(peerEnd.GID, peerEnd.MAC, 1) {
		t.Error("HasLink, CanAccept")
	}

	r = newRig(t, Client, nil)
	r.g.DeviceDown(r.s.now, 0)
	if _, err := r.g.FirstLink(r.s.now); !errors.Is(err, ErrNoDevice) {
		t.Errorf("FirstLink: %v", err)
	}
	r.g.DeviceUp(r.s.now, device(Client, 0))
	if _, err := r.g.FirstLink(r.s.now); err != nil {
		t.Error(err)
	}
	if err := r.g.ConnectFirst(r.s.now, Endpoint{QPN: 1, MTU: 9}); !errors.Is(err, ErrInvalidParams) {
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
	r := newRig(t, Server, func(c *Config) { noTest(c); c.MaxConns = 3 })
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
