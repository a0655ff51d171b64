// SPDX-License-Identifier: Apache-2.0

package header_test

import (
	"bytes"
	"testing"

	"smcr/rdmaverbs/softroce/header"
)

// FuzzParseTransport checks that the parts of a packet are the packet.
func FuzzParseTransport(f *testing.F) {
	for _, g := range readHex(f) {
		_, data, _, err := header.ParseV1(g.frame[header.EthernetLen:])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := header.ParseTransport(b)
		if err != nil {
			return
		}
		parts := bytes.Join([][]byte{p.BTH, p.RETH, p.AETH, p.ImmDt, p.Payload}, nil)
		pad := int(p.BTH.PadCount())
		if !bytes.Equal(parts, b[:len(b)-pad]) {
			t.Fatalf("parts %x of packet %x", parts, b)
		}
		if n := p.BTH.Opcode().HeaderLen(); n+len(p.Payload)+pad != len(b) || len(b)%4 != 0 {
			t.Fatalf("%v: %d header, %d payload, %d pad bytes of %d", p.BTH.Opcode(), n, len(p.Payload), pad, len(b))
		}
		again := make(header.BTH, header.BTHLen)
		fields := p.BTH.Fields()
		again.Encode(&fields)
		// Encode does not keep transport version and reserved bits.
		want := bytes.Clone(p.BTH)
		want[1] &^= 0x0f
		want[4] = 0
		want[8] &= 0x80
		if !bytes.Equal(again, want) {
			t.Fatalf("BTH %x encoded as %x", want, []byte(again))
		}
	})
}

// FuzzParseFrame checks that no frame makes the parsers read beyond it, and
// that what they return lies within.
func FuzzParseFrame(f *testing.F) {
	for _, g := range readHex(f) {
		f.Add(g.frame)
	}
	for _, name := range []string{"v2-ipv4.pcap", "v2-ipv6.pcap"} {
		for _, b := range readPcap(f, name)[:4] {
			f.Add(b)
		}
	}
	var k header.Checker
	f.Fuzz(func(t *testing.T, b []byte) {
		eth, rest, err := header.ParseEthernet(b)
		if err != nil {
			return
		}
		if len(eth)+len(rest) != len(b) {
			t.Fatalf("%d + %d bytes of %d", len(eth), len(rest), len(b))
		}
		_ = eth.VID()
		if grh, data, icrc, err := header.ParseV1(rest); err == nil {
			if int(grh.PayloadLen()) != len(data)+len(icrc) || len(icrc) != header.ICRCLen {
				t.Fatalf("payload length %d, %d data bytes", grh.PayloadLen(), len(data))
			}
			_ = k.V1(grh, data).Add(data[header.BTHLen:])
		}
		if ip, udp, payload, err := header.ParseUDPIPv6(rest); err == nil {
			if int(ip.PayloadLen()) != len(udp)+len(payload) {
				t.Fatalf("payload length %d, %d bytes", ip.PayloadLen(), len(payload))
			}
			if data, _, err := header.ParseV2(payload); err == nil {
				_ = k.V2IPv6(ip, udp, data).Add(data[header.BTHLen:])
			}
		}
		if ip, udp, payload, err := header.ParseUDPIPv4(rest); err == nil {
			if int(ip.TotalLen()) != len(ip)+len(udp)+len(payload) {
				t.Fatalf("total length %d, %d bytes", ip.TotalLen(), len(payload))
			}
		}
		if data, icrc, err := header.ParseV2(rest); err == nil && len(data)+len(icrc) != len(rest) {
			t.Fatalf("%d + %d bytes of %d", len(data), len(icrc), len(rest))
		}
	})
}
