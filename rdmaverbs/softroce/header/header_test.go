// SPDX-License-Identifier: Apache-2.0

package header_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/rdmaverbs/softroce/header"

	"github.com/google/go-cmp/cmp"
)

// readPcap returns the frames of a classic little-endian pcap file.
func readPcap(t testing.TB, name string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s: not a little-endian pcap file", name)
	}
	var frames [][]byte
	for b = b[24:]; len(b) >= 16; {
		n, orig := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
		if n != orig {
			t.Fatalf("%s: frame %d is cut", name, len(frames)+1)
		}
		frames = append(frames, b[16:16+n])
		b = b[16+n:]
	}
	if len(frames) == 0 {
		t.Fatalf("%s: no frames", name)
	}
	return frames
}

type namedFrame struct {
	name  string
	frame []byte
}

// readHex returns the frames of v1.hex.
func readHex(t testing.TB) []namedFrame {
	t.Helper()
	f, err := os.Open("testdata/v1.hex")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []namedFrame
	for s := bufio.NewScanner(f); s.Scan(); {
		name, h, _ := strings.Cut(s.Text(), " ")
		b, err := hex.DecodeString(h)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, namedFrame{name, b})
	}
	if len(out) == 0 {
		t.Fatal("v1.hex is empty")
	}
	return out
}

// TestV1Golden parses frames of another implementation, and encodes them again.
func TestV1Golden(t *testing.T) {
	for i, f := range readHex(t) {
		t.Run(f.name, func(t *testing.T) {
			eth, rest, err := header.ParseEthernet(f.frame)
			if err != nil {
				t.Fatal(err)
			}
			if eth.Type() != header.EtherTypeRoCE || eth.Dst() != [6]byte{2, 0, 0, 0, 0, 0xb2} || eth.Src() != [6]byte{2, 0, 0, 0, 0, 0xa1} {
				t.Errorf("Ethernet header %x", []byte(eth))
			}
			grh, data, icrc, err := header.ParseV1(rest)
			if err != nil {
				t.Fatal(err)
			}
			var k header.Checker
			if got, want := k.V1(grh, data).Add(data[header.BTHLen:]), header.ReadICRC(icrc); got != want {
				t.Errorf("ICRC %08x, frame has %08x", got, want)
			}
			p, err := header.ParseTransport(data)
			if err != nil {
				t.Fatal(err)
			}
			wantBTH := header.BTHFields{
				Opcode: header.Opcode(data[0]), Solicited: true, PadCount: uint8(-len(p.Payload) & 3), PKey: 0xffff,
				DestQP: 0xabcde0 + uint32(i), AckReq: true, PSN: 0x123400 + uint32(i),
			}
			if d := cmp.Diff(wantBTH, p.BTH.Fields()); d != "" {
				t.Errorf("BTH (-want +got)\n%s", d)
			}
			for j, c := range p.Payload {
				if c != byte(i+j) {
					t.Fatalf("payload byte %d is %#x", j, c)
				}
			}
			op := p.BTH.Opcode()
			if (p.RETH != nil) != op.HasRETH() || (p.AETH != nil) != op.HasAETH() || (p.ImmDt != nil) != op.HasImmDt() {
				t.Errorf("%v: RETH %x AETH %x ImmDt %x", op, p.RETH, p.AETH, p.ImmDt)
			}

			again := make([]byte, len(f.frame))
			n := header.Ethernet(again).Encode(&header.EthernetFields{Dst: eth.Dst(), Src: eth.Src(), Type: eth.Type()})
			header.GRH(again[n:]).Encode(&header.GRHFields{
				TrafficClass: 0x21, FlowLabel: 0x54321, PayloadLen: uint16(len(data) + header.ICRCLen), HopLimit: uint8(64 - i),
				SGID: grh.SGID(), DGID: grh.DGID(),
			})
			n += header.GRHLen
			header.BTH(again[n:]).Encode(&wantBTH)
			n += header.BTHLen
			if p.RETH != nil {
				dma := uint32(len(p.Payload))
				if op == header.ReadRequest {
					dma = 4096
				}
				header.RETH(again[n:]).Encode(&header.RETHFields{VA: 0x7f0011223344 + uint64(i), RKey: 0xdeadbe00 + uint32(i), DMALen: dma})
				n += header.RETHLen
			}
			if p.AETH != nil {
				header.AETH(again[n:]).Encode(p.AETH.Syndrome(), 0x700+uint32(i))
				n += header.AETHLen
			}
			if p.ImmDt != nil {
				header.ImmDt(again[n:]).SetImm(0xcafe0000 + uint32(i))
				n += header.ImmDtLen
			}
			n += copy(again[n:], p.Payload) + int(p.BTH.PadCount())
			header.ReadICRC(icrc).Put(again[n:])
			if d := cmp.Diff(f.frame, again); d != "" {
				t.Errorf("encoded again (-want +got)\n%s", d)
			}
		})
	}
}

// TestV2Kernel checks the ICRC of every frame of two captures of Linux
// kernels, and finds the IPv4 identification that a UDP receiver lacks.
func TestV2Kernel(t *testing.T) {
	solver := header.NewIDSolver()
	for _, f := range readPcap(t, "v2-ipv4.pcap") {
		_, rest, err := header.ParseEthernet(f)
		if err != nil {
			t.Fatal(err)
		}
		ip, udp := header.IPv4(rest[:header.IPv4Len]), header.UDP(rest[header.IPv4Len:][:header.UDPLen])
		data, icrc := checkDatagram(t, rest[header.IPv4Len:ip.TotalLen()])
		var k header.Checker
		sum := func(ip header.IPv4) header.ICRC { return k.V2IPv4(ip, udp, data).Add(data[header.BTHLen:]) }
		if got, want := sum(ip), header.ReadICRC(icrc); got != want {
			t.Fatalf("ICRC %08x, frame has %08x", got, want)
		}
		blind := make(header.IPv4, header.IPv4Len)
		blind.Encode(&header.IPv4Fields{TotalLen: ip.TotalLen(), Src: ip.Src().As4(), Dst: ip.Dst().As4()})
		id, ok := solver.Solve(sum(blind), header.ReadICRC(icrc), header.IPv4Len-6+header.UDPLen+len(data))
		if !ok || id != ip.ID() {
			t.Errorf("solved identification %#x, %v, want %#x", id, ok, ip.ID())
		}
	}
	for _, f := range readPcap(t, "v2-ipv6.pcap") {
		_, rest, err := header.ParseEthernet(f)
		if err != nil {
			t.Fatal(err)
		}
		ip, udp, payload, err := header.ParseUDPIPv6(rest)
		if err != nil {
			t.Fatal(err)
		}
		data, icrc, err := header.ParseV2(payload)
		if err != nil {
			t.Fatal(err)
		}
		checkDatagram(t, rest[header.IPv6Len:][:ip.PayloadLen()])
		var k header.Checker
		if got, want := k.V2IPv6(ip, udp, data).Add(data[header.BTHLen:]), header.ReadICRC(icrc); got != want {
			t.Fatalf("ICRC %08x, frame has %08x", got, want)
		}
	}
}

// TestParseUDPIPv6 cuts a frame of Linux everywhere and damages its headers.
func TestParseUDPIPv6(t *testing.T) {
	_, whole, err := header.ParseEthernet(readPcap(t, "v2-ipv6.pcap")[0])
	if err != nil {
		t.Fatal(err)
	}
	n := header.IPv6Len + int(header.IPv6(whole).PayloadLen())
	for i := range n {
		if _, _, _, err := header.ParseUDPIPv6(whole[:i:i]); !errors.Is(err, header.ErrShort) {
			t.Errorf("cut at %d of %d: %v", i, n, err)
		}
	}
	for at, want := range map[int]error{
		0: header.ErrFormat, 6: header.ErrFormat, // version, next header
		header.IPv6Len + 2: header.ErrFormat, // destination port
		5:                  header.ErrLength, header.IPv6Len + 5: header.ErrLength,
	} {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		if _, _, _, err := header.ParseUDPIPv6(b); !errors.Is(err, want) {
			t.Errorf("byte %d damaged: %v, want %v", at, err, want)
		}
	}
}

// TestParseUDPIPv4 cuts a frame of Linux everywhere and damages its headers.
func TestParseUDPIPv4(t *testing.T) {
	_, whole, err := header.ParseEthernet(readPcap(t, "v2-ipv4.pcap")[0])
	if err != nil {
		t.Fatal(err)
	}
	n := int(header.IPv4(whole).TotalLen())
	if _, udp, payload, err := header.ParseUDPIPv4(whole); err != nil || len(udp)+len(payload) != n-header.IPv4Len {
		t.Fatalf("%d bytes, %v", len(payload), err)
	}
	for i := range n {
		if _, _, _, err := header.ParseUDPIPv4(whole[:i:i]); !errors.Is(err, header.ErrShort) {
			t.Errorf("cut at %d of %d: %v", i, n, err)
		}
	}
	for at, want := range map[int]error{
		0: header.ErrFormat, 9: header.ErrFormat, // version, protocol
		6: header.ErrFormat, 7: header.ErrFormat, // fragments
		header.IPv4Len + 2: header.ErrFormat, // destination port
		header.IPv4Len + 5: header.ErrLength,
	} {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		if _, _, _, err := header.ParseUDPIPv4(b); !errors.Is(err, want) {
			t.Errorf("byte %d damaged: %v, want %v", at, err, want)
		}
	}
}

func checkDatagram(t *testing.T, d []byte) (data, icrc []byte) {
	t.Helper()
	udp := header.UDP(d)
	if udp.DstPort() != header.UDPPortRoCE || int(udp.Len()) != len(d) {
		t.Fatalf("UDP header %x of %d bytes", d[:header.UDPLen], len(d))
	}
	data, icrc, err := header.ParseV2(d[header.UDPLen:])
	if err != nil {
		t.Fatal(err)
	}
	p, err := header.ParseTransport(data)
	if err != nil {
		t.Fatalf("%v: %v", p.BTH.Opcode(), err)
	}
	if p.BTH.TVer() != 0 || p.BTH.PKey() != header.DefaultPKey {
		t.Errorf("BTH %x", []byte(p.BTH))
	}
	return data, icrc
}

// TestICRCCovers flips every bit of a frame: the ICRC changes exactly if the
// bit is not in a variant field.
func TestICRCCovers(t *testing.T) {
	f := readHex(t)[4].frame // SEND Only
	_, rest, _ := header.ParseEthernet(f)
	_, data, _, err := header.ParseV1(rest)
	if err != nil {
		t.Fatal(err)
	}
	b := rest[:header.GRHLen+len(data)]
	sum := func() header.ICRC {
		var k header.Checker
		d := b[header.GRHLen:]
		return k.V1(header.GRH(b), d).Add(d[header.BTHLen:])
	}
	want := sum()
	for bit := range len(b) * 8 {
		at := bit / 8
		// Bits of a byte from the most significant one.
		variant := bit >= 4 && bit < 32 || at == 7 || at == header.GRHLen+4
		b[at] ^= 0x80 >> (bit % 8)
		if (sum() == want) != variant {
			t.Errorf("byte %d, bit %d: variant %v", at, bit%8, !variant)
		}
		b[at] ^= 0x80 >> (bit % 8)
	}
}

// TestIDSolverRefuses checks that about one damaged packet in 2^16 passes as
// one with a different identification.
func TestIDSolverRefuses(t *testing.T) {
	s := header.NewIDSolver()
	accepted := 0
	const tries = 1 << 18
	x := uint32(1)
	for range tries {
		x = x*1664525 + 1013904223
		if _, ok := s.Solve(0, header.ICRC(x), 64); ok {
			accepted++
		}
	}
	if accepted > 16 {
		t.Errorf("%d of %d random differences pass, want about %d", accepted, tries, tries>>16)
	}
	if _, ok := s.Solve(1, 2, 1<<20); ok {
		t.Error("solved for an impossible length")
	}
}

func TestSetters(t *testing.T) {
	b := make(header.BTH, header.BTHLen)
	for i := range b {
		b[i] = 0xff
	}
	b.SetOpcode(header.WriteLast)
	b.SetPadCount(2)
	b.SetPKey(0x7fff)
	b.SetDestQP(0x123456)
	b.SetAckReq(false)
	b.SetPSN(0xabcdef)
	want := header.BTHFields{
		Opcode: header.WriteLast, Solicited: true, MigReq: true, PadCount: 2, PKey: 0x7fff, DestQP: 0x123456, PSN: 0xabcdef,
	}
	if d := cmp.Diff(want, b.Fields()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if b.TVer() != 0x0f || b[4] != 0xff {
		t.Errorf("setters touched other bits: %x", []byte(b))
	}
	b.SetAckReq(true)
	if !b.AckReq() || b.PSN() != 0xabcdef {
		t.Errorf("AckReq: %x", []byte(b))
	}
	// Encode zeroes reserved bits, and cuts values that are too wide.
	b.Encode(&header.BTHFields{DestQP: 0xff000001, PSN: 0xff000002, PadCount: 7})
	if d := cmp.Diff(header.BTH{0, 0x30, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2}, b); d != "" {
		t.Errorf("Encode (-want +got)\n%s", d)
	}
}

func TestVLANTag(t *testing.T) {
	b := make([]byte, 20)
	f := header.EthernetFields{Dst: [6]byte{1}, Src: [6]byte{2}, Tagged: true, PCP: 5, VID: 0xabc, Type: header.EtherTypeRoCE}
	if n := header.Ethernet(b).Encode(&f); n != 18 {
		t.Fatalf("encoded %d bytes", n)
	}
	h, rest, err := header.ParseEthernet(b)
	if err != nil {
		t.Fatal(err)
	}
	got := header.EthernetFields{Dst: h.Dst(), Src: h.Src(), Tagged: h.Tagged(), PCP: h.PCP(), VID: h.VID(), Type: h.Type()}
	if d := cmp.Diff(f, got); d != "" || len(rest) != 2 {
		t.Errorf("(-want +got)\n%s%d bytes left", d, len(rest))
	}
	for n := range 18 {
		if _, _, err := header.ParseEthernet(b[:n]); err == nil {
			t.Errorf("%d bytes parsed as tagged header", n)
		}
	}
}

// TestTruncated cuts frames at every byte: no parser may read on or succeed
// where a header is incomplete.
func TestTruncated(t *testing.T) {
	for _, f := range readHex(t) {
		rest := f.frame[header.EthernetLen:]
		grh := header.GRH(rest)
		whole := header.GRHLen + int(grh.PayloadLen())
		for n := range whole {
			if _, _, _, err := header.ParseV1(rest[:n:n]); err == nil {
				t.Errorf("%s: %d of %d bytes parsed", f.name, n, whole)
			}
		}
		_, data, _, err := header.ParseV1(rest)
		if err != nil {
			t.Fatal(err)
		}
		need := header.Opcode(data[0]).HeaderLen() + int(header.BTH(data).PadCount())
		for n := range len(data) {
			_, err := header.ParseTransport(data[:n:n])
			if n < need && err == nil {
				t.Errorf("%s: %d of at least %d bytes parsed", f.name, n, need)
			}
		}
	}
}

// TestParseErrors checks which error each kind of bad packet gives.
func TestParseErrors(t *testing.T) {
	good := readHex(t)
	send, ack := good[4].frame[header.EthernetLen:], good[17].frame[header.EthernetLen:]
	edit := func(f []byte, at int, v byte) []byte {
		g := append([]byte(nil), f...)
		g[at] = v
		return g
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"IP version 4", edit(send, 0, 0x46), header.ErrFormat},
		{"next header UDP", edit(send, 6, 17), header.ErrFormat},
		{"length too long", edit(send, 4, 0xff), header.ErrShort},
		{"length too short for BTH", edit(edit(send, 4, 0), 5, 15), header.ErrShort},
		{"length not a multiple of 4", edit(send, 5, send[5]-1), header.ErrLength},
		{"opcode of another service", edit(send, 40, 0x64), header.ErrOpcode},
		{"reserved opcode", edit(send, 40, 0x1f), header.ErrOpcode},
		{"atomic", edit(send, 40, 0x13), header.ErrOpcode},
		{"payload in an ACK", edit(send, 40, 0x11), header.ErrLength},
		{"pad without payload", edit(ack, 41, 0x30), header.ErrShort},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, data, _, err := header.ParseV1(c.b)
			if err == nil {
				var p header.Transport
				p, err = header.ParseTransport(data)
				if p.BTH == nil {
					t.Error("no BTH to answer to")
				}
			}
			if err != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// TestRNRDelay checks the ends and some values of table 45.
func TestRNRDelay(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 655360 * time.Microsecond, 1: 10 * time.Microsecond, 5: 60 * time.Microsecond, 12: 640 * time.Microsecond,
		14: 1280 * time.Microsecond, 20: 10240 * time.Microsecond, 31: 491520 * time.Microsecond,
	} {
		if got := header.RNRDelay(code); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
	for code := uint8(2); code < 32; code++ {
		if header.RNRDelay(code) <= header.RNRDelay(code-1) {
			t.Errorf("code %d does not wait longer than the one before", code)
		}
	}
}

func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		s             header.Syndrome
		ack, rnr, nak bool
		code          uint8
		text          string
	}{
		{header.ACK(3), true, false, false, 3, "ACK, credit code 3"},
		{header.ACKNoCredits, true, false, false, 31, "ACK, credit code 31"},
		{header.RNR(12), false, true, false, 12, "RNR NAK, 640µs"},
		{header.NAKSequence, false, false, true, 0, "NAK, PSN sequence error"},
		{header.NAKInvalid, false, false, true, 1, "NAK, invalid request"},
		{header.NAKRemoteAccess, false, false, true, 2, "NAK, remote access error"},
		{header.NAKRemoteOp, false, false, true, 3, "NAK, remote operational error"},
		{0x45, false, false, false, 5, "syndrome 0x45"},
		{0x9f, false, false, false, 31, "syndrome 0x9f"},
	} {
		if c.s.IsACK() != c.ack || c.s.IsRNR() != c.rnr || c.s.IsNAK() != c.nak || c.s.Code() != c.code || c.s.String() != c.text {
			t.Errorf("%#x: ACK %v RNR %v NAK %v code %d %q", uint8(c.s), c.s.IsACK(), c.s.IsRNR(), c.s.IsNAK(), c.s.Code(), c.s)
		}
	}
}
