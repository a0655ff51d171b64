// SPDX-License-Identifier: Apache-2.0

package decode_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"smcr/internal/trace/capture"
	"smcr/internal/trace/decode"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack/wire"
)

var (
	client = netip.MustParseAddrPort("10.0.0.2:40000")
	server = netip.MustParseAddrPort("10.0.0.1:80")
	begun  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// rig feeds packets to a decoder.
type rig struct {
	*decode.Decoder
	events []*decode.Event
}

func newRig() *rig {
	r := &rig{}
	r.Decoder = decode.New(func(e *decode.Event) { r.events = append(r.events, e) })
	return r
}

// names returns the messages so far.
func (r *rig) names() string {
	var names []string
	for _, e := range r.events {
		n := e.Message
		if e.Fault != "" {
			n += " (" + e.Fault + ")"
		}
		names = append(names, n)
	}
	return strings.Join(names, ", ")
}

const (
	syn = 0x02
	ack = 0x10
)

// tcp feeds a TCP segment in an IPv4 packet with VLAN tags, of which cut bytes are missing.
func (r *rig) tcp(src, dst netip.AddrPort, seq uint32, flags byte, payload []byte, cut int) {
	b := make([]byte, 12)
	for _, typ := range []uint16{0x88a8, 7, 0x8100, 8, 0x0800} {
		b = binary.BigEndian.AppendUint16(b, typ)
	}
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(40+len(payload)))
	b = append(b, 0, 0, 0x40, 0, 64, 6, 0, 0)
	b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0)
	b = append(b, payload...)
	r.Packet(&decode.Packet{Time: begun, Data: b[:len(b)-cut], Length: len(b)})
}

// send feeds a RoCE version 1 packet.
func (r *rig) send(op header.Opcode, psn uint32, payload []byte) {
	bth := make([]byte, header.BTHLen)
	header.BTH(bth).Encode(&header.BTHFields{Opcode: op, DestQP: 0x22, PSN: psn, PKey: header.DefaultPKey})
	g := header.GRHFields{PayloadLen: uint16(len(bth) + len(payload) + header.ICRCLen), SGID: [16]byte{15: 1}, DGID: [16]byte{15: 2}}
	grh := make(header.GRH, header.GRHLen)
	grh.Encode(&g)
	var k header.Checker
	b := slices.Concat(make([]byte, 12), []byte{0x89, 0x15}, grh, bth, payload)
	b = k.V1(grh, bth).Add(payload).Append(b)
	r.Packet(&decode.Packet{Time: begun, Data: b, Length: len(b)})
}

func encode(t *testing.T, m interface{ AppendBinary([]byte) ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSegments sends CLC messages in segments of all kinds.
func TestSegments(t *testing.T) {
	p := encode(t, wire.Proposal{PeerID: smc.PeerID{1}})
	c := encode(t, wire.Confirm{Endpoint: wire.Endpoint{QPN: 5, AlertToken: 9}})
	d := encode(t, wire.Decline{Diagnosis: smc.DiagMem})
	both := slices.Concat(p, c)
	data := slices.Concat(p, d, p)
	type seg struct {
		at, end int
		cut     int
	}
	for _, test := range []struct {
		name string
		b    []byte
		segs []seg
		want string
	}{
		{"one", both, []seg{{0, len(both), 0}}, "PROPOSAL, CONFIRM"},
		{"bytes", both, func() (s []seg) {
			for i := range both {
				s = append(s, seg{i, i + 1, 0})
			}
			return s
		}(), "PROPOSAL, CONFIRM"},
		{"order", both, []seg{{70, 100, 0}, {30, 70, 0}, {100, len(both), 0}, {0, 30, 0}}, "PROPOSAL, CONFIRM"},
		{"again", both, []seg{{0, 60, 0}, {0, 60, 0}, {20, 80, 0}, {0, len(both), 0}, {0, len(both), 0}}, "PROPOSAL, CONFIRM"},
		{"lost", both, []seg{{0, 30, 0}, {40, len(both), 0}}, ""},
		{"decline", data, []seg{{0, len(data), 0}}, "PROPOSAL, DECLINE"},
		{"cut", both, []seg{{0, len(both), 20}}, "PROPOSAL, CONFIRM (message is truncated: CONFIRM of 68 bytes, have 48)"},
		{"other", []byte("GET / HTTP/1.0\r\n\r\n"), []seg{{0, 18, 0}}, ""},
		{"short", []byte("\xe2\xd4\xc3"), []seg{{0, 3, 0}}, ""},
		{"bad", []byte("\xe2\xd4\xc3\xd9\x07\x00\x10\x10"), []seg{{0, 8, 0}}, "CLC (unexpected message type: CLC type 7)"},
	} {
		for _, first := range []uint32{1000, 1<<32 - 40} { // the sequence numbers wrap
			r := newRig()
			r.tcp(client, server, first-1, syn, nil, 0)
			for _, s := range test.segs {
				r.tcp(client, server, first+uint32(s.at), ack, test.b[s.at:s.end], s.cut)
			}
			if got := r.names(); got != test.want {
				t.Errorf("%s from %d: %q, want %q", test.name, first, got, test.want)
			}
		}
	}
}

// TestMiddle begins in the middle of connections.
func TestMiddle(t *testing.T) {
	r := newRig()
	a := encode(t, wire.Accept{Endpoint: wire.Endpoint{QPN: 6, AlertToken: 8}})
	r.tcp(server, client, 1, ack, []byte("data of a program"), 0)
	r.tcp(server, client, 99, ack, a, 0)
	if r.names() != "ACCEPT" || r.events[0].Conn.String() != "10.0.0.2:40000-10.0.0.1:80" {
		t.Errorf("%q, %v", r.names(), r.events)
	}
}

// TestLongMessage sends an LLC message in several packets, which may be lost or repeated.
func TestLongMessage(t *testing.T) {
	var gids []smc.GID
	for i := range 120 {
		gids = append(gids, smc.GID{0: 1, 15: byte(i)})
	}
	m := encode(t, wire.ReqAddLink{Layout: wire.LLCV2, GIDs: gids})
	const mtu = 1024
	if len(m) <= mtu || len(m)%4 != 0 {
		t.Fatal(len(m))
	}
	for _, test := range []struct {
		name  string
		parts string // first, middle, last
		want  string
	}{
		{"whole", "FL", "SEND First, SEND Last, REQUEST ADD LINK"},
		{"again", "FFL", "SEND First, SEND First, SEND Last, REQUEST ADD LINK"},
		{"twice", "FLL", "SEND First, SEND Last, REQUEST ADD LINK, SEND Last"},
		{"lost", "L", "SEND Last"},
		{"gap", "F-L", "SEND First, SEND Last"},
	} {
		r := newRig()
		psn := uint32(header.PSNMask) // wraps
		for _, c := range test.parts {
			switch c {
			case 'F':
				psn = header.PSNMask
				r.send(header.SendFirst, psn, m[:mtu])
			case 'L':
				r.send(header.SendLast, (psn+1)&header.PSNMask, m[mtu:])
			case '-':
				psn++
			}
		}
		if got := r.names(); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestTrain has a datagram that the kernel has not divided yet.
func TestTrain(t *testing.T) {
	packet := func(f header.BTHFields, rest []byte) []byte {
		b := make([]byte, header.BTHLen)
		f.PKey = header.DefaultPKey
		header.BTH(b).Encode(&f)
		return append(append(b, rest...), 1, 2, 3, 4)
	}
	write := func(n int) []byte {
		b := make([]byte, header.RETHLen+n)
		header.RETH(b).Encode(&header.RETHFields{DMALen: uint32(n)})
		return packet(header.BTHFields{Opcode: header.WriteOnly}, b)
	}
	cdc := packet(header.BTHFields{Opcode: header.SendOnly}, encode(t, wire.CDC{}))
	llc := packet(header.BTHFields{Opcode: header.SendOnly}, encode(t, wire.TestLink{Layout: wire.LLCV2Little}))
	ack := packet(header.BTHFields{Opcode: header.Acknowledge}, make([]byte, header.AETHLen))
	for _, test := range []struct {
		parts [][]byte
		want  string
	}{
		{[][]byte{cdc, llc, ack}, "SEND Only, CDC, SEND Only, TEST LINK, Acknowledge"},
		{[][]byte{write(100), write(100)}, "RDMA WRITE Only, RDMA WRITE Only"},
		{[][]byte{write(100), cdc}, "RDMA WRITE Only, SEND Only, CDC"},
		{[][]byte{llc, ack}, "SEND Only, TEST LINK, Acknowledge"},
		{[][]byte{ack, ack}, "Acknowledge, Acknowledge"},
	} {
		payload := slices.Concat(test.parts...)
		b := make([]byte, header.EthernetLen+header.IPv4Len+header.UDPLen)
		header.Ethernet(b).Encode(&header.EthernetFields{Type: header.EtherTypeIPv4})
		header.IPv4(b[header.EthernetLen:]).Encode(&header.IPv4Fields{TotalLen: uint16(len(b) - header.EthernetLen + len(payload))})
		header.UDP(b[header.EthernetLen+header.IPv4Len:]).Encode(&header.UDPFields{DstPort: header.UDPPortRoCE, Len: uint16(header.UDPLen + len(payload))})
		r := newRig()
		r.Packet(&decode.Packet{Data: append(b, payload...)})
		if got := r.names(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// TestNotSMC sends messages that are not of SMC.
func TestNotSMC(t *testing.T) {
	for _, b := range [][]byte{nil, {0xfe, 44, 0, 0}, make([]byte, 44), make([]byte, 64), slices.Repeat([]byte{0xff}, 44), slices.Repeat([]byte{0x21}, 48)} {
		r := newRig()
		r.send(header.SendOnly, 1, b)
		for _, e := range r.events[1:] {
			if e.Fault == "" {
				t.Errorf("%x: %s", b, e.Line(true))
			}
		}
	}
}

// at returns a queue pair of host n of the rig.
func at(n byte, q smc.QPN) decode.QP {
	return decode.QP{Addr: netip.AddrFrom16([16]byte{15: n}), QPN: q}
}

// TestWho checks what the decoder finds out about CDC messages: queue pairs and connections.
func TestWho(t *testing.T) {
	cdc := encode(t, wire.CDC{Seq: 1, Token: 7})
	r := newRig()
	r.send(header.SendOnly, 1, cdc)
	other := decode.Conn{Client: server, Server: client}
	conn := decode.Conn{Client: client, Server: server}
	r.Learn(conn, 7, at(2, 0x33)) // since then, it has moved to another link
	r.send(header.SendOnly, 2, cdc)
	r.Learn(other, 7, at(2, 0x44)) // the same token of another peer
	r.send(header.SendOnly, 3, cdc)
	r.Learn(conn, 7, at(2, 0x22))
	r.send(header.SendOnly, 4, cdc)
	var got []string
	for _, e := range r.events {
		if e.Type == decode.CDC {
			got = append(got, e.Conn.String())
		}
	}
	if want := []string{"", conn.String(), "", conn.String()}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestICRC changes a packet on the way.
func TestICRC(t *testing.T) {
	r := newRig()
	r.send(header.WriteMiddle, 1, make([]byte, 8))
	if r.names() != "RDMA WRITE Middle" {
		t.Error(r.names())
	}
	b := slices.Concat(make([]byte, 12), []byte{0x89, 0x15}, make([]byte, 40), make([]byte, 12+8+4))
	header.GRH(b[14:]).Encode(&header.GRHFields{PayloadLen: 24})
	header.BTH(b[54:]).Encode(&header.BTHFields{Opcode: header.WriteMiddle})
	r.Packet(&decode.Packet{Data: b})
	if got := r.events[1]; got.Fault != "wrong ICRC" {
		t.Error(got.Line(true))
	}
}

// TestHostileText has control characters in a host name.
func TestHostileText(t *testing.T) {
	name := wire.Hostname{}
	copy(name[:], "a\x1b[31m\n\"b c\"")
	r := newRig()
	r.tcp(server, client, 1, ack, encode(t, wire.AcceptV2{FirstContact: &wire.FirstContactExt{Hostname: name}}), 0)
	line := r.events[0].Line(true)
	if strings.ContainsAny(line, "\x1b\n") || !strings.Contains(line, `host="a?[31m?'b c'"`) {
		t.Errorf("%q", line)
	}
}

// TestHostileFields has hostile texts in each field of CLC messages that is a text: a line has nothing but
// printable characters, no text looks like another field, and JSON is valid.
func TestHostileFields(t *testing.T) {
	for _, text := range []string{
		"\x1b[2J\x1b]0;t\a\n\r\t\x7f", "\u009b1m\u0085\u2028", "\u202e\u2066\u200b\ufeff", "\xff\xfe\xc3", "a\x00b", "<b>\"'&\\", "x qpn=1 (forged)", "a,b", strings.Repeat("界", 20),
	} {
		var name wire.Hostname
		var eid wire.EID
		copy(name[:], text)
		copy(eid[:], text)
		first := &wire.FirstContactExt{Hostname: name}
		offered, err := wire.Proposal{TypeV1: wire.ModeBoth}.WithOffer(wire.Offer{Mode: wire.ModeBoth, Release: wire.ReleaseV21, EIDs: []wire.EID{eid, eid}, HasSEID: true, SMCD: &wire.SMCDOffer{SEID: eid}})
		if err != nil {
			t.Fatal(err)
		}
		for kind, b := range map[string][]byte{
			"PROPOSAL": encode(t, offered),
			"ACCEPT":   encode(t, wire.AcceptV2{EID: eid, FirstContact: first}),
			"CONFIRM":  encode(t, wire.ConfirmV2{EID: eid, FirstContact: first}),
		} {
			r := newRig()
			r.tcp(server, client, 1, ack, b, 0)
			if len(r.events) != 1 || r.events[0].Message != kind || r.events[0].Fault != "" {
				t.Fatalf("%s: %+v", kind, r.events)
			}
			line := r.events[0].Line(true)
			if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: %q", kind, line)
			}
			quoted := strings.Split(line, `"`)
			for i := 0; i < len(quoted); i += 2 { // outside of quotes
				if strings.Contains(quoted[i], "forged") {
					t.Errorf("%s: looks like another field: %q", kind, line)
				}
			}
			j, err := json.Marshal(r.events[0].JSON())
			if err != nil || !json.Valid(j) {
				t.Errorf("%s: %v, %q", kind, err, j)
			}
		}
	}
}

// TestLimits fills the tables, and checks that the newest entries stay.
func TestLimits(t *testing.T) {
	r := newRig()
	p := encode(t, wire.Proposal{})
	for i := range 20000 {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1)
		r.tcp(src, server, 1, ack, p[:8], 0)
		r.Learn(decode.Conn{Client: src}, uint32(i), at(1, 1))
		for range 20 {
			r.Learn(decode.Conn{Client: src, Server: server}, 1, at(1, smc.QPN(i)))
		}
	}
	flows, tokens, longest := r.Sizes()
	if flows > 4096 || tokens > 8192 || longest > 8 {
		t.Errorf("%d flows, %d tokens, %d connections of one token", flows, tokens, longest)
	}
	last := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 19999 >> 8, 19999 & 0xff}), 1)
	r.tcp(last, server, 9, ack, p[8:], 0)
	if r.names() != "PROPOSAL" {
		t.Error(r.names())
	}
}

// FuzzPacket checks that no packet makes the decoder panic, and that each event can be
// printed.
func FuzzPacket(f *testing.F) {
	for _, name := range []string{"a_first_contact_echo.cli.pcap", "two-rnics-v1.eth0.pcap", "h4_client_no_ueid.cli.pcap"} {
		file, err := os.Open("../testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		r, err := capture.NewReader(file)
		if err != nil {
			f.Fatal(err)
		}
		var p decode.Packet
		for r.Next(&p) == nil {
			f.Add(uint8(p.Link), slices.Clone(p.Data))
		}
		file.Close()
	}
	f.Fuzz(func(t *testing.T, link uint8, b []byte) {
		r := newRig()
		for range 2 {
			r.Packet(&decode.Packet{Link: decode.Link(link % 4), Data: b})
		}
		for _, e := range r.events {
			if l := e.Line(true); strings.ContainsAny(l, "\n\x1b") {
				t.Errorf("%q", l)
			}
			_ = fmt.Sprint(e.JSON())
		}
	})
}
