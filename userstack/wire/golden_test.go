// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"smcr/smc"
)

var (
	figPeerID = smc.PeerID{0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8}
	figGID    = smc.GID{0xfe, 0x80, 8: 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8}
	figMAC    = smc.MAC{0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6}
)

func figEndpoint(size smc.SizeCode, mtu smc.MTU) Endpoint {
	return Endpoint{
		PeerID: figPeerID, GID: figGID, MAC: figMAC, QPN: 0x010203,
		RMB: smc.RToken{RKey: 0xd1d2d3d4, Addr: 0xf1f2f3f4f5f6f7f8}, RMBEIndex: 7,
		AlertToken: 0xe1e2e3e4, RMBESize: size, MTU: mtu, PSN: 0x0a0b0c,
	}
}

// figures are the messages of testdata/figures.
var figures = map[string]encoding.BinaryAppender{
	"clc_proposal.rfc_ipv4": Proposal{
		Version: 1, TypeV2: ModeNone, PeerID: figPeerID, GID: figGID, MAC: figMAC,
		IPv4: netip.MustParsePrefix("10.77.0.0/16"),
	},
	"clc_proposal.rfc_ipv6": Proposal{
		Version: 1, TypeV2: ModeNone, PeerID: figPeerID, GID: figGID, MAC: figMAC,
		IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("fd00::/8")},
	},
	"clc_proposal.linux_v1": Proposal{
		Version: 1, TypeV2: ModeNone, PeerID: figPeerID, GID: figGID, MAC: figMAC,
		Growth: make([]byte, ProposalGrowthLinux),
		IPv4:   netip.MustParsePrefix("192.168.7.0/24"),
	},
	"clc_proposal.linux_v2_both": Proposal{
		Version: 2, TypeV1: ModeR, TypeV2: ModeR, PeerID: figPeerID, GID: figGID, MAC: figMAC,
		Growth: []byte{11: 0x35, 39: 0},
		IPv6:   []netip.Prefix{netip.MustParsePrefix("2001:db8:2::/48")},
		Extension: append([]byte{0: 1, 3: 0x10, 18: 0xff, 19: 0xff, 20: 10, 21: 77, 23: 2, 24: 0xff, 25: 2, 27: 1, 39: 0},
			"SMCV2                           "...),
	},
	"clc_accept.rfc":  Accept{true, figEndpoint(2, smc.MTU2048)},
	"clc_confirm.rfc": Confirm{false, figEndpoint(5, smc.MTU1024)},
	"clc_decline.rfc": Decline{Version: 1, OutOfSync: true, PeerID: figPeerID, Diagnosis: smc.DiagSync},
	"clc_decline.linux_v2": Decline{
		Version: 2, PeerID: figPeerID, Diagnosis: smc.DiagNoUEID, OSType: 2,
		More: [4]uint32{0x01020304, 0x05060708, 0x090a0b0c, 0x0d0e0f10},
	},
	"llc_confirm_link.rfc": ConfirmLink{
		Reply: true, NoEyecatcher: true, MAC: figMAC, GID: figGID, QPN: 0x010203,
		LinkNum: 5, LinkUserID: 0xd1d2d3d4, MaxLinks: 3,
	},
	"llc_add_link.rfc": AddLink{
		Reply: true, Rejected: true, Reason: AddLinkNoAlternatePath, MAC: figMAC, GID: figGID,
		QPN: 0x010203, LinkNum: 5, MTU: smc.MTU2048, PSN: 0x0a0b0c,
	},
	"llc_add_link_cont.rfc": AddLinkCont{LinkNum: 5, Left: 3, Pairs: [2]RKeyPair{
		{0x11121314, smc.RToken{RKey: 0x21222324, Addr: 0x3132333435363738}},
		{0x41424344, smc.RToken{RKey: 0x51525354, Addr: 0x6162636465666768}},
	}},
	"llc_delete_link.rfc": DeleteLink{Reply: true, Orderly: true, LinkNum: 5, Reason: DeleteLinkUnknownLink},
	"llc_delete_link.all": DeleteLink{All: true, Reason: DeleteLinkProtocolViolation},
	"llc_confirm_rkey.rfc": ConfirmRKey{
		Reply: true, Negative: true, Retry: true, Others: 4, This: smc.RToken{RKey: 0x11121314, Addr: 0x2122232425262728},
		Other: [2]LinkRToken{{2, smc.RToken{RKey: 0x31323334, Addr: 0x4142434445464748}}, {3, smc.RToken{RKey: 0x51525354, Addr: 0x6162636465666768}}},
	},
	"llc_confirm_rkey_cont.rfc": ConfirmRKeyCont{
		Reply: true, Negative: true, Left: 3,
		Other: [3]LinkRToken{
			{2, smc.RToken{RKey: 0x11121314, Addr: 0x2122232425262728}},
			{3, smc.RToken{RKey: 0x31323334, Addr: 0x4142434445464748}},
			{4, smc.RToken{RKey: 0x51525354, Addr: 0x6162636465666768}},
		},
	},
	"llc_delete_rkey.rfc": DeleteRKey{Reply: true, Negative: true, Count: 8, ErrorMask: 0x50, RKeys: [8]smc.RKey{
		0x11121314, 0x21222324, 0x31323334, 0x41424344, 0x51525354, 0x61626364, 0x71727374, 0x81828384,
	}},
	"llc_test_link.rfc": TestLink{UserData: [16]byte{
		0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20,
	}},
	"cdc.rfc": CDC{
		Seq: 0x1234, Token: 0x21222324, Prod: Cursor{0x3132, 0x41424344}, Cons: Cursor{0x5152, 0x61626364},
		Flags: ProdWriterBlocked | ProdUrgentPending | ProdUrgentPresent | ProdCursorRequest | ProdFailoverVerify,
		State: ConnSendingDone | ConnClosed | ConnAbnormalClose,
	},
}

// TestFigures holds every field of every message against its place in the
// figures of RFC 7609.
func TestFigures(t *testing.T) {
	figures := maps.Clone(figures)
	maps.Copy(figures, figuresV2)
	files, _ := filepath.Glob("testdata/figures/*.hex")
	if len(files) != len(figures) {
		t.Errorf("%d files, %d expectations", len(files), len(figures))
	}
	for name, want := range figures {
		t.Run(name, func(t *testing.T) {
			raw := readHex(t, "testdata/figures/"+name+".hex")
			got, err := codecOf(t, name).parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(want, got); d != "" {
				t.Errorf("parsed (-want +got):\n%s", d)
			}
			b, err := want.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, raw) {
				t.Errorf("encoded\n%x, want\n%x", b, raw)
			}
		})
	}
}

const (
	iperf = "iperf3_two_connections-v1.srv.frame"
	eth0  = "two-rnics-v1.eth0.frame"
	eth1  = "two-rnics-v1.eth1.frame"
)

var (
	srvMAC = smc.MAC{0x52, 0x54, 0, 0, 0, 1}
	cliMAC = smc.MAC{0x52, 0x54, 0, 0, 0, 2}
	srvGID = smc.GID{0xfe, 0x80, 8: 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 1}
	cliGID = smc.GID{0xfe, 0x80, 8: 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 2}
)

// captured says what some of the captured messages mean; tshark reads them
// the same.
var captured = map[string]encoding.BinaryAppender{
	"clc_proposal." + iperf + "4": Proposal{
		Version: 2, TypeV1: ModeR, TypeV2: ModeNone,
		PeerID: smc.NewPeerID(0x0a97, cliMAC), GID: cliGID, MAC: cliMAC,
		Growth: make([]byte, 40), IPv4: netip.MustParsePrefix("10.77.0.0/24"),
	},
	"clc_accept." + iperf + "6": Accept{true, Endpoint{
		PeerID: smc.NewPeerID(0xfde2, srvMAC), GID: srvGID, MAC: srvMAC, QPN: 0x11,
		RMB: smc.RToken{RKey: 0x372, Addr: 0xff1f35f2045b0000}, RMBEIndex: 1, AlertToken: 1, RMBESize: 2, MTU: smc.MTU1024, PSN: 0xcbc982,
	}},
	"clc_confirm." + iperf + "8": Confirm{true, Endpoint{
		PeerID: smc.NewPeerID(0x0a97, cliMAC), GID: cliGID, MAC: cliMAC, QPN: 0x11,
		RMB: smc.RToken{RKey: 0x36b, Addr: 0xff212f8dc4060000}, RMBEIndex: 1, AlertToken: 1, RMBESize: 2, MTU: smc.MTU1024, PSN: 0x28587d,
	}},
	"clc_decline.h4_client_no_ueid.cli.frame4": Decline{Version: 1, PeerID: smc.NewPeerID(0xd433, cliMAC), Diagnosis: smc.DiagNoSMCDev},
	"llc_confirm_link." + iperf + "12": ConfirmLink{
		Reply: true, NoEyecatcher: true, MAC: cliMAC, GID: cliGID, QPN: 0x11, LinkNum: 1, LinkUserID: 0x101, MaxLinks: 2,
	},
	"llc_add_link." + iperf + "16": AddLink{
		Reply: true, Rejected: true, Reason: AddLinkNoAlternatePath,
		MAC: srvMAC, GID: srvGID, QPN: 0x12, LinkNum: 2, MTU: smc.MTU1024, PSN: 0x02d88a,
	},
	"llc_add_link_cont." + eth0 + "16": AddLinkCont{LinkNum: 2, Left: 1, Pairs: [2]RKeyPair{
		{0x3ea, smc.RToken{RKey: 0x3ce, Addr: 0xff474c68444a0000}},
	}},
	"llc_delete_link." + iperf + "408": DeleteLink{All: true, Orderly: true, Reason: DeleteLinkOperator},
	"llc_delete_link." + eth1 + "46":   DeleteLink{Orderly: true, LinkNum: 1, Reason: DeleteLinkLostPath},
	"llc_confirm_rkey." + eth0 + "48": ConfirmRKey{
		Others: 1, This: smc.RToken{RKey: 0x3ea, Addr: 0xff474c68444a0000}, Other: [2]LinkRToken{{2, smc.RToken{RKey: 0x3ce, Addr: 0xff474c68444a0000}}},
	},
	"llc_delete_rkey." + iperf + "381": DeleteRKey{Reply: true, Count: 1, RKeys: [8]smc.RKey{0x61b}},
	"llc_test_link." + eth1 + "55":     TestLink{Reply: true},
	"cdc." + eth1 + "45":               CDC{Seq: 0x1fb, Token: 6, Flags: ProdFailoverVerify},
	"cdc." + eth1 + "57": CDC{
		Seq: 0x1fd, Token: 6, Prod: Cursor{0xe3, 0xd480}, Flags: ProdWriterBlocked, State: ConnClosed,
	},
	"cdc.b2_shut_rd.cli.frame38": CDC{Seq: 1, Token: 4, Cons: Cursor{0, 1000}, State: ConnAbnormalClose},
	"cdc.e2_urgent_oob_blocking.cli.frame23": CDC{
		Seq: 2, Token: 2, Prod: Cursor{0, 6}, Flags: ProdUrgentPending | ProdUrgentPresent,
	},
}

func TestCapturedMeaning(t *testing.T) {
	captured := maps.Clone(captured)
	maps.Copy(captured, capturedV2)
	for name, want := range captured {
		t.Run(name, func(t *testing.T) {
			got, err := generic(readHex(t, "testdata/captures/"+name+".hex"))
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(want, got); d != "" {
				t.Errorf("parsed (-want +got):\n%s", d)
			}
		})
	}
}

// TestCaptured parses what Linux sent and encodes it again. No byte is masked:
// Linux fills no field that this package normalises.
func TestCaptured(t *testing.T) {
	seen := map[string]int{}
	for _, file := range messageFiles(t) {
		if !strings.Contains(file, "captures") {
			continue
		}
		c := codecOf(t, file)
		seen[c.name]++
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw := readHex(t, file)
			m, err := c.parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			b, err := m.AppendBinary([]byte("front"))
			if err != nil {
				t.Fatal(err)
			}
			if want := append([]byte("front"), raw...); !bytes.Equal(b, want) {
				t.Errorf("encoded\n%x, want\n%x", b, want)
			}
			switch m := m.(type) {
			case LLC:
				if byte(m.LLCType()) != raw[0]&^0x20 || m.IsReply() != (raw[3]&0x80 != 0) {
					t.Errorf("%s, reply %v, of % x", m.LLCType(), m.IsReply(), raw[:4])
				}
			case CLC:
				if byte(m.CLCType()) != raw[4] {
					t.Errorf("%s of % x", m.CLCType(), raw[:8])
				}
			}
			g, err := generic(raw)
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(m, g); d != "" {
				t.Errorf("parsed without knowing the type (-want +got):\n%s", d)
			}
		})
	}
	for _, c := range codecs {
		// The continuation needs a link group of more than three links, and
		// no client of the captures got a second device later on.
		if seen[c.name] == 0 && c.name != "llc_confirm_rkey_cont" && c.name != "llc2_req_add_link" {
			t.Errorf("no captured %s", c.name)
		}
	}
}

// TestReservedIgnored sets every reserved bit of every message: nothing that
// is parsed may change.
func TestReservedIgnored(t *testing.T) {
	for _, file := range messageFiles(t) {
		c := codecOf(t, file)
		raw := readHex(t, file)
		want, err := c.parse(raw)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		b := bytes.Clone(raw)
		b[c.flagsAt] |= ^c.flags
		for _, r := range c.reserved {
			for i := r.from; i < r.to; i++ {
				b[i] = 0xff
			}
		}
		switch m := want.(type) {
		case Proposal:
			if m.TypeV1 != ModeNone { // the two bytes in front of the count of IPv6 prefixes
				copy(b[ProposalFixedLen+len(m.Growth)+5:], "\xff\xff")
			}
		case AcceptV2:
			if m.FirstContact != nil {
				fillFirstContact(b)
			}
		case ConfirmV2:
			if m.FirstContact != nil {
				fillFirstContact(b)
				fill(b[157:160])
			}
		case AddLink:
			b[32] |= 0xf0
			switch {
			case m.Layout == LLCV1 && m.Rejected:
				b[2] |= 0xf0
			case m.Layout == LLCV1:
				b[2] = 0xff
			case m.Ext != nil:
				b[44] |= 0x7f
				b[45] = 0xff
				fill(b[62:70])
			}
		case AddLinkCont:
			fill(b[8+rkeyPairLen*m.Count():])
		case DeleteLink:
			if m.All {
				b[4] = 0xff
			}
		case ConfirmRKey:
			fill(b[17+linkRTokenLen*m.Count():])
		case ConfirmRKeyCont:
			fill(b[5+linkRTokenLen*m.Count():])
		case DeleteRKey:
			fill(b[8+4*int(m.Count):])
		case DeleteRKeyV2:
			fill(b[8+4*len(m.RKeys):])
		case ReqAddLink:
			fill(b[28+16*len(m.GIDs):])
		case CDC:
			b[25] |= 0x1f
		}
		got, err := c.parse(b)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if d := diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}

func fillFirstContact(b []byte) {
	b[104] |= 0x7f
	fill(b[106:108])
	fill(b[148:156])
	if b[105]&15 == 0 { // release 0 ends behind the host name
		fill(b[140:148])
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}
