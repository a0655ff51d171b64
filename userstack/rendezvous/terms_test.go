// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net/netip"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// code is the diagnosis of a refusal; 0 for none.
func code(no *Refusal) smc.Diagnosis {
	if no == nil {
		return 0
	}
	return no.Code
}

// TestServerChooses: a server takes the lower one of both releases, and from release 1 on
// the lower one of both numbers of connections and links. As with Linux, a link group has
// 16 to 255 connections and at least one link: with less, the server declines and says what
// did not fit. In release 0 the client's numbers are reserved, and only the server's count.
func TestServerChooses(t *testing.T) {
	type numbers struct{ release, conns, links uint8 }
	for _, tt := range []struct {
		name         string
		client, host numbers
		want         numbers
		no           smc.Diagnosis
	}{
		{"both the same", numbers{1, 255, 2}, numbers{1, 255, 2}, numbers{1, 255, 2}, 0},
		{"client has less", numbers{1, 100, 1}, numbers{1, 255, 2}, numbers{1, 100, 1}, 0},
		{"server has less", numbers{1, 255, 2}, numbers{1, 100, 1}, numbers{1, 100, 1}, 0},
		{"client of a later release", numbers{2, 255, 2}, numbers{1, 100, 2}, numbers{1, 100, 2}, 0},
		{"client of release 0", numbers{0, 0, 0}, numbers{1, 100, 2}, numbers{0, 100, 2}, 0},
		{"server of release 0", numbers{1, 20, 1}, numbers{0, 100, 2}, numbers{0, 100, 2}, 0},
		{"fewest connections", numbers{1, 16, 2}, numbers{1, 255, 2}, numbers{1, 16, 2}, 0},
		{"too few connections", numbers{1, 15, 2}, numbers{1, 255, 2}, numbers{}, smc.DiagMaxConns},
		{"server too few connections", numbers{1, 255, 2}, numbers{1, 15, 2}, numbers{}, smc.DiagMaxConns},
		{"no links", numbers{1, 255, 0}, numbers{1, 255, 2}, numbers{}, smc.DiagMaxLinks},
		{"neither", numbers{1, 15, 0}, numbers{1, 255, 2}, numbers{}, smc.DiagMaxConns},
	} {
		p, err := testProposal(true, noV2).WithOffer(wire.Offer{
			Mode: wire.ModeR, EIDs: []wire.EID{testEID}, GID: testGIDv2,
			Release: tt.client.release, MaxConns: tt.client.conns, MaxLinks: tt.client.links,
		})
		if err != nil {
			t.Fatal(err)
		}
		h := testHost()
		h.Release, h.MaxConns, h.MaxLinks = tt.host.release, tt.host.conns, tt.host.links
		v := &version2{}
		if got := code(v.choose(&p, &h)); got != tt.no {
			t.Errorf("%s: the server says %s, want %s", tt.name, got, tt.no)
			continue
		}
		if x := v.terms(); (numbers{x.Release, x.MaxConns, x.MaxLinks}) != tt.want {
			t.Errorf("%s: the server chooses %+v, want %+v", tt.name, *x, tt.want)
		}
	}
}

// TestServerChoosesEID: the first one of the client's enterprise IDs that the server has.
func TestServerChoosesEID(t *testing.T) {
	other := wire.EID([]byte("OTHER                           "))
	second := wire.EID([]byte("SECOND                          "))
	p, err := testProposal(true, noV2).WithOffer(wire.Offer{Mode: wire.ModeR, EIDs: []wire.EID{other, second, testEID}, GID: testGIDv2})
	if err != nil {
		t.Fatal(err)
	}
	h := testHost()
	h.EIDs = []wire.EID{testEID, second}
	v := &version2{}
	if no := v.choose(&p, &h); no != nil || v.terms().EID != second {
		t.Errorf("refused %v, the server chooses %q, want %q", no, v.terms().EID, second)
	}
}

// TestOfferUnusable: a server that cannot use what PROPOSAL has for version 2 says why.
func TestOfferUnusable(t *testing.T) {
	p := testProposal(true, withV2)
	h := testHost()
	p.Growth = p.Growth[:12] // no room for the place of the extension
	if got := code((&version2{}).choose(&p, &h)); got != smc.DiagNoV2Ext {
		t.Errorf("without the extension: %s, want %s", got, smc.DiagNoV2Ext)
	}
	p, err := testProposal(true, noV2).WithOffer(wire.Offer{Mode: wire.ModeD, EIDs: []wire.EID{testEID}, SMCD: &wire.SMCDOffer{}})
	if err != nil {
		t.Fatal(err)
	}
	if got := code((&version2{}).choose(&p, &h)); got != smc.DiagModeMismatch {
		t.Errorf("with SMC-D alone: %s, want %s", got, smc.DiagModeMismatch)
	}
}

// TestClientAccepts: a client takes what a server may choose from its offer, with the bounds
// of [TestServerChooses] and at most two links. In release 0 the server's numbers are
// reserved, and a link group has 255 connections and as many links as the client takes.
func TestClientAccepts(t *testing.T) {
	type numbers struct{ release, conns, links uint8 }
	for _, tt := range []struct {
		name         string
		offer, ext   numbers
		conns, links uint8
		no           smc.Diagnosis
		vendor       uint32
		tellsItsPort bool
	}{
		{name: "as offered", offer: numbers{1, 255, 2}, ext: numbers{1, 255, 2}, conns: 255, links: 2},
		{name: "less", offer: numbers{1, 255, 2}, ext: numbers{1, 100, 1}, conns: 100, links: 1},
		{name: "fewest", offer: numbers{1, 255, 2}, ext: numbers{1, 16, 1}, conns: 16, links: 1},
		{name: "too few connections", offer: numbers{1, 255, 2}, ext: numbers{1, 15, 2}, no: smc.DiagMaxConns},
		{name: "no links", offer: numbers{1, 255, 2}, ext: numbers{1, 255, 0}, no: smc.DiagMaxLinks},
		{name: "three links", offer: numbers{1, 255, 2}, ext: numbers{1, 255, 3}, no: smc.DiagMaxLinks},
		{name: "release not offered", offer: numbers{1, 255, 2}, ext: numbers{2, 255, 2}, no: smc.DiagRelease},
		{name: "release 1 not offered", offer: numbers{0, 255, 2}, ext: numbers{1, 255, 2}, no: smc.DiagRelease},
		{name: "server of release 0", offer: numbers{1, 255, 2}, ext: numbers{0, 0, 0}, conns: 255, links: 2},
		{name: "server of release 0, one link", offer: numbers{1, 255, 1}, ext: numbers{0, 0, 0}, conns: 255, links: 1},
		{name: "neither has release 1", offer: numbers{0, 100, 2}, ext: numbers{0, 7, 7}, conns: 255, links: 2},
		{name: "port", offer: numbers{1, 255, 2}, ext: numbers{1, 255, 2}, conns: 255, links: 2, vendor: wire.VendorUDPPort(61001), tellsItsPort: true},
		{name: "port in release 0", offer: numbers{1, 255, 2}, ext: numbers{0, 0, 0}, conns: 255, links: 2, vendor: wire.VendorUDPPort(61001)},
	} {
		h := testHost()
		h.Release, h.MaxConns, h.MaxLinks = tt.offer.release, tt.offer.conns, tt.offer.links
		v := &version2{}
		p := testProposal(true, noV2)
		if no := v.propose(&p, &h); no != nil {
			t.Fatal(no)
		}
		_, no := v.accepted(&answer{version: wire.Version2, first: true, eid: testEID, ext: testExt(func(x *wire.FirstContactExt) {
			x.Release, x.MaxConns, x.MaxLinks, x.Vendor = tt.ext.release, tt.ext.conns, tt.ext.links, tt.vendor
		})})
		if code(no) != tt.no {
			t.Errorf("%s: the client says %s, want %s", tt.name, code(no), tt.no)
		}
		if no != nil {
			continue
		}
		if x := v.terms(); x.Release != tt.ext.release || x.MaxConns != tt.conns || x.MaxLinks != tt.links {
			t.Errorf("%s: release %d with %d connections and %d links, want %d, %d and %d",
				tt.name, x.Release, x.MaxConns, x.MaxLinks, tt.ext.release, tt.conns, tt.links)
		}
		x := v.confirmFirst(GroupMade{UDPPort: 61002}).(wire.ConfirmV2).FirstContact
		if got := x.Vendor != 0; got != tt.tellsItsPort {
			t.Errorf("%s: the client tells its port: %t, want %t", tt.name, got, tt.tellsItsPort)
		}
	}
}

// TestServerConfirms: CONFIRM has to repeat the release, and from release 1 on the numbers
// of connections and links, as with Linux. Otherwise the server declines and says what
// differs.
func TestServerConfirms(t *testing.T) {
	for _, tt := range []struct {
		name    string
		release uint8 // agreed on
		edit    func(*wire.FirstContactExt)
		no      smc.Diagnosis
	}{
		{"the same", 1, nothing, 0},
		{"release", 1, func(x *wire.FirstContactExt) { x.Release = 0 }, smc.DiagRelease},
		{"connections", 1, func(x *wire.FirstContactExt) { x.MaxConns = 100 }, smc.DiagMaxConns},
		{"links", 1, func(x *wire.FirstContactExt) { x.MaxLinks = 1 }, smc.DiagMaxLinks},
		{"release 0", 0, func(x *wire.FirstContactExt) { x.Release = 0 }, 0},
		{"release 0, reserved fields", 0, func(x *wire.FirstContactExt) { x.Release, x.MaxConns, x.MaxLinks = 0, 7, 7 }, 0},
		{"release 1 after 0", 0, nothing, smc.DiagRelease},
	} {
		h := testHost()
		h.Release = tt.release
		v := &version2{}
		p := testProposal(true, withV2)
		if no := v.choose(&p, &h); no != nil {
			t.Fatal(no)
		}
		if got := code(v.confirmed(&answer{version: wire.Version2, ext: testExt(tt.edit)})); got != tt.no {
			t.Errorf("%s: the server says %s, want %s", tt.name, got, tt.no)
		}
	}
}

// TestClientCannotOffer: without an enterprise ID or a device, PROPOSAL stays one of
// version 1, and the client knows why. An offer that does not fit into PROPOSAL is an error
// of this host.
func TestClientCannotOffer(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Host)
		no   smc.Diagnosis
	}{
		{"no enterprise ID", func(h *Host) { h.EIDs = nil }, smc.DiagNoUEID},
		{"no device", func(h *Host) { h.NoPortV2 = &Refusal{Code: smc.DiagNoSMCRDev} }, smc.DiagNoSMCRDev},
		{"too many enterprise IDs", func(h *Host) { h.EIDs = make([]wire.EID, wire.MaxUEIDs+1) }, smc.DiagInternal},
	} {
		h := testHost()
		tt.edit(&h)
		p := testProposal(true, noV2)
		if got := code((&version2{}).propose(&p, &h)); got != tt.no {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.no)
		}
		if p.Version == wire.Version2 || p.TypeV1 != wire.ModeR {
			t.Errorf("%s: PROPOSAL offers version %d, in version 1 %s", tt.name, p.Version, p.TypeV1)
		}
	}
}

// TestGIDsOfClient: CONFIRM of a first contact lists the GID of the link first, and then that
// of one other device: Linux reads two at most.
func TestGIDsOfClient(t *testing.T) {
	a, b, c := smc.GID{15: 1}, smc.GID{15: 2}, smc.GID{15: 3}
	for _, tt := range []struct{ devices, want []smc.GID }{
		{nil, []smc.GID{b}},
		{[]smc.GID{b}, []smc.GID{b}},
		{[]smc.GID{a, b, c}, []smc.GID{b, a}},
		{[]smc.GID{b, c}, []smc.GID{b, c}},
	} {
		v := &version2{gids: tt.devices}
		got := v.confirmFirst(GroupMade{Local: wire.Endpoint{GID: b}}).(wire.ConfirmV2).GIDs
		if len(got) != len(tt.want) || got[0] != tt.want[0] || got[len(got)-1] != tt.want[len(got)-1] {
			t.Errorf("with devices %v: CONFIRM lists %v, want %v", tt.devices, got, tt.want)
		}
	}
}

// TestNoTerms: a link group of version 1 has no terms.
func TestNoTerms(t *testing.T) {
	var v1 *Terms
	v2 := &Terms{Local: testSubnet, Peer: PeerSystem{UDPPort: 61001}}
	if v1.Version() != 1 || v2.Version() != 2 {
		t.Errorf("versions %d and %d, want 1 and 2", v1.Version(), v2.Version())
	}
	if v1.Subnet() != (netip.Prefix{}) || v2.Subnet() != testSubnet {
		t.Errorf("subnets %s and %s, want none and %s", v1.Subnet(), v2.Subnet(), testSubnet)
	}
	if v1.PeerUDPPort() != 0 || v2.PeerUDPPort() != 61001 {
		t.Errorf("UDP ports %d and %d, want 0 and 61001", v1.PeerUDPPort(), v2.PeerUDPPort())
	}
}
