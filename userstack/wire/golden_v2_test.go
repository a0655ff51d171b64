// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"smcr/smc"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func mustEID(s string) EID { return must(ParseEID(s)) }

func ip4GID(s string) smc.GID { return smc.GIDFromIPv4(netip.MustParseAddr(s)) }

var (
	eidA   = mustEID("A-B.C")
	eidB   = mustEID("Z9")
	eidCap = mustEID("SMCV2-EXAMPLE-UEID") // of the captures

	figFirst = &FirstContactExt{
		Direct: true, OS: smc.OSAIX, Release: 1, Hostname: NewHostname("host.1"),
		MaxConns: 200, MaxLinks: 3, Features: 0x1234, Vendor: 0x21222324,
	}
	capFirst = &FirstContactExt{
		Direct: true, OS: smc.OSLinux, Release: ReleaseV21, Hostname: NewHostname("guest"),
		MaxConns: 255, MaxLinks: 2, Features: FeatureEmulatedISM,
	}
	figPairs = []RKeyPair{
		{0x11121314, smc.RToken{RKey: 0x21222324, Addr: 0x3132333435363738}},
		{0x41424344, smc.RToken{RKey: 0x51525354, Addr: 0x6162636465666768}},
	}
)

func figAddLink(l LLCLayout, reply bool, pairs []RKeyPair) AddLink {
	return AddLink{
		Layout: l, Reply: reply, MAC: figMAC, GID: figGID, QPN: 0x010203, LinkNum: 5, MTU: smc.MTU2048, PSN: 0x0a0b0c,
		Ext: &AddLinkExt{Direct: true, TargetGID: ip4GID("10.77.1.2"), Pairs: pairs},
	}
}

// offers are the offers of the proposals among the figures and captures.
var offers = map[string]Offer{
	"figures/clc_proposal.linux_v2_both": {
		Mode: ModeR, EIDs: []EID{mustEID("SMCV2")}, GID: ip4GID("10.77.0.2"), Release: 1, MaxConns: 255, MaxLinks: 2, Features: 1,
	},
	"figures/clc_proposal.offer": {
		Mode: ModeBoth, EIDs: []EID{eidA, eidB}, GID: ip4GID("10.77.0.2"), Release: 1, MaxConns: 200, MaxLinks: 3, Features: 0x1234, HasSEID: true,
		SMCD: &SMCDOffer{
			SEID:    EID([]byte("IBM-" + strings.Repeat("0", 28))),
			Devices: []ISMDevice{{0x1112131415161718, 0x191a}, {0x2122232425262728, 0x191a}},
		},
		VendorOUI: [3]byte{0x91, 0x92, 0x93}, VendorOptions: [5]byte{0x94, 0x95, 0x96, 0x97, 0x98},
	},
	"figures/clc_proposal.offer_v2_only": {Mode: ModeR, EIDs: []EID{eidB, eidA}, GID: ip4GID("10.77.0.2")},
	"captures/clc_proposal.a_first_contact_echo.cli.frame7": {
		Mode: ModeR, EIDs: []EID{eidCap}, GID: ip4GID("10.77.0.2"), Release: 1, MaxConns: 255, MaxLinks: 2, Features: 1,
	},
	"captures/clc_proposal.a2_second_conn_echo.cli.frame4": {
		Mode: ModeR, EIDs: []EID{eidCap}, GID: ip4GID("10.77.0.2"), Release: 1, MaxConns: 255, MaxLinks: 2, Features: 1,
	},
}

// TestOffers decodes the offers, and makes the same bytes out of proposals that
// have nothing but what the caller of WithOffer gives.
func TestOffers(t *testing.T) {
	for name, want := range offers {
		t.Run(filepath.Base(name), func(t *testing.T) {
			raw := readHex(t, "testdata/"+name+".hex")
			p, err := ParseProposal(raw)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Offer()
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			bare := Proposal{TypeV1: p.TypeV1, PeerID: p.PeerID, GID: p.GID, MAC: p.MAC, IPv4: p.IPv4, IPv6: p.IPv6}
			if p.TypeV1.HasD() {
				bare.Growth = p.Growth[:10]
			}
			with, err := bare.WithOffer(want)
			if err != nil {
				t.Fatal(err)
			}
			b, err := with.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, raw) {
				t.Errorf("encoded\n%x, want\n%x", b, raw)
			}
		})
	}
}

var figuresV2 = map[string]encoding.BinaryAppender{
	"clc_proposal.offer": must(offered{Proposal{
		Version: 2, TypeV1: ModeBoth, PeerID: figPeerID, GID: figGID, MAC: figMAC,
		Growth: mustHex("7172737475767778 8182"),
		IPv4:   netip.MustParsePrefix("10.77.0.0/16"), IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8:2::/48")},
	}, offers["figures/clc_proposal.offer"]}.whole()),
	"clc_proposal.offer_v2_only": must(offered{Proposal{
		Version: 2, TypeV1: ModeNone, PeerID: figPeerID, MAC: figMAC, Growth: make([]byte, 10),
	}, offers["figures/clc_proposal.offer_v2_only"]}.whole()),
	"clc_accept_v2.first": AcceptV2{figEndpoint(2, smc.MTU2048), eidA, figFirst},
	"clc_accept_v2.next":  AcceptV2{figEndpoint(2, smc.MTU2048), eidB, nil},
	"clc_accept_v2.release0": AcceptV2{
		figEndpoint(2, smc.MTU2048), eidA, &FirstContactExt{OS: smc.OSZOS, Hostname: NewHostname("host.1")},
	},
	"clc_confirm_v2.first": ConfirmV2{
		figEndpoint(5, smc.MTU1024), eidA, figFirst, []smc.GID{figGID, ip4GID("10.77.0.2")},
	},
	"clc_confirm_v2.next":  ConfirmV2{Endpoint: figEndpoint(5, smc.MTU1024), EID: eidA},
	"llc2_add_link.spec":   figAddLink(LLCV2, true, figPairs),
	"llc2_add_link.little": figAddLink(LLCV2Little, false, figPairs),
	"llc2_add_link.empty":  figAddLink(LLCV2, false, nil),
	"llc2_confirm_link.spec": ConfirmLink{
		Layout: LLCV2, Reply: true, NoEyecatcher: true, MAC: figMAC, GID: figGID, QPN: 0x010203,
		LinkNum: 5, LinkUserID: 0xd1d2d3d4, MaxLinks: 3, MaxConns: 200,
	},
	"llc2_req_add_link.little": ReqAddLink{Layout: LLCV2Little, GIDs: []smc.GID{figGID, ip4GID("10.77.1.2")}},
	"llc2_req_add_link.reply":  ReqAddLink{Layout: LLCV2, Reply: true},
	"llc2_delete_link.spec": DeleteLink{
		Layout: LLCV2, Reply: true, Orderly: true, LinkNum: 5, Reason: DeleteLinkUnknownLink,
	},
	"llc2_confirm_rkey.spec": ConfirmRKey{
		Layout: LLCV2, Reply: true, Negative: true, Retry: true, Others: 2, This: smc.RToken{RKey: 0x11121314, Addr: 0x2122232425262728},
		Other: [2]LinkRToken{{2, smc.RToken{RKey: 0x31323334, Addr: 0x4142434445464748}}, {3, smc.RToken{RKey: 0x51525354, Addr: 0x6162636465666768}}},
	},
	"llc2_delete_rkey.ten": DeleteRKeyV2{Layout: LLCV2, Count: 10, RKeys: []smc.RKey{
		0x11121314, 0x21222324, 0x31323334, 0x41424344, 0x51525354, 0x61626364, 0x71727374, 0x81828384, 0x91929394, 0xa1a2a3a4,
	}},
	"llc2_delete_rkey.reply": DeleteRKeyV2{Layout: LLCV2Little, Reply: true, Negative: true, Count: 20, Invalid: 3},
	"llc2_test_link.spec":    TestLink{Layout: LLCV2, Reply: true, UserData: figures["llc_test_link.rfc"].(TestLink).UserData},
}

const (
	oneA = "a_first_contact_echo.cli.frame"
	oneB = "a2_second_conn_echo.cli.frame"
	two0 = "onesubnet-v2.eth0.frame"
	two1 = "onesubnet-v2.eth1.frame"
)

var (
	srvMAC1 = smc.MAC{0x52, 0x54, 0, 0, 1, 1}
	cliMAC1 = smc.MAC{0x52, 0x54, 0, 0, 1, 2}
)

var capturedV2 = map[string]encoding.BinaryAppender{
	"clc_accept_v2." + oneA + "9": AcceptV2{Endpoint{
		PeerID: smc.NewPeerID(0xa3bd, srvMAC), GID: ip4GID("10.77.0.1"), MAC: srvMAC, QPN: 0x11,
		RMB: smc.RToken{RKey: 0x371, Addr: 0xff18cf1045ef0000}, RMBEIndex: 1, AlertToken: 1, RMBESize: 2, MTU: smc.MTU1024, PSN: 0x461953,
	}, eidCap, capFirst},
	"clc_confirm_v2." + oneA + "11": ConfirmV2{Endpoint{
		PeerID: smc.NewPeerID(0xd433, cliMAC), GID: ip4GID("10.77.0.2"), MAC: cliMAC, QPN: 0x11,
		RMB: smc.RToken{RKey: 0x31f, Addr: 0xff28386605d30000}, RMBEIndex: 1, AlertToken: 1, RMBESize: 2, MTU: smc.MTU1024, PSN: 0xf66ee0,
	}, eidCap, capFirst, []smc.GID{ip4GID("10.77.0.2")}},
	"clc_accept_v2." + oneB + "10": AcceptV2{Endpoint{
		PeerID: smc.NewPeerID(0xa3bd, srvMAC), GID: ip4GID("10.77.0.1"), MAC: srvMAC, QPN: 0x11,
		RMB: smc.RToken{RKey: 0x371, Addr: 0xff18cf1045ef0000}, RMBEIndex: 1, AlertToken: 2, RMBESize: 2, MTU: smc.MTU1024, PSN: 0x461953,
	}, eidCap, nil},
	"clc_confirm_v2." + two0 + "6": ConfirmV2{Endpoint{
		PeerID: smc.NewPeerID(0xb11d, cliMAC), GID: ip4GID("10.77.0.2"), MAC: cliMAC, QPN: 0x11,
		RMB: smc.RToken{RKey: 0x3fc, Addr: 0xff18e11284420000}, RMBEIndex: 1, AlertToken: 1, RMBESize: 2, MTU: smc.MTU1024, PSN: 0xc0f36c,
	}, eidCap, capFirst, []smc.GID{ip4GID("10.77.0.2"), ip4GID("10.77.1.2")}},
	"llc2_confirm_link." + oneA + "15": ConfirmLink{
		Layout: LLCV2Little, Reply: true, NoEyecatcher: true, MAC: cliMAC, GID: ip4GID("10.77.0.2"), QPN: 0x11,
		LinkNum: 1, LinkUserID: 0x101, MaxLinks: 2, MaxConns: 255,
	},
	"llc2_add_link." + two0 + "12": AddLink{
		Layout: LLCV2Little, MAC: srvMAC1, GID: ip4GID("10.77.1.1"), QPN: 0x11, LinkNum: 2, MTU: smc.MTU1024, PSN: 0x545ffc,
		Ext: &AddLinkExt{Direct: true, TargetGID: ip4GID("10.77.1.1"), Pairs: []RKeyPair{
			{0x30c, smc.RToken{RKey: 0x393, Addr: 0xff36fcfa855e0000}},
		}},
	},
	"llc2_add_link." + two0 + "14": AddLink{
		Layout: LLCV2Little, Reply: true, MAC: cliMAC1, GID: ip4GID("10.77.1.2"), QPN: 0x11, LinkNum: 2, MTU: smc.MTU1024, PSN: 0x1d78c6,
		Ext: &AddLinkExt{Direct: true, TargetGID: ip4GID("10.77.1.2"), Pairs: []RKeyPair{
			{0x3fc, smc.RToken{RKey: 0x315, Addr: 0xff18e11284420000}},
		}},
	},
	"llc2_add_link." + oneA + "19": AddLink{
		Layout: LLCV2Little, Reply: true, Rejected: true, MAC: srvMAC, GID: ip4GID("10.77.0.1"),
		QPN: 0x12, LinkNum: 2, MTU: smc.MTU1024, PSN: 0x791ecd,
	},
	"llc2_confirm_rkey." + two0 + "44": ConfirmRKey{
		Layout: LLCV2Little, Others: 1, This: smc.RToken{RKey: 0x30c, Addr: 0xff36fcfa855e0000},
		Other: [2]LinkRToken{{2, smc.RToken{RKey: 0x393, Addr: 0xff36fcfa855e0000}}},
	},
	"llc2_delete_rkey." + oneB + "32": DeleteRKeyV2{Layout: LLCV2Little, Count: 1, RKeys: []smc.RKey{0x31f}},
	"llc2_delete_rkey." + oneB + "34": DeleteRKeyV2{Layout: LLCV2Little, Reply: true, Count: 1},
	"llc2_delete_link." + two1 + "258": DeleteLink{
		Layout: LLCV2Little, Reply: true, Orderly: true, LinkNum: 1, Reason: DeleteLinkUnknownLink,
	},
	"llc2_delete_link.z_idle_lgr_timeout.srv.frame203":  DeleteLink{Layout: LLCV2Little, All: true, Reason: DeleteLinkProgram},
	"llc2_test_link.e2_urgent_oob_blocking.cli.frame30": TestLink{Layout: LLCV2Little, Reply: true},
}
