// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// TestCarrierLost: the link that carries an ADD LINK exchange fails in the middle, after
// the message word. No message is repeated over the other link: the server deletes the
// link, and begins the exchange again, with a new link number, when that is done (RFC 7609,
// section 2.3).
func TestCarrierLost(t *testing.T) {
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		begun := ""
		for i, word := range []string{"add-link", "re:add-link", "add-link-continuation(1)", "confirm-link"} {
			begun += " " + []string{"s2:add-link", "c2:re:add-link", "s2:add-link-continuation(1)", "c2:re:add-link-continuation(1) s4:confirm-link"}[i]
			s := started(t, 3, 3, func(c *Config) { noTest(c); c.MaxLinks = 3 })
			s.runUntilIdle()
			g := s.group(smc.Server)
			// Two of three links are left.
			g.LinkFailed(s.now, g.links.list[2], errAny)
			s.hosts[smc.Server].drain()
			s.runUntilIdle()
			if n := len(g.links.list); n != 2 {
				t.Fatalf("%d links", n)
			}
			hit := false
			tap := s.tap
			s.tap = func(from *host, l *Link, msg []byte) {
				tap(from, l, msg)
				if describe(msg) != word || hit {
					return
				}
				hit = true
				h := s.hosts[role]
				via := l
				if word == "confirm-link" { // that one is on the new link
					via = g.llc.ex.link
					if role == smc.Client {
						via = s.group(smc.Client).llc.ex.link
					}
				} else if l.g != h.g {
					via = h.g.links.byID(l.id)
				}
				s.after(0, func() { h.g.LinkFailed(s.now, via, errAny); h.drain() })
			}
			s.trace = nil
			g.adding.wanted = true
			g.Tick(s.now)
			s.hosts[smc.Server].drain()
			s.pass(30e9)
			if !hit {
				t.Fatalf("%s, %s: not seen: %v", role, word, s.trace)
			}
			s.flow(begun + " " + afterCarrierLost[role][word == "confirm-link"])
			for _, h := range s.hosts {
				if h.gone || h.g.Conns() != 1 || h.g.Type() != smc.GroupSymmetric {
					t.Errorf("%s, %s: %s: gone %v, %s, flow %s", role, word, h.role, h.gone, h.g.Type(), strings.Join(s.trace, " "))
				}
				for _, l := range h.g.Links() {
					if l.state != smc.LinkActive {
						t.Errorf("%s, %s: %s: link %d is %s", role, word, h.role, l.id, l.state)
					}
				}
			}
			s.finish()
		}
	}
}

// afterCarrierLost is what follows in TestCarrierLost, by the role that loses the link and
// whether it is the new link that is lost.
var afterCarrierLost = [2]map[bool]string{
	smc.Server: {
		false: "s1:delete-link(2) c1:re:delete-link(2)" + addedAgain,
		true: `s2:delete-link(4) c2:re:delete-link(4)
			s2:add-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s5:confirm-link c5:re:confirm-link`,
	},
	smc.Client: {
		false: "c1:delete-link(2) s1:delete-link(2) c1:re:delete-link(2)" + addedAgain,
		true: `c2:delete-link(4) s2:delete-link(4) c2:re:delete-link(4)
			s2:add-link c2:re:add-link s2:add-link-continuation(1) c2:re:add-link-continuation(1) s5:confirm-link c5:re:confirm-link`,
	},
}

// addedAgain is how links 5 and 6 replace link 2, which was lost, and link 4, which was
// not added.
const addedAgain = ` s1:delete-link(4) c1:re:delete-link(4)-unknown
	s1:add-link c1:re:add-link s1:add-link-continuation(1) c1:re:add-link-continuation(1) s5:confirm-link c5:re:confirm-link
	s5:add-link c5:re:add-link s5:add-link-continuation(1) c5:re:add-link-continuation(1) s6:confirm-link c6:re:confirm-link`

// TestLargeWrites: one message announces at most 128 KiB.
func TestLargeWrites(t *testing.T) {
	r := newRig(t, smc.Server, noTest)
	r.open()
	c, err := r.g.NewConn(r.s.now, 5, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	p := peerRMB
	p.Index, p.Token, p.SizeCode = 1, 9, 5
	p.RKey = 0xCCCC
	r.recv(r.link, wire.ConfirmRKey{This: smc.RToken{RKey: p.RKey, Addr: p.VAddr}})
	if err := c.Attach(r.s.now, p); err != nil {
		t.Fatal(err)
	}
	r.acts = nil
	produce(c, r.s.now, 1<<20)
	total := 0
	for range 10 {
		r.done()
	}
	for _, a := range r.acts {
		if a.Kind == ActWrite {
			total += a.Len
			if a.Len != 128<<10 {
				t.Errorf("write of %d bytes", a.Len)
			}
		}
	}
	if total != 512<<10 {
		t.Errorf("%d bytes into an element of 512 KiB", total)
	}
}

// TestListing checks what listings show.
func TestListing(t *testing.T) {
	s := newSim(t, 1)
	s.addHost(smc.Server, 2, func(c *Config) {
		noTest(c)
		c.LocalPeerID, c.PeerID, c.VLAN = smc.PeerID{1}, smc.PeerID{2}, 7
	})
	s.addHost(smc.Client, 2, noTest)
	srv, cli := s.connectFirst(0, 4096)
	srv.manual, cli.manual = true, true
	g := s.group(smc.Server)
	if g.ID() != [4]byte{0, 0, 2, 0} || g.Role() != smc.Server || g.LocalPeerID() != (smc.PeerID{1}) || g.PeerID() != (smc.PeerID{2}) || g.VLAN() != 7 || g.MaxLinks() != 2 || g.MaxConns() != 255 || g.Version() != wire.Version1 {
		t.Error("group")
	}
	l := g.Links()[0]
	if l.UID() != 0x201 || l.PeerUID() != 0x101 || l.Dev().Name != "rxe0" || l.ConnCount() != 1 {
		t.Errorf("link %#x %#x %s %d", l.UID(), l.PeerUID(), l.Dev().Name, l.ConnCount())
	}
	a, _, _ := srv.c.SendSpace(5, 0)
	copy(a, "hello")
	srv.c.Produced(s.now, 5)
	srv.h.drain()
	s.runUntilIdle()
	want := conn.Info{
		Token: srv.c.Token(), SendBuf: 4096, RMBE: 16384, PeerRMBE: 16384, TxProd: wire.Cursor{Count: 5},
		TxPrep: wire.Cursor{Count: 5}, TxSent: wire.Cursor{Count: 5}, TxFin: wire.Cursor{Count: 5},
	}
	if got := srv.c.Info(); got != want {
		t.Errorf("info %+v\nwant %+v", got, want)
	}
	if got := cli.c.Info(); got.RxProd.Count != 5 || got.RxCons.Count != 0 {
		t.Errorf("peer's info %+v", got)
	}
	if srv.c.Link() != l || srv.c.Group() != g || srv.c.State() != smc.StateActive {
		t.Error("connection")
	}
	for v, want := range map[interface{ String() string }]string{
		ActSend: "send", ActGroupDead: "group-dead", ActionKind(0): "action(0)", ActionKind(99): "action(99)",
	} {
		if got := v.String(); got != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	s.finish()
}
