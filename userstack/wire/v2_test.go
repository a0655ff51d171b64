// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"smcr/smc"
)

func TestEID(t *testing.T) {
	for _, s := range []string{"A", "0", "SMCV2-EXAMPLE-UEID", "A.B-C", "PAD   ", strings.Repeat("Z", 32)} {
		e, err := ParseEID(s)
		if err != nil || !e.Valid() || e.String() != strings.TrimRight(s, " ") || len(e) != 32 {
			t.Errorf("%q: %q, %v", s, e, err)
		}
	}
	for _, s := range []string{"", "   ", ".A", "-A", "a", "A B", "A..B", "A_B", "A@", "A[", "A/", "A:", "\xc1", strings.Repeat("Z", 33), "A" + strings.Repeat(" ", 31) + "B"} {
		if e, err := ParseEID(s); !errors.Is(err, ErrRange) || e != (EID{}) {
			t.Errorf("%q: %q, %v, want %v", s, e, err, ErrRange)
		}
	}
	if (EID{}).Valid() {
		t.Error("zeros are valid")
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("h", 40)
	for in, want := range map[string]string{"guest": "guest", "": "", long: long[:32]} {
		if h := NewHostname(in); h.String() != want || in == "guest" && h[31] != ' ' {
			t.Errorf("%q: %q", in, h[:])
		}
	}
	if got := (Hostname{'a'}).String(); got != "a" {
		t.Errorf("padding of zeros: %q", got)
	}
}

// TestAppendLLC writes one message in every layout.
func TestAppendLLC(t *testing.T) {
	tests := []struct {
		m     LLC
		heads [3]string // per layout: the header, or "" for ErrVersion
	}{
		{ConfirmLink{Reply: true}, [3]string{"012c0080", "21002c80", "212c0080"}},
		{ConfirmLink{Layout: LLCV2}, [3]string{"012c0000", "21002c00", "212c0000"}},
		{AddLink{Reply: true, Rejected: true, Reason: 1}, [3]string{"022c01c0", "22002cc0", "222c00c0"}},
		{AddLink{Ext: &AddLinkExt{}}, [3]string{"", "22004800", "22480000"}},
		{AddLink{Ext: &AddLinkExt{Pairs: make([]RKeyPair, 255)}}, [3]string{"", "22103800", "22381000"}},
		{AddLinkCont{}, [3]string{"032c0000", "", ""}},
		{ReqAddLink{}, [3]string{"", "25002c00", "252c0000"}},
		{ReqAddLink{GIDs: make([]smc.GID, 255)}, [3]string{"", "25100c00", "250c1000"}},
		{DeleteLink{All: true}, [3]string{"042c0040", "24002c40", "242c0040"}},
		{ConfirmRKey{Retry: true}, [3]string{"062c0010", "26002c10", "262c0010"}},
		{ConfirmRKeyCont{}, [3]string{"082c0000", "", ""}},
		{DeleteRKey{}, [3]string{"092c0000", "", ""}},
		{DeleteRKeyV2{RKeys: make([]smc.RKey, 9)}, [3]string{"", "29002c00", "292c0000"}},
		{DeleteRKeyV2{RKeys: make([]smc.RKey, 254)}, [3]string{"", "29040000", "29000400"}},
		{TestLink{Reply: true}, [3]string{"072c0080", "27002c80", "272c0080"}},
	}
	for _, tt := range tests {
		for l, head := range tt.heads {
			l := LLCLayout(l)
			b, err := AppendLLC([]byte("front"), l, tt.m)
			if head == "" {
				if !errors.Is(err, ErrVersion) || string(b) != "front" {
					t.Errorf("%T in %s: %v, want %v", tt.m, l, err, ErrVersion)
				}
				continue
			}
			if err != nil || !bytes.HasPrefix(b, append([]byte("front"), mustHex(head)...)) {
				t.Errorf("%T in %s: % x, %v, want %s", tt.m, l, b, err, head)
				continue
			}
			b = b[len("front"):]
			h, err := ParseLLCHeader(b)
			if err != nil || h != (LLCHeader{tt.m.LLCType(), l, tt.m.IsReply()}) {
				t.Errorf("%T in %s: header %+v, %v", tt.m, l, h, err)
			}
			again, err := ParseLLC(b)
			if err != nil {
				t.Errorf("%T in %s: %v", tt.m, l, err)
				continue
			}
			if out, err := again.AppendBinary(nil); err != nil || !bytes.Equal(out, b) {
				t.Errorf("%T in %s: %v, parsed and appended\n%x, want\n%x", tt.m, l, err, out, b)
			}
		}
		if b, err := AppendLLC(nil, LLCV2Little+1, tt.m); err == nil {
			t.Errorf("%T in an undefined layout: % x", tt.m, b)
		}
	}
}

func TestLayoutFor(t *testing.T) {
	for _, tt := range []struct {
		version uint8
		os      smc.OS
		want    LLCLayout
	}{
		{Version1, smc.OSLinux, LLCV1},
		{Version2, smc.OSLinux, LLCV2Little},
		{Version2, smc.OSZOS, LLCV2},
		{Version2, smc.OSAIX, LLCV2},
		{Version2, 0, LLCV2},
	} {
		if got := LLCLayoutFor(tt.version, tt.os); got != tt.want || got.V2() != (tt.version > 1) {
			t.Errorf("version %d, system %d: %s, want %s", tt.version, tt.os, got, tt.want)
		}
	}
}

// TestRKeyCountOrder: the number of RKeys in ADD LINK is understood in either
// byte order, whatever that of the length, and in both bytes.
func TestRKeyCountOrder(t *testing.T) {
	for _, file := range []string{"llc2_add_link.spec", "llc2_add_link.little"} {
		raw := readHex(t, "testdata/figures/"+file+".hex")
		for count, want := range map[[2]byte]int{{0, 0}: 0, {0, 2}: 2, {2, 0}: 2, {2, 2}: 2, {1, 0}: 1} {
			m, err := ParseAddLink(set(raw, 70, count[:]...))
			if err != nil || !slices.Equal(m.Ext.Pairs, figPairs[:want]) {
				t.Errorf("%s with % x: %+v, %v, want %d", file, count, m.Ext, err, want)
			}
		}
		if _, err := ParseAddLink(set(raw, 70, 2, 1)); !errors.Is(err, ErrRange) {
			t.Errorf("%s with 513 RKeys: %v, want %v", file, err, ErrRange)
		}
		for _, count := range [][]byte{{0, 3}, {3, 0}, {255, 255}} {
			if _, err := ParseAddLink(set(raw, 70, count...)); !errors.Is(err, ErrLength) {
				t.Errorf("%s with % x: %v, want %v", file, count, err, ErrLength)
			}
		}
	}
}

// TestGrowing: what follows a message of version 2 within its length is not
// read.
func TestGrowing(t *testing.T) {
	for _, name := range []string{"clc_accept_v2.first", "clc_accept_v2.next", "clc_confirm_v2.first", "clc_confirm_v2.next"} {
		raw := readHex(t, "testdata/figures/"+name+".hex")
		n := len(raw) - TrailerLen
		longer := slices.Concat(raw[:n], make([]byte, 20), raw[n:])
		binary.BigEndian.PutUint16(longer[5:], uint16(len(longer)))
		fill(longer[n : n+20])
		got, err := ParseCLC(longer)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if d := diff(figuresV2[name], encoding.BinaryAppender(got)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	raw := readHex(t, "testdata/figures/llc2_confirm_link.spec.hex")
	longer := append(set(raw, 1, 0, 60), bytes.Repeat([]byte{0xff}, 16)...)
	got, err := ParseConfirmLink(longer)
	if d := diff(figuresV2["llc2_confirm_link.spec"], encoding.BinaryAppender(got)); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestMalformedV2(t *testing.T) {
	fig := func(name string) []byte { return readHex(t, "testdata/figures/"+name+".hex") }
	short := func(b []byte, n int) []byte { // a CLC message cut, but whole by its length and trailer
		b = slices.Concat(b[:n-TrailerLen], b[len(b)-TrailerLen:])
		binary.BigEndian.PutUint16(b[5:], uint16(n))
		return b
	}
	accept, confirm := fig("clc_accept_v2.first"), fig("clc_confirm_v2.first")
	add, del, req := fig("llc2_add_link.spec"), fig("llc2_delete_rkey.ten"), fig("llc2_req_add_link.little")
	v1 := fig("clc_accept.rfc")
	tests := []struct {
		name  string
		parse func([]byte) (encoding.BinaryAppender, error)
		b     []byte
		want  error
	}{
		{"ACCEPT of version 1", boxed(ParseAcceptV2), v1, ErrVersion},
		{"version 1 parser", boxed(ParseAccept), accept, ErrVersion},
		{"CONFIRM, version 1 parser", boxed(ParseConfirm), confirm, ErrVersion},
		{"SMC-D", boxed(ParseCLC), set(accept, 3, 0xc4), ErrMode},
		{"ACCEPT of 107 bytes", boxed(ParseCLC), short(fig("clc_accept_v2.next"), 107), ErrLength},
		{"ACCEPT, first contact, 159 bytes", boxed(ParseCLC), short(accept, 159), ErrLength},
		{"CONFIRM, first contact, 163 bytes", boxed(ParseCLC), short(confirm, 163), ErrLength},
		{"CONFIRM with one GID too few", boxed(ParseCLC), short(confirm, 180), ErrLength},
		{"CONFIRM with 255 GIDs", boxed(ParseCLC), set(confirm, 156, 255), ErrLength},
		{"LLC length", boxed(ParseLLC), set(add, 1, 0, 105), ErrShort},
		{"LLC length too small", boxed(ParseLLC), set(add, 1, 0, 103), ErrLength},
		{"LLC above the maximum", boxed(ParseLLC), set(make([]byte, MaxLLCLenV2+1), 0, 0x27, 0x20, 0x01), ErrLength},
		{"ADD LINK of half an extension", boxed(ParseLLC), set(add, 1, 0, 71)[:71], ErrLength},
		{"DELETE RKEY of eleven", boxed(ParseLLC), set(del, 4, 11), ErrLength},
		{"DELETE RKEY, version 1 parser", boxed(ParseDeleteRKey), fig("llc2_delete_rkey.reply"), ErrVersion},
		{"DELETE RKEY of version 1", boxed(ParseDeleteRKeyV2), fig("llc_delete_rkey.rfc"), ErrVersion},
		{"REQUEST ADD LINK of three", boxed(ParseLLC), set(req, 24, 3), ErrLength},
		{"REQUEST ADD LINK in version 1", boxed(ParseLLC), set(fig("llc_test_link.rfc"), 0, 5), ErrOpcode},
		{"continuation in version 2", boxed(ParseLLC), set(fig("llc_test_link.rfc"), 0, 0x23), ErrOpcode},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if m, err := tt.parse(tt.b); !errors.Is(err, tt.want) {
				t.Errorf("%+v, %v, want %v", m, err, tt.want)
			}
		})
	}
}

// longerArea inserts four bytes into the area for future growth of a proposal:
// Linux refuses what is longer than 40 bytes.
func longerArea(b []byte) []byte {
	const end = ProposalFixedLen + ProposalGrowthLinux
	b = slices.Concat(b[:end], make([]byte, 4), b[end:])
	binary.BigEndian.PutUint16(b[5:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[38:], ProposalGrowthLinux+4)
	return b
}

func TestMalformedOffer(t *testing.T) {
	parse := func(b []byte) Proposal {
		p, err := ParseProposal(b)
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return p
	}
	both := readHex(t, "testdata/figures/clc_proposal.offer.hex")
	only := readHex(t, "testdata/figures/clc_proposal.offer_v2_only.hex")
	linux := readHex(t, "testdata/captures/clc_proposal.iperf3_two_connections-v1.srv.frame4.hex")
	rfc := readHex(t, "testdata/figures/clc_proposal.rfc_ipv4.hex")
	const ext = 52 + 53 // in both
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"version 1", rfc, ErrMode},
		{"version 2 without an offer", linux, ErrMode},
		{"no extension", set(both, 50, 0, 0), ErrMode},
		{"extension in the prefixes", set(both, 50, 0, 0x34), ErrLength},
		{"extension behind the end", set(both, 50, 0xff, 0xff), ErrLength},
		{"extension elsewhere, version 2 alone", set(only, 50, 0, 0x1d), ErrLength},
		{"version 1 without the area", set(rfc, 7, 0x20), ErrLength},
		{"longer area", longerArea(both), ErrLength},
		{"one EID too few", set(both, ext, 1), ErrLength},
		{"one EID too many", set(both, ext, 3), ErrLength},
		{"nine EIDs", set(both, ext, 9), ErrRange},
		{"nine ISM devices", set(both, ext+1, 9), ErrRange},
		{"one ISM device too few", set(both, ext+1, 1), ErrLength},
		{"SMC-D extension elsewhere", set(both, ext+6, 0, 0x61), ErrLength},
		{"SMC-D extension missing", set(both, ext+6, 0, 0), ErrLength},
		{"SMC-D extension without the mode", set(both, 7, 0x23), ErrLength},
		{"SMC-D mode without the extension", set(only, 7, 0x2e), ErrLength},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if o, err := parse(tt.b).Offer(); !errors.Is(err, tt.want) {
				t.Errorf("%+v, %v, want %v", o, err, tt.want)
			}
		})
	}
	for name, o := range map[string]Offer{
		"no mode":              {Mode: ModeNone},
		"mode 4":               {Mode: 4},
		"nine EIDs":            {EIDs: make([]EID, 9)},
		"release 16":           {Release: 16},
		"SMC-D without mode":   {SMCD: &SMCDOffer{}},
		"mode without SMC-D":   {Mode: ModeD},
		"nine ISM devices":     {Mode: ModeD, SMCD: &SMCDOffer{Devices: make([]ISMDevice, 9)}},
		"mode without SMC-D 2": {Mode: ModeBoth},
	} {
		if _, err := (Proposal{}).WithOffer(o); !errors.Is(err, ErrRange) {
			t.Errorf("%s: %v, want %v", name, err, ErrRange)
		}
	}
}

// TestLongestProposal: the longest message of version 2 fits the reader's
// buffer, and comes back whole.
func TestLongestProposal(t *testing.T) {
	o := Offer{Mode: ModeBoth, EIDs: slices.Repeat([]EID{eidA}, MaxUEIDs), SMCD: &SMCDOffer{Devices: make([]ISMDevice, MaxISMDevices)}}
	p := must(Proposal{IPv6: slices.Repeat([]netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}, MaxIPv6Prefixes)}.WithOffer(o))
	b := must(p.AppendBinary(nil))
	if len(b) != 652 {
		t.Errorf("%d bytes, want 652", len(b))
	}
	got, err := must(ParseProposal(b)).Offer()
	if d := diff(o, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestOutOfRangeV2(t *testing.T) {
	first := &FirstContactExt{}
	tests := []struct {
		name string
		m    encoding.BinaryAppender
		want error
	}{
		{"QPN", AcceptV2{Endpoint: Endpoint{QPN: 1 << 24}}, ErrRange},
		{"operating system", AcceptV2{FirstContact: &FirstContactExt{OS: 16}}, ErrRange},
		{"release", ConfirmV2{FirstContact: &FirstContactExt{Release: 16}}, ErrRange},
		{"GIDs without a first contact", ConfirmV2{GIDs: make([]smc.GID, 1)}, ErrRange},
		{"too many GIDs", ConfirmV2{FirstContact: first, GIDs: make([]smc.GID, 118)}, ErrRange},
		{"extension in version 1", AddLink{Ext: &AddLinkExt{}}, ErrVersion},
		{"too many pairs", AddLink{Layout: LLCV2, Ext: &AddLinkExt{Pairs: make([]RKeyPair, 256)}}, ErrRange},
		{"layout", TestLink{Layout: 3}, ErrRange},
		{"too many RKeys", DeleteRKeyV2{Layout: LLCV2, RKeys: make([]smc.RKey, 256)}, ErrRange},
		{"reply with RKeys", DeleteRKeyV2{Layout: LLCV2, Reply: true, RKeys: make([]smc.RKey, 1)}, ErrRange},
		{"too many GIDs in REQUEST", ReqAddLink{Layout: LLCV2, GIDs: make([]smc.GID, 256)}, ErrRange},
		{"reply with GIDs", ReqAddLink{Layout: LLCV2, Reply: true, GIDs: make([]smc.GID, 1)}, ErrRange},
		{"REQUEST in version 1", ReqAddLink{}, ErrVersion},
		{"DELETE RKEY in version 1", DeleteRKeyV2{}, ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.m.AppendBinary([]byte("front"))
			if !errors.Is(err, tt.want) || string(b) != "front" {
				t.Errorf("%q, %v, want %v", b, err, tt.want)
			}
		})
	}
}
