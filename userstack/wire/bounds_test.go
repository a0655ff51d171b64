// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"smcr/smc"
)

// TestLargestValues: each field takes its largest value. TestOutOfRange has the next one.
func TestLargestValues(t *testing.T) {
	end := Endpoint{QPN: smc.Max24, PSN: smc.Max24, RMBESize: smc.MaxSizeCode, MTU: 15}
	ext := &FirstContactExt{OS: 15, Release: 15}
	prefixes := []netip.Prefix{netip.MustParsePrefix("2001:db8::1/128")}
	longest := make([]byte, MaxCLCLen-ProposalFixedLen-TrailerLen)
	longest[0] = 1
	tests := []struct {
		name  string
		m     encoding.BinaryAppender
		parse func([]byte) (encoding.BinaryAppender, error)
	}{
		{"ACCEPT", Accept{Endpoint: end}, boxed(ParseAccept)},
		{"ACCEPT of version 2", AcceptV2{Endpoint: end, FirstContact: ext}, boxed(ParseAcceptV2)},
		{"CONFIRM with all GIDs", ConfirmV2{FirstContact: ext, GIDs: slices.Repeat([]smc.GID{{1}}, 117)}, boxed(ParseConfirmV2)},
		{"DECLINE", Decline{Version: Version2, OSType: 15}, boxed(ParseDecline)},
		{"PROPOSAL of version 15", Proposal{Version: 15}, boxed(ParseProposal)},
		{"PROPOSAL of one address", Proposal{Version: 1, TypeV2: ModeNone, IPv4: netip.MustParsePrefix("10.0.0.1/32"), IPv6: prefixes}, boxed(ParseProposal)},
		{"PROPOSAL of all addresses", Proposal{Version: 1, TypeV2: ModeNone, IPv4: netip.MustParsePrefix("10.0.0.0/0")}, boxed(ParseProposal)},
		{"PROPOSAL of network 0", Proposal{Version: 1, TypeV2: ModeNone, IPv4: netip.MustParsePrefix("0.0.0.0/8")}, boxed(ParseProposal)},
		{"longest PROPOSAL", Proposal{Version: Version2, TypeV1: ModeNone, Growth: longest}, boxed(ParseProposal)},
		{"ADD LINK", AddLink{QPN: smc.Max24, PSN: smc.Max24, MTU: 15, Reply: true, Rejected: true, Reason: 15}, boxed(ParseAddLink)},
		{"CONFIRM without GIDs", ConfirmV2{FirstContact: ext}, boxed(ParseConfirmV2)},
		// Its length is the same in both byte orders.
		{"DELETE RKEY of version 2", DeleteRKeyV2{Layout: LLCV2Little, Count: 255, RKeys: slices.Repeat([]smc.RKey{7}, 255)}, boxed(ParseDeleteRKeyV2)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := tt.m.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tt.parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(tt.m, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	tooLong := Proposal{Version: Version2, TypeV1: ModeNone, Growth: append(longest, 0)}
	if _, err := tooLong.AppendBinary(nil); !errors.Is(err, ErrRange) {
		t.Errorf("PROPOSAL of %d bytes: %v", MaxCLCLen+1, err)
	}
}

// TestHeaderBounds: which types and lengths a header may have, if no more than the header
// is there.
func TestHeaderBounds(t *testing.T) {
	header := func(typ byte, length int) []byte {
		b := binary.BigEndian.AppendUint32(nil, EyecatcherSMCR)
		b = append(b, typ, 0, 0, 0x10)
		binary.BigEndian.PutUint16(b[5:], uint16(length))
		return b
	}
	tests := []struct {
		typ    byte
		length int
		want   error
	}{
		{0, MinCLCLen, ErrType}, {1, MinCLCLen, nil}, {4, MinCLCLen, nil}, {5, MinCLCLen, ErrType},
		{1, MinCLCLen - 1, ErrLength}, {1, MaxCLCLen, nil}, {1, MaxCLCLen + 1, ErrLength},
	}
	for _, tt := range tests {
		h, err := ParseHeader(header(tt.typ, tt.length))
		if !errors.Is(err, tt.want) || err == nil && (h.Length != tt.length || h.Type != CLCType(tt.typ)) {
			t.Errorf("type %d, %d bytes: %+v, %v, want %v", tt.typ, tt.length, h, err, tt.want)
		}
	}
}

// TestAppendClears: what was in the buffer does not get into a message.
func TestAppendClears(t *testing.T) {
	for _, file := range messageFiles(t) {
		c := codecOf(t, file)
		m, err := c.parse(readHex(t, file))
		if err != nil {
			t.Fatal(err)
		}
		want, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.AppendBinary(bytes.Repeat([]byte{0xff}, MaxCLCLen)[:0])
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %x, %v, want %x", file, got, err, want)
		}
	}
}

// TestFieldsOfLaterReleases: the fields of release 2.1 and of version 2 are not sent
// without it.
func TestFieldsOfLaterReleases(t *testing.T) {
	a := AcceptV2{FirstContact: &FirstContactExt{Release: ReleaseV21 - 1, MaxConns: 1, MaxLinks: 2, Features: 3, Vendor: 4}}
	b, err := a.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if rest := b[firstContactExtAt+36 : firstContactExtAt+44]; !bytes.Equal(rest, make([]byte, 8)) {
		t.Errorf("ACCEPT has %x", rest)
	}
	p, err := Proposal{TypeV1: ModeNone}.WithOffer(Offer{Mode: ModeR, Release: ReleaseV21 - 1, MaxConns: 1, MaxLinks: 2, Features: 3})
	if err != nil {
		t.Fatal(err)
	}
	if rest := p.Growth[ProposalGrowthLinux+24 : ProposalGrowthLinux+28]; !bytes.Equal(rest, make([]byte, 4)) {
		t.Errorf("PROPOSAL has %x", rest)
	}
	if b, err = (ConfirmLink{MaxConns: 9}).AppendBinary(nil); err != nil || b[35] != 0 {
		t.Errorf("CONFIRM LINK of version 1: %x, %v", b, err)
	}
}

// TestFieldsOfOtherVersions: a message without the area of a field is refused.
func TestFieldsOfOtherVersions(t *testing.T) {
	six := []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}
	for name, m := range map[string]encoding.BinaryAppender{
		"more of a version 1 decline":       Decline{Version: Version1, More: [4]uint32{1}},
		"more of a decline of no version":   Decline{More: [4]uint32{0, 0, 0, 1}},
		"IPv6 prefix without version 1":     Proposal{Version: Version2, TypeV1: ModeNone, IPv6: six},
		"extension without version 1":       Proposal{Version: Version2, TypeV1: ModeNone, Extension: []byte{1}},
		"extension of a version 1 proposal": Proposal{Version: Version1, Extension: []byte{1}},
	} {
		if b, err := m.AppendBinary(nil); !errors.Is(err, ErrRange) || len(b) != 0 {
			t.Errorf("%s: %x, %v", name, b, err)
		}
	}
	d, err := Decline{}.AppendBinary(nil)
	if err != nil || d[7]>>4 != Version1 {
		t.Errorf("decline without a version: %x, %v", d, err)
	}
	var opcode error = &OpcodeError{Opcode: 0x99}
	if !errors.Is(opcode, ErrOpcode) || errors.Is(opcode, ErrShort) {
		t.Error("an unknown opcode is not told from a short message")
	}
}

// TestNoOffer: what is said under version 2 is nothing if a proposal does not say that it
// has it.
func TestNoOffer(t *testing.T) {
	full, err := Proposal{TypeV1: ModeR}.WithOffer(Offer{Mode: ModeR, Release: ReleaseV21})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := full.Offer(); err != nil {
		t.Fatal(err)
	}
	v1, none, short, cut := full, full, full, full
	v1.Version = Version1
	none.TypeV2 = ModeNone
	short.Growth = full.Growth[:ProposalGrowthLinux-1]
	cut.Extension = full.Extension[:offerFixedLen-1]
	for name, tt := range map[string]struct {
		p    Proposal
		want error
	}{"version 1": {v1, ErrMode}, "no mode": {none, ErrMode}, "growth cut": {short, ErrLength}, "extension cut": {cut, ErrLength}} {
		if o, err := tt.p.Offer(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %+v, %v, want %v", name, o, err, tt.want)
		}
	}
}

// TestReplies: IsReply is the R flag of each message, and a reply has no list, whatever
// stands where a request has its length.
func TestReplies(t *testing.T) {
	for _, reply := range []bool{false, true} {
		for _, m := range []LLC{
			ConfirmLink{Reply: reply}, AddLink{Reply: reply}, AddLinkCont{Reply: reply}, DeleteLink{Reply: reply}, ConfirmRKey{Reply: reply},
			ConfirmRKeyCont{Reply: reply}, DeleteRKey{Reply: reply}, TestLink{Reply: reply},
			ReqAddLink{Layout: LLCV2, Reply: reply}, DeleteRKeyV2{Layout: LLCV2, Reply: reply},
		} {
			b, err := m.AppendBinary(nil)
			if err != nil || m.IsReply() != reply || (b[3]&llcReply != 0) != reply {
				t.Errorf("%T: %x, %v", m, b, err)
			}
		}
	}
	b, err := ReqAddLink{Layout: LLCV2, Reply: true}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	b[24] = 9
	if m, err := ParseReqAddLink(b); err != nil || m.GIDs != nil {
		t.Errorf("reply: %+v, %v", m, err)
	}
}
