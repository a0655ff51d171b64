// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// packet builds a frame with another implementation.
func packet(t testing.TB, from, to string, tcp layers.TCP, payload string) []byte {
	t.Helper()
	a, b := netip.MustParseAddr(from), netip.MustParseAddr(to)
	eth := layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.SerializableLayer
	if a.Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: a.AsSlice(), DstIP: b.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: a.AsSlice(), DstIP: b.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v6)
		eth.EthernetType, ip = layers.EthernetTypeIPv6, v6
	}
	buf := gopacket.NewSerializeBuffer()
	o := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, o, &eth, ip, &tcp, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestFrame(t *testing.T) {
	for _, hosts := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		t.Run(hosts[0], func(t *testing.T) {
			tcp := layers.TCP{
				SrcPort: 40000, DstPort: 80, Seq: 7, Ack: 9, ACK: true, PSH: true, FIN: true, Window: 500,
				Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte{0, 0, 0, 1, 0, 0, 0, 2}}},
			}
			b := packet(t, hosts[0], hosts[1], tcp, "hello")
			f, err := parseFrame(append(b, "padding"...))
			if err != nil {
				t.Fatal(err)
			}
			want := Tuple{Local: netip.AddrPortFrom(netip.MustParseAddr(hosts[1]), 80), Remote: netip.AddrPortFrom(netip.MustParseAddr(hosts[0]), 40000)}
			if f.tuple != want || f.seq != 7 || f.ack != 9 || f.tsval != 1 || !f.hasPayload() || string(f.b[f.payload:]) != "hello" {
				t.Errorf("%+v", f)
			}
			// What is made of it must be what the other implementation makes, checksums included.
			tcp.PSH, tcp.FIN, tcp.Seq = false, false, 5
			if got, want := f.header(5, flagACK), packet(t, hosts[0], hosts[1], tcp, ""); !bytes.Equal(got.b, want) || got.hasPayload() {
				t.Errorf("bare ACK:\n%x, want\n%x", got.b, want)
			}
			back := tcp
			back.SrcPort, back.DstPort, back.Options = tcp.DstPort, tcp.SrcPort, nil
			// The other implementation fills short frames up.
			if got, want := f.question(5), packet(t, hosts[1], hosts[0], back, ""); !bytes.Equal(got.b, want[:got.payload]) || got.tuple != f.tuple.reverse() {
				t.Errorf("question:\n%x, want\n%x; %v", got.b, want, got.tuple)
			}
			tcp.RST = true
			if got, want := f.header(5, flagRST|flagACK).b, packet(t, hosts[0], hosts[1], tcp, ""); !bytes.Equal(got, want) {
				t.Errorf("reset:\n%x, want\n%x", got, want)
			}
			if string(f.b[f.payload:]) != "hello" {
				t.Error("the frame itself has changed")
			}
			for n := range len(b) {
				if _, err := parseFrame(b[:n]); err == nil {
					t.Errorf("the first %d of %d bytes are taken", n, len(b))
				}
			}
		})
	}
}

// TestFrameTogether has a packet let go again while its connection is reset: the race detector sees whether they touch the same bytes.
func TestFrameTogether(t *testing.T) {
	f, err := parseFrame(packet(t, "10.0.0.1", "10.0.0.2", layers.TCP{ACK: true}, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() { f.to(forProgram, 7) })
	both.Go(func() { f.header(1, flagRST).to(forProgram, 8) })
	both.Wait()
	if f.b[1] != forProgram || f.b[5] != 7 {
		t.Errorf("for the program: %x", f.b[:whoLen])
	}
}

func TestTupleKey(t *testing.T) {
	for _, s := range [][2]string{{"10.0.0.1:80", "10.0.0.2:40000"}, {"[fd00::1]:80", "[fd00::2]:40000"}} {
		want := Tuple{netip.MustParseAddrPort(s[0]), netip.MustParseAddrPort(s[1])}
		if got := tupleOf(want.key()); got != want {
			t.Errorf("%v is %v", want, got)
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(packet(f, "10.0.0.1", "10.0.0.2", layers.TCP{SYN: true}, ""))
	f.Add(packet(f, "fd00::1", "fd00::2", layers.TCP{ACK: true}, "hello"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := parseFrame(b)
		if err != nil {
			return
		}
		if fr.tcp < ethLen+ipv4Len || fr.payload < fr.tcp+tcpLen || fr.payload > len(fr.b) || len(fr.b) > len(b) {
			t.Fatalf("headers at %d, payload at %d of %d bytes", fr.tcp, fr.payload, len(fr.b))
		}
		again, err := parseFrame(fr.header(1, flagACK).b)
		if err != nil || again.tuple != fr.tuple || again.hasPayload() {
			t.Errorf("its bare ACK: %+v, %v", again, err)
		}
	})
}
