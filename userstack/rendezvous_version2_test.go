// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/wire"
)

// withEIDs gives both stacks of a bed enterprise IDs.
func (b *bed) withEIDs(client, server []string) {
	b.t.Helper()
	for _, x := range []struct {
		s    *Stack
		eids []string
	}{{b.client, client}, {b.server, server}} {
		for _, e := range x.eids {
			if err := x.s.Control().AddUEID(b.t.Context(), e); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// TestVersion2 connects two stacks with a common enterprise ID.
func TestVersion2(t *testing.T) {
	for _, devices := range []int{1, 2} {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{devices: devices})
			b.withEIDs([]string{"OTHER", "COMMON-1"}, []string{"COMMON-1", "THIRD"})
			c, s := b.connect()
			b.exchange(c, s, pattern(1, 300<<10))
			b.exchange(s, c, pattern(2, 300<<10))
			c2, s2 := b.connect() // on the same link group
			b.exchange(c2, s2, pattern(3, 100<<10))
			for _, x := range []*Stack{b.client, b.server} {
				peer := b.server
				if x == b.server {
					peer = b.client
				}
				g := one(t, x.Control().LinkGroups)
				want := &nl.V2Common{Version: 2, Release: 1, OS: smc.OSLinux, EID: "COMMON-1", PeerHost: peer.cfg.Hostname}
				if diff := cmp.Diff(want, g.V2); diff != "" {
					t.Errorf("%s: V2 (-want +got):\n%s", x.cfg.Hostname, diff)
				}
				if diff := cmp.Diff(&nl.V2R{Direct: true, MaxConns: 255, MaxLinks: 2}, g.V2R); diff != "" {
					t.Errorf("%s: V2R (-want +got):\n%s", x.cfg.Hostname, diff)
				}
				if g.Conns != 2 || g.PeerID != peer.reg.peerID || int(g.Links) != devices {
					t.Errorf("%s: %+v", x.cfg.Hostname, g)
				}
				for _, l := range list(t, x.Control().Links) {
					if _, ok := l.GID.IPv4(); !ok {
						t.Errorf("%s: GID %v of a link of version 2", x.cfg.Hostname, l.GID)
					}
				}
			}
			b.finish(c, s)
			b.finish(c2, s2)
		})
	}
}

// TestVersion1Chosen: stacks without a common enterprise ID use version 1.
func TestVersion1Chosen(t *testing.T) {
	for _, eids := range [][2][]string{{{"A"}, {"B"}}, {{"A"}, nil}, {nil, {"A"}}} {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{})
			b.withEIDs(eids[0], eids[1])
			c, s := b.connect()
			b.exchange(c, s, pattern(1, 1000))
			if g := one(t, b.server.Control().LinkGroups); g.V2 != nil {
				t.Errorf("EIDs %v: version %d", eids, g.Version())
			}
			b.finish(c, s)
		})
	}
}

// offering returns a proposal like that of Linux over soft-RoCE: only version 2, without
// peer ID and MAC.
func offering(t *testing.T, edit func(*wire.Offer)) wire.Proposal {
	t.Helper()
	id, err := wire.ParseEID("COMMON-1")
	if err != nil {
		t.Fatal(err)
	}
	o := wire.Offer{
		Mode: wire.ModeR, EIDs: []wire.EID{id}, GID: smc.GIDFromIPv4(addr(1, 0)),
		Release: wire.ReleaseV21, MaxConns: 255, MaxLinks: 2,
	}
	if edit != nil {
		edit(&o)
	}
	p, err := wire.Proposal{TypeV1: wire.ModeNone}.WithOffer(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOffers plays clients of version 2 for a server.
func TestOffers(t *testing.T) {
	tests := []struct {
		name string
		edit func(*wire.Offer)
		want smc.Diagnosis // 0 means ACCEPT
		ext  wire.FirstContactExt
	}{
		{"AsLinux", nil, 0, wire.FirstContactExt{Release: 1, MaxConns: 255, MaxLinks: 2}},
		{"Smaller", func(o *wire.Offer) { o.MaxConns, o.MaxLinks = 16, 1 }, 0, wire.FirstContactExt{Release: 1, MaxConns: 16, MaxLinks: 1}},
		{"Larger", func(o *wire.Offer) { o.Release, o.MaxLinks = 2, 9 }, 0, wire.FirstContactExt{Release: 1, MaxConns: 255, MaxLinks: 2}},
		{"Release0", func(o *wire.Offer) { o.Release, o.MaxConns, o.MaxLinks = 0, 0, 0 }, 0, wire.FirstContactExt{}},
		{"FewConns", func(o *wire.Offer) { o.MaxConns = 15 }, smc.DiagMaxConns, wire.FirstContactExt{}},
		{"NoLinks", func(o *wire.Offer) { o.MaxLinks = 0 }, smc.DiagMaxLinks, wire.FirstContactExt{}},
		{"NoEID", func(o *wire.Offer) { o.EIDs = nil }, smc.DiagNoUEID, wire.FirstContactExt{}},
		{"ForeignGID", func(o *wire.Offer) { o.GID = smc.GID{0: 0xfe, 1: 0x80, 15: 1} }, smc.DiagNoRoute, wire.FirstContactExt{}},
		{"SMCDAlone", func(o *wire.Offer) { o.Mode, o.SMCD = wire.ModeD, &wire.SMCDOffer{} }, smc.DiagModeMismatch, wire.FirstContactExt{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				b.withEIDs(nil, []string{"COMMON-1"})
				ct, st := b.tcp()
				done := ended(t, b.server.Server, st)
				p := scripted{t, ct}
				p.send(offering(t, tt.edit))
				if tt.want != 0 {
					if d := as[wire.Decline](p); d.Diagnosis != tt.want || tt.name != "SMCDAlone" && (d.Version != wire.Version2 || d.OSType != smc.OSLinux) {
						t.Errorf("declined: %+v, want %v", d, tt.want)
					}
					wantDecline(t, "server", <-done, tt.want, false)
					return
				}
				a := as[wire.AcceptV2](p)
				tt.ext.Direct, tt.ext.OS, tt.ext.Hostname = true, smc.OSLinux, wire.NewHostname("server")
				if diff := cmp.Diff(&tt.ext, a.FirstContact); diff != "" {
					t.Errorf("first contact (-want +got):\n%s", diff)
				}
				if a.EID.String() != "COMMON-1" || a.GID != smc.GIDFromIPv4(addr(2, 0)) || a.MAC == (smc.MAC{}) {
					t.Errorf("ACCEPT %+v", a)
				}
				p.send(wire.Decline{Diagnosis: smc.DiagMem})
				wantDecline(t, "server", <-done, smc.DiagMem, true)
			})
		})
	}
}

// TestAnswers plays servers of version 2 for a client that also offers version 1.
func TestAnswers(t *testing.T) {
	accept := func(id wire.EID) wire.AcceptV2 {
		e := endpointOf(1)
		e.GID = smc.GIDFromIPv4(addr(2, 0))
		return wire.AcceptV2{Endpoint: e, EID: id, FirstContact: &wire.FirstContactExt{
			Direct: true, OS: smc.OSLinux, Release: 1, Hostname: wire.NewHostname("peer"), MaxConns: 20, MaxLinks: 1,
		}}
	}
	tests := []struct {
		name string
		edit func(*wire.AcceptV2)
		want smc.Diagnosis // 0 means CONFIRM
	}{
		{"Good", func(*wire.AcceptV2) {}, 0},
		{"ForeignEID", func(a *wire.AcceptV2) { a.EID[0]++ }, smc.DiagNoUEID},
		{"Release", func(a *wire.AcceptV2) { a.FirstContact.Release = 2 }, smc.DiagRelease},
		{"FewConns", func(a *wire.AcceptV2) { a.FirstContact.MaxConns = 15 }, smc.DiagMaxConns},
		{"NoLinks", func(a *wire.AcceptV2) { a.FirstContact.MaxLinks = 0 }, smc.DiagMaxLinks},
		{"ManyLinks", func(a *wire.AcceptV2) { a.FirstContact.MaxLinks = 3 }, smc.DiagMaxLinks},
		{"Routed", func(a *wire.AcceptV2) { a.FirstContact.Direct = false }, smc.DiagIndirect},
		{"UnknownGroup", func(a *wire.AcceptV2) { a.FirstContact = nil }, smc.DiagSync},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				b.withEIDs([]string{"COMMON-1"}, nil)
				ct, st := b.tcp()
				done := ended(t, b.client.Client, ct)
				p := scripted{t, st}
				prop := as[wire.Proposal](p)
				o, err := prop.Offer()
				if err != nil || !prop.TypeV1.HasR() || prop.PeerID == (smc.PeerID{}) || o.GID != smc.GIDFromIPv4(addr(1, 0)) || o.Release != 1 || o.MaxConns != 255 || o.MaxLinks != 2 {
					t.Errorf("PROPOSAL %+v, %+v, %v", prop, o, err)
				}
				a := accept(o.EIDs[0])
				tt.edit(&a)
				p.send(a)
				if tt.want != 0 {
					if d := as[wire.Decline](p); d.Diagnosis != tt.want || d.Version != wire.Version2 || d.OutOfSync != (tt.want == smc.DiagSync) {
						t.Errorf("declined: %+v, want %v", d, tt.want)
					}
					wantDecline(t, "client", <-done, tt.want, false)
					return
				}
				c := as[wire.ConfirmV2](p)
				want := &wire.FirstContactExt{Direct: true, OS: smc.OSLinux, Release: 1, Hostname: wire.NewHostname("client"), MaxConns: 20, MaxLinks: 1}
				if diff := cmp.Diff(want, c.FirstContact); diff != "" {
					t.Errorf("first contact (-want +got):\n%s", diff)
				}
				if c.EID != a.EID || len(c.GIDs) != 1 || c.GIDs[0] != o.GID || c.GID != o.GID {
					t.Errorf("CONFIRM %+v", c)
				}
				p.send(wire.Decline{Version: wire.Version2, OSType: smc.OSLinux, Diagnosis: smc.DiagMem})
				wantDecline(t, "client", <-done, smc.DiagMem, true)
			})
		})
	}
}

// TestNoVersion2: a stack with only version 1 has no enterprise IDs.
func TestNoVersion2(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{client: func(c *Config) { c.NoVersion2 = true }})
		c := b.client.Control()
		if err := c.AddUEID(t.Context(), "A"); !errors.Is(err, nl.ErrNotSupported) {
			t.Errorf("AddUEID: %v", err)
		}
		if i := list(t, c.SysInfo); i.Version != 1 || i.SMCRv2 {
			t.Errorf("SysInfo: %+v", i)
		}
	})
}
