// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTruncated cuts every message at every byte, and makes every message
// one byte too long. The cut buffers have no capacity beyond their length, so
// that reading past it would panic.
func TestTruncated(t *testing.T) {
	for _, file := range messageFiles(t) {
		c := codecOf(t, file)
		raw := readHex(t, file)
		for n := range raw {
			cut := slices.Clip(bytes.Clone(raw[:n]))
			if _, err := c.parse(cut); !errors.Is(err, ErrShort) {
				t.Errorf("%s cut to %d bytes: %v, want %v", file, n, err, ErrShort)
			}
			if m, err := generic(cut); err == nil {
				t.Errorf("%s cut to %d bytes: parsed as %T", file, n, m)
			}
		}
		if _, err := c.parse(append(raw, 0)); !errors.Is(err, ErrLength) {
			t.Errorf("%s with a byte more: %v, want %v", file, err, ErrLength)
		}
	}
}

// TestWrongType gives every message to every other parser.
func TestWrongType(t *testing.T) {
	for _, file := range messageFiles(t) {
		raw := readHex(t, file)
		for _, c := range codecs {
			// One parser reads an LLC message of both versions.
			v1 := func(name string) string { return strings.Replace(name, "llc2_", "llc_", 1) }
			if strings.HasPrefix(v1(filepath.Base(file)), v1(c.name)+".") {
				continue
			}
			if m, err := c.parse(raw); err == nil {
				t.Errorf("%s parsed as %T", file, m)
			}
		}
	}
}

// TestRetainsNothing overwrites the parsed bytes afterwards.
func TestRetainsNothing(t *testing.T) {
	for _, file := range messageFiles(t) {
		c := codecOf(t, file)
		raw := readHex(t, file)
		want, err := c.parse(bytes.Clone(raw))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := c.parse(raw)
		clear(raw)
		if d := diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}

func set(b []byte, at int, v ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], v)
	return b
}

func TestMalformed(t *testing.T) {
	fig := func(name string) []byte { return readHex(t, "testdata/figures/"+name+".hex") }
	var (
		proposal = fig("clc_proposal.rfc_ipv4")
		ipv6     = fig("clc_proposal.rfc_ipv6")
		accept   = fig("clc_accept.rfc")
		decline  = fig("clc_decline.rfc")
		linux    = readHex(t, "testdata/captures/clc_proposal.iperf3_two_connections-v1.srv.frame4.hex") // version 2
	)
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"eyecatcher", set(proposal, 0, 'G', 'E', 'T', ' '), ErrEyecatcher},
		{"trailer", set(proposal, len(proposal)-1, 0), ErrEyecatcher},
		{"type 0", set(proposal, 4, 0), ErrType},
		{"type 5", set(proposal, 4, 5), ErrType},
		{"version 0", set(proposal, 7, 0), ErrVersion},
		{"length 0", set(proposal, 5, 0, 0), ErrLength},
		{"length 11", set(proposal, 5, 0, 11), ErrLength},
		{"length 65535", set(proposal, 5, 0xff, 0xff), ErrLength},
		{"length above what is there", set(proposal, 5, 0, 53), ErrShort},
		{"proposal without fields", mustHex("e2d4c3d9 01 000c 10 e2d4c3d9"), ErrLength},
		{"offset beyond the end", set(proposal, 38, 0, 1), ErrLength},
		{"offset 65535", set(proposal, 38, 0xff, 0xff), ErrLength},
		{"IPv4 mask of 33 bits", set(proposal, 44, 33), ErrRange},
		{"prefix that is not there", set(proposal, 47, 1), ErrLength},
		{"prefix too many", set(ipv6, 47, 1), ErrLength},
		{"nine prefixes", set(ipv6, 47, 9), ErrRange},
		{"prefix that is not there, version 2", set(linux, 87, 1), ErrLength},
		{"IPv6 prefix of 129 bits", set(ipv6, 64, 129), ErrRange},
		{"accept of version 2", set(accept, 7, 0x28), ErrLength},
		{"accept of version 3", set(accept, 7, 0x38), ErrVersion},
		{"accept of SMC-D", set(accept, 0, 0xe2, 0xd4, 0xc3, 0xc4), ErrMode},
		{"accept with the length of version 2", append(set(accept, 5, 0, 72), 0xe2, 0xd4, 0xc3, 0xd9), ErrLength},
		{"decline of version 3", set(decline, 7, 0x30), ErrVersion},
		{"decline of version 2 in 28 bytes", set(decline, 7, 0x20), ErrLength},
		{"LLC length", set(fig("llc_test_link.rfc"), 1, 43), ErrLength},
		{"nine RKeys", set(fig("llc_delete_rkey.rfc"), 4, 9), ErrRange},
		{"CDC length", set(fig("cdc.rfc"), 1, 45), ErrLength},
		{"CDC type", set(fig("cdc.rfc"), 0, 0xfd), ErrType},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parse := generic
			if tt.want == ErrEyecatcher { // not to be recognised by the eyecatcher, then
				parse = boxed(ParseCLC)
			}
			if m, err := parse(tt.b); !errors.Is(err, tt.want) {
				t.Errorf("%+v, %v, want %v", m, err, tt.want)
			}
		})
	}
}

// TestOutOfRange: what does not fit its field is an error, and the buffer is
// returned as it was.
func TestOutOfRange(t *testing.T) {
	six := netip.MustParsePrefix("2001:db8::/32")
	four := netip.MustParsePrefix("10.0.0.0/8")
	tests := []struct {
		name string
		m    encoding.BinaryAppender
		want error
	}{
		{"QPN of ACCEPT", Accept{Endpoint: Endpoint{QPN: 1 << 24}}, ErrRange},
		{"PSN of ACCEPT", Accept{Endpoint: Endpoint{PSN: 1 << 24}}, ErrRange},
		{"MTU of CONFIRM", Confirm{Endpoint: Endpoint{MTU: 16}}, ErrRange},
		{"element size of CONFIRM", Confirm{Endpoint: Endpoint{RMBESize: 16}}, ErrRange},
		{"version 16", Proposal{Version: 16}, ErrRange},
		{"mode of version 1", Proposal{TypeV1: 4}, ErrRange},
		{"mode of version 2", Proposal{Version: 2, TypeV2: 4}, ErrRange},
		{"extension in version 1", Proposal{Extension: []byte{1}}, ErrRange},
		{"IPv6 as IPv4", Proposal{IPv4: six}, ErrRange},
		{"invalid IPv4", Proposal{IPv4: netip.PrefixFrom(four.Addr(), 33)}, ErrRange},
		{"IPv4 as IPv6", Proposal{IPv6: []netip.Prefix{four}}, ErrRange},
		{"invalid IPv6", Proposal{IPv6: []netip.Prefix{{}}}, ErrRange},
		{"IPv6 prefix of 129 bits", Proposal{IPv6: []netip.Prefix{netip.PrefixFrom(six.Addr(), 129)}}, ErrRange},
		{"nine prefixes", Proposal{IPv6: slices.Repeat([]netip.Prefix{six}, 9)}, ErrRange},
		{"prefix without version 1", Proposal{Version: 2, TypeV1: ModeNone, IPv4: four}, ErrRange},
		{"too long", Proposal{Growth: make([]byte, MaxCLCLen)}, ErrRange},
		{"decline of version 3", Decline{Version: 3}, ErrVersion},
		{"decline with an operating system", Decline{OSType: 2}, ErrRange},
		{"decline with operating system 16", Decline{Version: 2, OSType: 16}, ErrRange},
		{"QPN of CONFIRM LINK", ConfirmLink{QPN: 1 << 24}, ErrRange},
		{"QPN of ADD LINK", AddLink{QPN: 1 << 24}, ErrRange},
		{"PSN of ADD LINK", AddLink{PSN: 1 << 24}, ErrRange},
		{"MTU of ADD LINK", AddLink{MTU: 16}, ErrRange},
		{"reason of ADD LINK", AddLink{Reason: 16}, ErrRange},
		{"nine RKeys", DeleteRKey{Count: 9}, ErrRange},
		{"producer flags", CDC{Flags: 0x04}, ErrRange},
		{"connection state", CDC{State: 0x10}, ErrRange},
		{"lowest producer flag", CDC{Flags: 0x01}, ErrRange},
		{"lowest connection state", CDC{State: 0x01}, ErrRange},
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

// TestOpcodeRule goes through every first byte (RFC 7609, appendix A.3).
func TestOpcodeRule(t *testing.T) {
	for op, want := range map[LLCType]string{
		0x23: "wire: unsupported LLC opcode 0x23: protocol error",
		0x85: "wire: unsupported LLC opcode 0x85: optional, discard it",
	} {
		if got := (&OpcodeError{op}).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for op := range 256 {
		b := make([]byte, LLCLen)
		b[0], b[1] = byte(op), LLCLen
		_, err := ParseLLC(b)
		var unknown *OpcodeError
		switch {
		case slices.Contains([]int{1, 2, 3, 4, 6, 7, 8, 9, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29}, op):
			if err != nil {
				t.Errorf("opcode %#x: %v", op, err)
			}
		case op >= 0xc0:
			if !errors.Is(err, ErrType) || !IsCDC(b) {
				t.Errorf("opcode %#x: %v, want %v", op, err, ErrType)
			}
		default:
			if !errors.As(err, &unknown) || !errors.Is(err, ErrOpcode) {
				t.Errorf("opcode %#x: %v, want %v", op, err, ErrOpcode)
			} else if want := op&0xc0 == 0x80; unknown.Discard() != want || int(unknown.Opcode) != op {
				t.Errorf("opcode %#x: %v, Discard %v, want %v", op, unknown, unknown.Discard(), want)
			}
		}
	}
}

// TestFraming reads messages out of a byte stream, as a socket gives it,
// followed by application data.
func TestFraming(t *testing.T) {
	stream := bytes.Join([][]byte{
		readHex(t, "testdata/captures/clc_proposal.iperf3_two_connections-v1.srv.frame4.hex"),
		readHex(t, "testdata/captures/clc_confirm.iperf3_two_connections-v1.srv.frame8.hex"),
		[]byte("GET / HTTP/1.1\r\n"),
	}, nil)
	var got []CLCType
	for {
		h, err := ParseHeader(stream)
		if err != nil {
			if !errors.Is(err, ErrEyecatcher) {
				t.Errorf("application data: %v, want %v", err, ErrEyecatcher)
			}
			break
		}
		m, err := ParseCLC(stream[:h.Length])
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.CLCType())
		stream = stream[h.Length:]
	}
	if want := []CLCType{TypeProposal, TypeConfirm}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if !strings.HasPrefix(string(stream), "GET") {
		t.Errorf("left over: %q", stream)
	}
}
