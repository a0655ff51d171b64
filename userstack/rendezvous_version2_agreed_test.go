// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// TestConfirms plays clients of version 2 for a server: their CONFIRM must repeat what
// the server chose, otherwise the server declines, like Linux
// (smc_clc_v2x_features_confirm_check).
func TestConfirms(t *testing.T) {
	old := func(o *wire.Offer) { o.Release, o.MaxConns, o.MaxLinks = 0, 0, 0 }
	for _, tt := range []struct {
		name  string
		offer func(*wire.Offer)
		edit  func(*wire.ConfirmV2)
		want  smc.Diagnosis
	}{
		// There is no answer to CONFIRM LINK.
		{"Same", nil, func(*wire.ConfirmV2) {}, smc.DiagNoPath},
		{"SameRelease0", old, func(*wire.ConfirmV2) {}, smc.DiagNoPath},
		{"Release", nil, func(c *wire.ConfirmV2) { c.FirstContact.Release = 0 }, smc.DiagRelease},
		{"HigherRelease", nil, func(c *wire.ConfirmV2) { c.FirstContact.Release = 2 }, smc.DiagRelease},
		{"ReleaseInAnswerTo0", old, func(c *wire.ConfirmV2) { c.FirstContact.Release = 1 }, smc.DiagRelease},
		{"FewerConns", nil, func(c *wire.ConfirmV2) { c.FirstContact.MaxConns-- }, smc.DiagMaxConns},
		{"OtherLinks", nil, func(c *wire.ConfirmV2) { c.FirstContact.MaxLinks = 1 }, smc.DiagMaxLinks},
		{"NoExtension", nil, func(c *wire.ConfirmV2) { c.FirstContact, c.GIDs = nil, nil }, smc.DiagInternal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				b.withEIDs(nil, []string{"COMMON-1"})
				ct, st := b.tcp()
				done := ended(t, b.server.Server, st)
				p := scripted{t, ct}
				p.send(offering(t, tt.offer))
				a := as[wire.AcceptV2](p)
				e := endpointOf(1)
				e.GID = smc.GIDFromIPv4(addr(1, 0))
				c := wire.ConfirmV2{Endpoint: e, EID: a.EID, FirstContact: a.FirstContact, GIDs: []smc.GID{e.GID}}
				tt.edit(&c)
				p.send(c)
				d := as[wire.Decline](p)
				if d.Diagnosis != tt.want || d.Version != wire.Version2 || d.OSType != smc.OSLinux || d.OutOfSync {
					t.Errorf("declined: %+v, want %v", d, tt.want)
				}
				wantDecline(t, "server", <-done, tt.want, false)
			})
		})
	}
}

// TestConfirmOfOtherVersion: after an ACCEPT of version 2, a CONFIRM of version 1 is a
// protocol error, and so is an ACCEPT of a version that was not offered.
func TestConfirmOfOtherVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.withEIDs(nil, []string{"COMMON-1"})
		ct, st := b.tcp()
		done := ended(t, b.server.Server, st)
		p := scripted{t, ct}
		p.send(offering(t, nil))
		as[wire.AcceptV2](p)
		p.send(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
		wantBroken(t, <-done, ct)
	})
	accept := func(v2 bool) wire.CLC {
		if !v2 {
			return wire.Accept{FirstContact: true, Endpoint: endpointOf(1)}
		}
		return wire.AcceptV2{Endpoint: endpointOf(1), FirstContact: &wire.FirstContactExt{Direct: true, Release: 1, MaxConns: 16, MaxLinks: 1}}
	}
	for _, v2 := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{client: func(c *Config) {
				if !v2 { // offers only version 2
					behindRouter(c)
				}
			}})
			if !v2 {
				b.withEIDs([]string{"COMMON-1"}, nil)
			}
			ct, st := b.tcp()
			done := ended(t, b.client.Client, ct)
			p := scripted{t, st}
			prop := as[wire.Proposal](p)
			if prop.TypeV1.HasR() != v2 || prop.TypeV2.HasR() == v2 {
				t.Errorf("offered %s and %s", prop.TypeV1, prop.TypeV2)
			}
			start := time.Now()
			p.send(accept(v2))
			wantBroken(t, <-done, ct)
			if d := time.Since(start); d > time.Second { // later, the server would wait for CONFIRM LINK
				t.Errorf("noticed after %v", d)
			}
		})
	}
}

// TestEIDOrder: if there are several common enterprise IDs, the server chooses the first
// one in the proposal, like Linux (smc_clc_match_eid).
func TestEIDOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.withEIDs([]string{"OTHER", "C", "A", "B"}, []string{"A", "B", "C"})
		c, s := b.connect()
		for _, x := range []*Stack{b.client, b.server} {
			if g := one(t, x.Control().LinkGroups); g.V2 == nil || g.V2.EID != "C" {
				t.Errorf("%s: %+v, want enterprise ID C", x.cfg.Hostname, g.V2)
			}
		}
		b.finish(c, s)
	})
}

// TestEIDChanges: added and removed enterprise IDs apply from the next connection on.
// Open connections do not change.
func TestEIDChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		var open [][2]*Conn
		next := func(version uint8, eid string) {
			t.Helper()
			c, s := b.connect()
			for _, x := range []*Conn{c, s} {
				row, _, _, _ := x.d.Carrier()
				if v := row.Version(); v != version || v == 2 && row.V2.EID != eid {
					t.Errorf("%s: version %d, terms %+v, want %d and %q", row.Role, v, row.V2, version, eid)
				}
			}
			open = append(open, [2]*Conn{c, s})
			for i, p := range open {
				b.exchange(p[0], p[1], pattern(uint64(i), 10<<10))
				b.exchange(p[1], p[0], pattern(uint64(i), 10<<10))
			}
		}
		client, server := b.client.Control(), b.server.Control()
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		next(1, "")
		check(client.AddUEID(t.Context(), "A"))
		next(1, "") // the server has none
		check(server.AddUEID(t.Context(), "A"))
		next(2, "A")
		check(server.AddUEID(t.Context(), "B"))
		check(client.AddUEID(t.Context(), "B"))
		check(client.RemoveUEID(t.Context(), "A"))
		next(2, "B")
		check(server.RemoveUEID(t.Context(), "B"))
		next(1, "")
		check(client.FlushUEID(t.Context()))
		check(client.AddUEID(t.Context(), "A"))
		next(2, "A")
		check(server.FlushUEID(t.Context()))
		next(1, "")
		for _, p := range open {
			b.finish(p[0], p[1])
		}
	})
}

// TestGroupOfOtherEID: a Linux server puts a connection on its link group with the
// client, even if another enterprise ID was agreed on for this group (smcr_lgr_match). A
// client that declined would lose the group with all its connections.
func TestGroupOfOtherEID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.withEIDs([]string{"A", "B"}, []string{"A"})
		c, s := b.connect()
		if err := b.client.Control().RemoveUEID(t.Context(), "A"); err != nil {
			t.Fatal(err)
		}
		var named linkgroup.ConnParams
		s.d.View(func(core *linkgroup.Conn) { named = core.Local() })
		ct, st := b.tcp()
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := scripted{t, st}
			o, err := as[wire.Proposal](p).Offer()
			if err != nil || len(o.EIDs) != 1 || o.EIDs[0].String() != "B" {
				t.Errorf("offer %+v, %v", o, err)
				return
			}
			named.Token, named.Index = named.Token+1, named.Index+1
			p.send(wire.AcceptV2{Endpoint: endpoint(b.server.peerIDNow(), named), EID: o.EIDs[0]})
			if m := as[wire.ConfirmV2](p); m.EID != o.EIDs[0] || m.FirstContact != nil {
				t.Errorf("CONFIRM %+v", m)
			}
		}()
		c2, err := b.client.Client(t.Context(), ct)
		<-done
		if err != nil {
			t.Fatal(err)
		}
		if c2.group() != c.group() {
			t.Error("not on the known link group")
		}
		c2.SetLinger(0)
		c2.Close()
		ct.Close()
		st.Close()
		b.exchange(c, s, pattern(1, 1000))
		b.finish(c, s)
	})
}

// TestConfirmedGIDs: CONFIRM lists the GID of the link and of at most one more device,
// like Linux (smc_fill_gid_list).
func TestConfirmedGIDs(t *testing.T) {
	for devices, want := range map[int]int{1: 1, 2: 2, 3: 2} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{devices: devices})
				b.withEIDs([]string{"A"}, []string{"A"})
				x, y := b.tcp()
				ct := &recorder{TCPConn: x}
				c, s, cerr, serr := b.rendezvous(ct, y)
				if cerr != nil || serr != nil {
					t.Fatal(cerr, serr)
				}
				m, err := wire.ParseConfirmV2(ct.sent[1])
				if err != nil {
					t.Fatal(err)
				}
				if len(m.GIDs) != want || m.GIDs[0] != m.GID || slices.Contains(m.GIDs[1:], m.GID) {
					t.Errorf("GIDs %v of a link to %v, want %d", m.GIDs, m.GID, want)
				}
				b.finish(c, s)
			})
		})
	}
}

// TestAgreedMTU: ACCEPT has the path MTU of the server's device, CONFIRM has the smaller
// one of both sides. The link uses this one, up to 4096 bytes.
func TestAgreedMTU(t *testing.T) {
	for _, tt := range [][3]smc.MTU{
		{smc.MTU4096, smc.MTU1024, smc.MTU1024},
		{smc.MTU1024, smc.MTU4096, smc.MTU1024},
		{smc.MTU4096, smc.MTU4096, smc.MTU4096},
	} {
		for _, eids := range [][]string{nil, {"A"}} {
			bubble(t, func(t *testing.T) {
				b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
				t.Cleanup(b.w.Close)
				t.Cleanup(b.noObjects)
				host := func(n int, name string, mtu smc.MTU) *simfabric.Host {
					devs := netdevs(n, 1)
					devs[0].MTU = mtu
					return b.w.Host(name, devs...)
				}
				b.ch, b.sh = host(1, "client", tt[0]), host(2, "server", tt[1])
				b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
				b.withEIDs(eids, eids)
				x, y := b.tcp()
				ct, st := &recorder{TCPConn: x}, &recorder{TCPConn: y}
				c, s, cerr, serr := b.rendezvous(ct, st)
				if cerr != nil || serr != nil {
					t.Fatal(cerr, serr)
				}
				// The code is the low half of byte 50 in either version.
				if got := smc.MTU(st.sent[0][50] & 15); got != tt[1] {
					t.Errorf("%v: ACCEPT names MTU code %d", tt, got)
				}
				if got := smc.MTU(ct.sent[1][50] & 15); got != tt[2] {
					t.Errorf("%v: CONFIRM names MTU code %d", tt, got)
				}
				for _, x := range []*Conn{c, s} {
					if lg := x.LinkGroup(); lg.Links[0].MTU != uint32(tt[2].Bytes()) {
						t.Errorf("%v: %s has a link of MTU %d", tt, lg.Role, lg.Links[0].MTU)
					}
				}
				b.exchange(c, s, pattern(1, 100<<10))
				b.exchange(s, c, pattern(2, 100<<10))
				b.finish(c, s)
			})
		}
	}
}

// TestVersion2OverIPv4: over IPv6, version 1 is used, even if both sides have an
// enterprise ID and IPv4 addresses.
func TestVersion2OverIPv4(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &bed{t: t, w: simfabric.New(simfabric.Config{})}
		t.Cleanup(b.w.Close)
		t.Cleanup(b.noObjects)
		six := func(n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("fd00::%d/64", n)) }
		host := func(n int, name string) *simfabric.Host {
			devs := netdevs(n, 1)
			devs[0].Addrs = append(devs[0].Addrs, six(n))
			return b.w.Host(name, devs...)
		}
		b.ch, b.sh = host(1, "client"), host(2, "server")
		b.client, b.server = b.stack(b.ch, nil), b.stack(b.sh, nil)
		b.withEIDs([]string{"A"}, []string{"A"})
		x, y, err := b.w.Connect(netip.AddrPortFrom(six(1).Addr(), 0), netip.AddrPortFrom(six(2).Addr(), 80))
		if err != nil {
			t.Fatal(err)
		}
		ct := &recorder{TCPConn: x}
		c, s, cerr, serr := b.rendezvous(ct, y)
		if cerr != nil || serr != nil {
			t.Fatal(cerr, serr)
		}
		prop, err := wire.ParseProposal(ct.sent[0])
		if err != nil || prop.TypeV2.HasR() || !slices.Equal(prop.IPv6, []netip.Prefix{six(1).Masked()}) {
			t.Errorf("PROPOSAL %+v, %v", prop, err)
		}
		if v := s.group().Version(); v != wire.Version1 {
			t.Errorf("version %d", v)
		}
		c2, s2 := b.connect() // over IPv4
		if v := s2.group().Version(); v != wire.Version2 {
			t.Errorf("version %d over IPv4", v)
		}
		b.exchange(c, s, pattern(1, 10<<10))
		b.finish(c, s)
		b.finish(c2, s2)
	})
}

// TestAgreedConns: a link group has at most the number of connections that was agreed on.
func TestAgreedConns(t *testing.T) {
	few := func(c *Config) { c.MaxConns = 5 } // version 2 requires at least 16
	for name, c := range map[string]bedConfig{"Client": {client: few}, "Both": {client: few, server: func(c *Config) { c.MaxConns = 20 }}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, c)
				b.withEIDs([]string{"A"}, []string{"A"})
				var open [][2]*Conn
				for range rendezvous.MinConnsV2 + 1 {
					c, s := b.connect()
					open = append(open, [2]*Conn{c, s})
				}
				for _, x := range []*Stack{b.client, b.server} {
					list := list(t, x.Control().LinkGroups)
					if len(list) != 2 || list[0].Conns+list[1].Conns != rendezvous.MinConnsV2+1 || list[0].V2R.MaxConns != rendezvous.MinConnsV2 {
						t.Errorf("%s: link groups %+v", x.cfg.Hostname, list)
					}
				}
				for _, p := range open {
					b.finish(p[0], p[1])
				}
			})
		})
	}
}

// TestOneLinkRelease0: with a peer of release 0, the number of links is not agreed on,
// but a limit of one link is kept.
func TestOneLinkRelease0(t *testing.T) {
	one := func(c *Config) { c.MaxLinks = 1 }
	old := func(c *Config) { c.tune.release0 = true }
	for name, c := range map[string]bedConfig{
		"ClientWantsOne": {devices: 2, client: one, server: old},
		"ServerWantsOne": {devices: 2, client: old, server: one},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, c)
				b.withEIDs([]string{"A"}, []string{"A"})
				c, s := b.connect()
				time.Sleep(10 * time.Second)
				for _, x := range []*Stack{b.client, b.server} {
					if n := b.links(x); n != 1 {
						t.Errorf("%s: %d links", x.cfg.Hostname, n)
					}
				}
				b.finish(c, s)
			})
		})
	}
}

// TestOrderOfLinux: the first LLC message to a Linux peer of version 2 has its length in
// the byte order of Linux. A server knows from CONFIRM that the peer is Linux.
func TestOrderOfLinux(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var first []byte
		b := newBed(t, bedConfig{fabric: simfabric.Config{Alter: func(_, _ simfabric.Place, msg []byte) ([]byte, bool) {
			if first == nil {
				first = slices.Clone(msg)
			}
			return msg, true
		}}})
		b.withEIDs([]string{"A"}, []string{"A"})
		b.finish(b.connect())
		if len(first) < 4 || !slices.Equal(first[:4], []byte{0x21, 44, 0, 3}) {
			t.Errorf("first message % x, want CONFIRM LINK", first)
		}
	})
}

// TestTwoClientsWithoutID: clients that offer only version 2 have no peer ID. One that
// does not continue does not delay others.
func TestTwoClientsWithoutID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.withEIDs(nil, []string{"COMMON-1"})
		var tcp []*simfabric.TCPConn
		done := make(chan error, 2)
		start := time.Now()
		for i := range 2 {
			ct, st := b.tcp()
			tcp = append(tcp, ct)
			go func() {
				_, err := b.server.Server(t.Context(), st)
				done <- err
			}()
			p := scripted{t, ct}
			p.send(offering(t, func(o *wire.Offer) { o.GID = smc.GIDFromIPv4(addr(1, i)) }))
			as[wire.AcceptV2](p)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("the second client waited %v", d)
		}
		for _, ct := range tcp {
			scripted{t, ct}.send(wire.Decline{Diagnosis: smc.DiagMem})
			wantDecline(t, "server", <-done, smc.DiagMem, true)
		}
	})
}
