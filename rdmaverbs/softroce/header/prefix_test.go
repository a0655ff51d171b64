// SPDX-License-Identifier: Apache-2.0

package header_test

import (
	"fmt"
	"hash/crc32"
	"testing"

	"smcr/rdmaverbs/softroce/header"

	"pgregory.net/rapid"
)

// TestAdd compares the CRC with that of the standard library, for all lengths
// about the limits of its ways.
func TestAdd(t *testing.T) {
	b := make([]byte, 300)
	for i := range b {
		b[i] = byte(i*i + 7*i)
	}
	for n := range 200 {
		for _, at := range []int{0, 1, 3, 8} {
			p := b[at : at+n]
			if got, want := header.ICRC(0xdeadbeef).Add(p), crc32.Update(0xdeadbeef, crc32.IEEETable, p); uint32(got) != want {
				t.Fatalf("%d bytes: %#x, want %#x", n, got, want)
			}
		}
	}
}

// TestPrefix compares it with the ICRC over headers as they are on the wire,
// for packets of changing paths, lengths and identifications.
func TestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p header.Prefix
		var k header.Checker
		gid := rapid.SampledFrom([][16]byte{
			{10: 0xff, 11: 0xff, 12: 10, 15: 1}, {10: 0xff, 11: 0xff, 12: 10, 15: 2}, {0: 0xfe, 1: 0x80, 15: 9},
		})
		for range rapid.IntRange(1, 40).Draw(t, "packets") {
			src, dst := gid.Draw(t, "source"), gid.Draw(t, "destination")
			port := uint16(rapid.IntRange(61000, 61002).Draw(t, "port"))
			id := rapid.Uint16().Draw(t, "identification")
			data := rapid.SliceOfN(rapid.Byte(), header.BTHLen, 200).Draw(t, "packet")
			n := len(data) + header.ICRCLen
			udp := make(header.UDP, header.UDPLen)
			udp.Encode(&header.UDPFields{SrcPort: port, DstPort: header.UDPPortRoCE, Len: uint16(header.UDPLen + n), Checksum: 0x1234})
			var got, want header.ICRC
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				grh := make(header.GRH, header.GRHLen)
				grh.Encode(&header.GRHFields{TrafficClass: 3, FlowLabel: 77, PayloadLen: uint16(n), HopLimit: 5, SGID: src, DGID: dst})
				want = k.V1(grh, data)
				p.UseV1(&src, &dst)
				got = p.Start(n)
			case 1:
				ip := make(header.IPv4, header.IPv4Len)
				ip.Encode(&header.IPv4Fields{
					TOS: 3, TotalLen: uint16(header.IPv4Len + header.UDPLen + n), ID: id, TTL: 5, Src: [4]byte(src[12:]), Dst: [4]byte(dst[12:]),
				})
				want = k.V2IPv4(ip, udp, data)
				p.UseIPv4(&src, &dst, port)
				got = p.StartID(n, id)
			default:
				ip := make(header.IPv6, header.IPv6Len)
				ip.Encode(&header.IPv6Fields{TrafficClass: 3, FlowLabel: 77, PayloadLen: uint16(header.UDPLen + n), HopLimit: 5, Src: src, Dst: dst})
				want = k.V2IPv6(ip, udp, data)
				p.UseIPv6(&src, &dst, port)
				got = p.Start(n)
			}
			was := data[4]
			want = want.Add(data[header.BTHLen:])
			if got = got.AddBTH(data); got != want {
				t.Fatalf("%#x, want %#x", got, want)
			}
			if data[4] != was {
				t.Fatal("the packet was changed")
			}
		}
	})
}

// BenchmarkPrefix is BenchmarkParseAndICRC with a Prefix.
func BenchmarkPrefix(b *testing.B) {
	for _, n := range []int{44, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var src, dst [16]byte
			data := make([]byte, header.BTHLen+n)
			header.BTH(data).Encode(&header.BTHFields{Opcode: header.SendOnly})
			var p header.Prefix
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := header.ParseTransport(data); err != nil {
					b.Fatal(err)
				}
				p.UseIPv4(&src, &dst, 61000)
				p.StartID(len(data)+header.ICRCLen, 5).AddBTH(data)
			}
		})
	}
}
