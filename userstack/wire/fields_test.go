// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"smcr/smc"
)

// TestOtherType: a parser refuses a message of another type as such, whatever its length.
func TestOtherType(t *testing.T) {
	parsers := map[CLCType]func([]byte) (encoding.BinaryAppender, error){
		TypeProposal: boxed(ParseProposal), TypeAccept: boxed(ParseAccept), TypeConfirm: boxed(ParseConfirm), TypeDecline: boxed(ParseDecline),
	}
	end := Endpoint{MTU: 3}
	for _, m := range []CLC{Proposal{}, Accept{Endpoint: end}, Confirm{Endpoint: end}, Decline{}} {
		b, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		for typ, parse := range parsers {
			if _, err := parse(b); (err == nil) != (typ == m.CLCType()) || err != nil && !errors.Is(err, ErrType) {
				t.Errorf("%s as %s: %v", m.CLCType(), typ, err)
			}
		}
	}
}

// TestReservedFlags: a receiver ignores the reserved bits of the flags in a message that has
// no flag set.
func TestReservedFlags(t *testing.T) {
	for _, m := range []LLC{
		ConfirmLink{}, AddLink{}, AddLinkCont{}, DeleteLink{}, ConfirmRKey{}, ConfirmRKeyCont{}, DeleteRKey{}, TestLink{},
		ConfirmLink{Layout: LLCV2}, AddLink{Layout: LLCV2}, DeleteLink{Layout: LLCV2}, ConfirmRKey{Layout: LLCV2},
		DeleteRKeyV2{Layout: LLCV2}, ReqAddLink{Layout: LLCV2}, TestLink{Layout: LLCV2},
	} {
		b, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var flags byte
		for _, c := range codecs {
			if got, err := c.parse(b); err == nil && c.flagsAt == 3 && diff(m, got) == "" {
				flags = c.flags
			}
		}
		if flags == 0 {
			t.Errorf("%T: no codec takes %x", m, b)
			continue
		}
		b[3] |= ^flags
		if _, ok := m.(ConfirmLink); ok {
			b[3] &^= llcNoEyec // two bits, of which either counts
		}
		got, err := ParseLLC(b)
		if err != nil {
			t.Errorf("%T with flags %#x: %v", m, b[3], err)
		} else if d := diff(m, got); d != "" {
			t.Errorf("%T with flags %#x (-want +got):\n%s", m, b[3], d)
		}
		if h, err := ParseLLCHeader(b); err != nil || h.Reply {
			t.Errorf("%T with flags %#x: header %+v, %v", m, b[3], h, err)
		}
	}
}

// TestUnknownOpcodes: where the length of a message with an unknown opcode stands is not
// known, so it is not checked, and the opcode is the error.
func TestUnknownOpcodes(t *testing.T) {
	known := []LLCType{
		LLCConfirmLink, LLCAddLink, LLCAddLinkCont, LLCDeleteLink, LLCConfirmRKey, LLCTestLink, LLCConfirmRKeyCont, LLCDeleteRKey,
	}
	for op := range 0xc0 { // above, there are CDC messages
		b := make([]byte, LLCLen)
		b[0] = byte(op)
		v1, v2 := LLCType(op), LLCType(op)&^llcV2Bit
		has := slices.Contains(known, v1) || v1&llcV2Bit != 0 && (v2 == LLCReqAddLink ||
			slices.Contains(known, v2) && v2 != LLCAddLinkCont && v2 != LLCConfirmRKeyCont)
		h, err := ParseLLCHeader(b)
		if has && !errors.Is(err, ErrLength) {
			t.Errorf("opcode %#x with length 0: %v, want %v", op, err, ErrLength)
		}
		if !has && (err != nil || h.Type != v1) {
			t.Errorf("opcode %#x: %+v, %v, want the opcode alone", op, h, err)
		}
		if _, err := ParseLLC(b); !has && !errors.Is(err, ErrOpcode) {
			t.Errorf("opcode %#x: %v, want %v", op, err, ErrOpcode)
		}
	}
	if !IsCDC([]byte{byte(0xfe)}) || IsCDC([]byte{0x7f}) || IsCDC(nil) {
		t.Error("the two high bits of the first byte tell a CDC message")
	}
}

// TestLengthsOfVersion2: a message of version 2 has up to MaxLLCLenV2 bytes.
func TestLengthsOfVersion2(t *testing.T) {
	b, err := DeleteRKeyV2{Layout: LLCV2, RKeys: []smc.RKey{7}}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		len  int
		want error
	}{{MaxLLCLenV2, nil}, {MaxLLCLenV2 + 1, ErrLength}} {
		long := append(slices.Clone(b), make([]byte, tt.len-len(b))...)
		binary.BigEndian.PutUint16(long[1:], uint16(tt.len))
		if _, err := ParseDeleteRKeyV2(long); !errors.Is(err, tt.want) {
			t.Errorf("%d bytes: %v, want %v", tt.len, err, tt.want)
		}
	}
}

// TestRejectedAddLink: a rejection of version 2 has neither an extension nor a reason, whose
// place is that of the length. What follows in the message is ignored.
func TestRejectedAddLink(t *testing.T) {
	m := AddLink{Layout: LLCV2, Reply: true, Rejected: true, LinkNum: 2, Ext: &AddLinkExt{Direct: true}}
	b, err := m.AppendBinary(nil)
	if err != nil || len(b) != LLCLen {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	m.Ext = nil
	got, err := ParseAddLink(b)
	if d := diff(m, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	b = append(b, 1, 2, 3, 4)
	b[2] = byte(len(b))
	got, err = ParseAddLink(b)
	if d := diff(m, got); err != nil || d != "" {
		t.Errorf("longer: %v (-want +got):\n%s", err, d)
	}
}

// TestAddLinkExtension: the extension says whether a router is on the way, in one bit of its
// first byte, and is whole or not there.
func TestAddLinkExtension(t *testing.T) {
	for _, direct := range []bool{false, true} {
		m := AddLink{Layout: LLCV2, LinkNum: 2, MTU: 3, Ext: &AddLinkExt{Direct: direct, TargetGID: smc.GID{1}}}
		b, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		b[LLCLen] |= 0x7f // reserved
		got, err := ParseAddLink(b)
		if d := diff(m, got); err != nil || d != "" {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
		for n := LLCLen + 1; n < LLCLen+addLinkExtLen; n++ {
			b[2] = byte(n)
			if _, err := ParseAddLink(b[:n]); !errors.Is(err, ErrLength) {
				t.Errorf("%d bytes: %v, want %v", n, err, ErrLength)
			}
		}
	}
}

// TestOfferLengths: an extension of version 2 that is cut, or whose place is too long, is
// refused.
func TestOfferLengths(t *testing.T) {
	full, err := Proposal{TypeV1: ModeR}.WithOffer(Offer{Mode: ModeR, Release: 15, MaxConns: 16, MaxLinks: 1, Features: 3})
	if err != nil {
		t.Fatal(err)
	}
	o, err := full.Offer()
	if err != nil || o.Release != 15 || o.MaxConns != 16 || o.MaxLinks != 1 || o.Features != 3 {
		t.Errorf("%+v, %v", o, err)
	}
	for n := range full.Extension {
		cut := full
		cut.Extension = full.Extension[:n]
		if _, err := cut.Offer(); !errors.Is(err, ErrLength) {
			t.Errorf("extension of %d bytes: %v", n, err)
		}
	}
	long := full
	long.Growth = append(slices.Clone(full.Growth), 0)
	if _, err := long.Offer(); !errors.Is(err, ErrLength) {
		t.Errorf("%d bytes for growth: %v", len(long.Growth), err)
	}
	// In release 0 the numbers are reserved.
	old := full
	old.Extension = slices.Clone(full.Extension)
	old.Extension[3] = 0
	if o, err := old.Offer(); err != nil || o.Release != 0 || o.MaxConns != 0 || o.MaxLinks != 0 || o.Features != 0 {
		t.Errorf("release 0: %+v, %v", o, err)
	}
	// What another offer has left does not stay.
	full.TypeV1 = ModeNone
	again, err := full.WithOffer(Offer{Mode: ModeR})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := again.AppendBinary(nil); err != nil || len(b) != ProposalFixedLen+ProposalGrowthLinux+offerFixedLen+TrailerLen {
		t.Errorf("an offer in place of another: %d bytes, %v", len(b), err)
	}
}

// TestShortestProposal: without version 1 and without an area for growth.
func TestShortestProposal(t *testing.T) {
	b, err := Proposal{Version: Version2, TypeV1: ModeNone, PeerID: smc.PeerID{1}}.AppendBinary(nil)
	if err != nil || len(b) != ProposalFixedLen+TrailerLen {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if p, err := ParseProposal(b); err != nil || p.PeerID != (smc.PeerID{1}) || len(p.Growth) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	b = slices.Delete(b, ProposalFixedLen-1, ProposalFixedLen)
	binary.BigEndian.PutUint16(b[5:], uint16(len(b)))
	if _, err := ParseProposal(b); !errors.Is(err, ErrLength) {
		t.Errorf("one byte less: %v", err)
	}
}

// TestVendorBytes: stacks of different builds know each other by these bytes, which have the
// bit of locally administered identifiers.
func TestVendorBytes(t *testing.T) {
	p, err := Proposal{TypeV1: ModeR}.WithOffer(Offer{Mode: ModeR, Release: ReleaseV21, VendorOUI: VendorOUI})
	if err != nil {
		t.Fatal(err)
	}
	if got := [3]byte(p.Growth[52-ProposalFixedLen:]); got != [3]byte{0x02, 'S', 'M'} {
		t.Errorf("PROPOSAL has %x", got)
	}
	if got := VendorUDPPort(0xee49); got != 0x534dee49 {
		t.Errorf("port 0xee49 is %#x", got)
	}
}

// TestLastContinuation: more entries than a message has room for are left for the next one.
func TestLastContinuation(t *testing.T) {
	for left := range uint8(6) {
		m := ConfirmRKeyCont{Left: left}
		if got, want := m.Count(), min(int(left), 3); got != want {
			t.Errorf("CONFIRM RKEY CONTINUATION with %d left has %d", left, got)
		}
		if got, want := (AddLinkCont{Left: left}).Count(), min(int(left), 2); got != want {
			t.Errorf("ADD LINK CONTINUATION with %d left has %d", left, got)
		}
	}
}

// TestErrorMask: the highest bit of a negative DELETE RKEY is for the first RKey (RFC 7609,
// appendix A.3.7).
func TestErrorMask(t *testing.T) {
	for i := range DeleteRKeyMax {
		m := DeleteRKey{Negative: true, Count: DeleteRKeyMax, ErrorMask: 0x80 >> i}
		for j := -1; j <= DeleteRKeyMax; j++ {
			if got := m.Failed(j); got != (i == j) {
				t.Errorf("mask %#02x: RKey %d failed: %t", m.ErrorMask, j, got)
			}
		}
	}
}

// TestEmptyLists: a request with an empty list is read as it was sent.
func TestEmptyLists(t *testing.T) {
	for _, m := range []LLC{DeleteRKeyV2{Layout: LLCV2}, ReqAddLink{Layout: LLCV2}} {
		b, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseLLC(b)
		if d := diff(m, got); err != nil || d != "" {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	}
}

// TestEndOfOptions: what follows the end of the TCP options is padding.
func TestEndOfOptions(t *testing.T) {
	if HasTCPOption(AppendTCPOption([]byte{tcpOptEnd, 2})) {
		t.Error("an option after the end counts")
	}
	if !HasTCPOption(AppendTCPOption([]byte{tcpOptNop, 3, 2})) {
		t.Error("an option after another one of two bytes does not count")
	}
}

// Test24Bits: numbers of 24 bits take three bytes.
func Test24Bits(t *testing.T) {
	b := make([]byte, 3)
	put24(b, 0x123456)
	if got := get24(b); got != 0x123456 || b[0] != 0x12 {
		t.Errorf("%x, %#x", b, got)
	}
}
