// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"pgregory.net/rapid"
)

// codecs returns one empty object of every kind.
func codecs() map[string]func() attrCodec {
	return map[string]func() attrCodec{
		"SysInfo":     func() attrCodec { return new(SysInfo) },
		"LinkGroup":   func() attrCodec { return new(LinkGroup) },
		"LinkGroupD":  func() attrCodec { return new(LinkGroupD) },
		"Link":        func() attrCodec { return new(Link) },
		"Device":      func() attrCodec { return new(Device) },
		"Stats":       func() attrCodec { return new(statsAttrs) },
		"Fallback":    func() attrCodec { return new(fallbackAttrs) },
		"UEID":        func() attrCodec { return new(ueid) },
		"SEID":        func() attrCodec { return new(SEID) },
		"HS":          func() attrCodec { return new(hsLimitation) },
		"PNETAnswer":  func() attrCodec { return new(pnetAnswer) },
		"PNETRequest": func() attrCodec { return new(pnetRequest) },
		"Connection":  func() attrCodec { return &diagAttrs{new(Connection), 0xff} },
		"Family":      func() attrCodec { return new(genlFamily) },
		"TraceAsk":    func() attrCodec { return new(TraceRequest) },
		"TraceHead":   func() attrCodec { return new(traceHead) },
		"TraceConn":   func() attrCodec { return new(TraceConn) },
		"TraceEvent":  func() attrCodec { return new(TraceEvent) },
		"Attachment":  func() attrCodec { return new(Attachment) },
		"Learnt":      func() attrCodec { return new(Learnt) },
	}
}

// samples returns objects with every field set.
func samples() map[string]attrCodec {
	v2 := &V2Common{Version: 2, Release: 1, OS: smc.OSZOS, EID: "EID", PeerHost: "peer"}
	return map[string]attrCodec{
		"SysInfo":   &SysInfo{2, 1, true, true, "host", "IBM-SYSZ-ISMSEID00000000", "smcr", "1.2", 77, 1000, true, true, "/run/smcr/state-1.yaml", "no space", []string{"no port", "no right"}, "no right", []string{"/etc/smcr/smcr.yaml", "/etc/smcr/smcr.yaml.d/50-services.yaml"}},
		"TraceAsk":  &TraceRequest{1, true, TraceCDC, 0x100},
		"TraceHead": &traceHead{1, 1 << 40},
		"TraceConn": &TraceConn{
			netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("[fd00::1]:81"), smc.Server, 0x100, smc.GID{1}, smc.GID{2}, 3, 4, 5, 6,
		},
		"TraceEvent": &TraceEvent{
			time.Unix(0, 1<<60), TraceLLC, true, 0x100, 2, netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("[fd00::1]:81"), 3, 4, 5, []byte{6, 7},
		},
		"Attachment": &Attachment{"/system.slice/x.service", 1 << 40, 1000, true, true, true, true, Outcomes{1 << 41, []Fallback{{Side: smc.Server, Reason: 0x03010000, Count: 70000}, {Reason: 1, Count: 2}}, []Reset{{"transport retries exceeded", 3}}}},
		"Learnt":     &Learnt{true, 1000, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("[fd00::1]:81"), 0x03fd0000, 0x03030008, 3 * time.Second},
		"LinkGroup": &LinkGroup{
			ID: 0x100, Role: 1, Type: 2, PNETID: "NET1", VLAN: 0xabc, Conns: 3, NetCookie: 1 << 40, BufType: 1,
			Sndbuf: 1 << 33, RMB: 5, V2: v2, V2R: &V2R{true, 255, 2}, PeerID: [8]byte{1, 2, 3}, Peer: "fd00::1", Links: 2,
		},
		"LinkGroupD": &LinkGroupD{1, 2, 3, 4, 5, 0x123, 7, "NET2", 0xffff, 9, 10, v2},
		"Link": &Link{
			ID: 1, IBDev: "rxe0", IBPort: 1, GID: smc.GID{1}, PeerGID: smc.GID{2}, Conns: 3, NetDev: 4,
			UID: LinkUID{1, 2, 3, 4}, PeerUID: LinkUID{5, 6, 7, 8}, State: 3, QPN: 9, PeerQPN: 10, MTU: 1024, Resent: &Resent{1 << 42, 5},
		},
		"Device": &Device{
			Name: "mlx5_0", UseCount: 1, Critical: true, PCI: &PCI{1, 2, 3, 4, "0001:00:00.0"}, Provider: "ibverbs", Refused: Refused{1 << 40, 2, 3}, Resent: &Resent{1 << 41, 4},
			Ports: []Port{{true, "NET1", 2, true, true, 3, smc.GID{9}, 4096}, {}},
		},
		"Stats": &statsAttrs{
			SMCD:                  stats.Tech{NotCounted: stats.CountOptional},
			SMCR:                  stats.Tech{RXSizes: stats.Histogram{1, 2, 3, 4, 5, 6, 7, 8, 9}, TXBufs: stats.Buffers{SmallPeer: 1, Small: 2, FullPeer: 3, Full: 4, Reuse: 5, Alloc: 6, Downgrade: 7}, RXUsage: 1 << 40, Urgent: 8},
			ServerHandshakeErrors: 3,
			Panics:                4,
			Failovers:             1 << 33,
			ClientHandshakeTimes:  stats.Times{Counts: [stats.TimeBuckets]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, Sum: 1 << 50},
			ServerHandshakeTimes:  stats.Times{Counts: [stats.TimeBuckets]uint64{14: 1}, Sum: 11e9},
			Engine:                stats.Engine{Threads: 2, CPU: 1 << 44, Rounds: 1 << 34, Sleeps: 1 << 35},
		},
		"Fallback":    &fallbackAttrs{reasonAttrs{Side: smc.Server, Reason: 0x03030000, Count: 70000}, true, 1, 2, true, []stats.Fallback{{Reason: 0x01010000, Count: 3}, {Side: smc.Server, Count: 1 << 40}}},
		"UEID":        ptr(ueid("A.B")),
		"SEID":        &SEID{"SEID", true},
		"HS":          ptr(hsLimitation(true)),
		"PNETAnswer":  &pnetAnswer{ID: "NET1", IBDev: "rxe0", IBPort: 2},
		"PNETRequest": &pnetRequest{"NET1", "eth0", "rxe0", 1},
		"Connection": &diagAttrs{&Connection{
			Shutdown: 3, Info: &ConnInfo{Token: 1, RXProd: Cursor{2, 3}, TXFin: Cursor{4, 5}, TXStateFlags: 6},
			Link: &ConnLink{1, "rxe0", 1, smc.GID{1}, smc.GID{2}, 1}, DMB: &ConnDMB{1, 2, 3, 4, 5, 6, 7},
			Fallback: ConnFallback{8, 9}, LinkGroup: 10, PID: 11, Command: "c", TXBytes: 12, RXBytes: 13,
		}, 0xff},
		"Family": &genlFamily{id: 7, name: "X"},
	}
}

func ptr[T any](v T) *T { return &v }

var exporter = cmp.Exporter(func(reflect.Type) bool { return true })

// TestCodecs encodes and decodes every kind of object. It also decodes every truncated
// encoding, which must neither panic nor read too far.
func TestCodecs(t *testing.T) {
	for name, sample := range samples() {
		t.Run(name, func(t *testing.T) {
			b, err := marshalAttrs(sample)
			if err != nil {
				t.Fatal(err)
			}
			got := codecs()[name]()
			if err := unmarshalAttrs(b, got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sample, got, exporter); diff != "" {
				t.Errorf("after a round trip (-want +got):\n%s", diff)
			}
			for n := range len(b) {
				cut := codecs()[name]()
				if err := unmarshalAttrs(bytes.Clone(b[:n:n]), cut); err != nil {
					continue
				}
				// There is no error because the message was cut between two attributes.
				again, err := marshalAttrs(cut)
				if err != nil || len(again) > len(b) {
					t.Errorf("cut at %d: %x, %v", n, again, err)
				}
			}
		})
	}
}

// TestUnknownAttributes checks that attributes of later kernels are ignored.
func TestUnknownAttributes(t *testing.T) {
	for name, sample := range samples() {
		b, err := marshalAttrs(sample)
		if err != nil {
			t.Fatal(err)
		}
		ae := netlink.NewAttributeEncoder()
		ae.Bytes(0x1ffe, []byte("future"))
		ae.Bytes(0x1fff, nil)
		extra, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got := codecs()[name]()
		if err := unmarshalAttrs(append(b, extra...), got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(sample, got, exporter); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDiagTruncated(t *testing.T) {
	c := samples()["Connection"].(*diagAttrs).Connection
	c.Local = netip.MustParseAddrPort("10.0.0.1:80")
	c.Remote = netip.MustParseAddrPort("10.0.0.2:8080")
	b, err := c.appendDiag(nil, 0xff)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(b) {
		_, err := parseDiag(b[:n:n])
		if n < diagMessageLen && err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
	got, err := parseDiag(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*c, got, exporter, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("after a round trip (-want +got):\n%s", diff)
	}
}

func TestDiagAddresses(t *testing.T) {
	for _, s := range []string{"10.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::1]:80", "[fd00::]:80", "[102:304::]:80", "[::ffff:10.0.0.1]:80", ""} {
		c := Connection{State: smc.StateActive}
		if s != "" {
			c.Local, c.Remote = netip.MustParseAddrPort(s), netip.MustParseAddrPort(s)
		}
		b, err := c.appendDiag(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseDiag(b)
		if err != nil || got.Local != c.Local || got.Remote != c.Remote {
			t.Errorf("%q becomes %v and %v, %v", s, got.Local, got.Remote, err)
		}
		if b[0] = afSMC; s != "" && c.Local.Addr().Is4() {
			// a recent kernel sends this
			if got, _ := parseDiag(b); got.Local != c.Local {
				t.Errorf("%q becomes %v", s, got.Local)
			}
		}
	}
}

func TestNumberWidths(t *testing.T) {
	ne := binary.NativeEndian
	for _, b := range [][]byte{{7}, ne.AppendUint16(nil, 7), ne.AppendUint32(nil, 7), ne.AppendUint64(nil, 7)} {
		ae := netlink.NewAttributeEncoder()
		ae.Bytes(attrLgrDCHID, b)
		enc, _ := ae.Encode()
		var g LinkGroupD
		if err := unmarshalAttrs(enc, &g); err != nil || g.CHID != 7 {
			t.Errorf("%d bytes: %d, %v", len(b), g.CHID, err)
		}
	}
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(attrLgrDCHID, []byte{1, 2, 3})
	enc, _ := ae.Encode()
	if err := unmarshalAttrs(enc, new(LinkGroupD)); err == nil {
		t.Error("an integer of 3 bytes: no error")
	}
}

func TestEIDRules(t *testing.T) {
	for eid, ok := range map[string]bool{
		"A": true, "9": true, "A.B-C": true, "A ": true, "12345678901234567890123456789012": true,
		"": false, " ": false, ".A": false, "-A": false, "A..B": false, "a": false, "A B": false, "A_B": false,
		"123456789012345678901234567890123": false, "\xc3\x84": false,
	} {
		if err := CheckEID(eid); (err == nil) != ok {
			t.Errorf("CheckEID(%q): %v", eid, err)
		}
	}
}

func TestGIDErrors(t *testing.T) {
	for _, s := range []string{"", ":", "0:0:0:0:0:0:0:0", "fe80::1", strings.Repeat("zzzz:", 7) + "zzzz", strings.Repeat("0000:", 8) + "0000"} {
		if g, err := smc.ParseGID(s); err == nil {
			t.Errorf("ParseGID(%q) = %v", s, g)
		}
	}
}

// TestPNETAnswers checks the placeholders, also for devices with the name of a
// placeholder.
func TestPNETAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"n/a", "eth0", "rxe0"})
		p := pnetAnswer{ID: "NET1"}
		if rapid.Bool().Draw(t, "netdev") {
			p.NetDev = word.Draw(t, "name")
		} else {
			p.IBDev, p.IBPort = word.Draw(t, "name"), uint8(rapid.IntRange(1, 2).Draw(t, "port"))
		}
		b, err := marshalAttrs(&p)
		if err != nil {
			t.Fatal(err)
		}
		var got pnetAnswer
		if err := unmarshalAttrs(b, &got); err != nil || got != p {
			t.Fatalf("%+v becomes %+v, %v", p, got, err)
		}
	})
}

// FuzzDecode decodes arbitrary attributes as every kind of object. An object that was
// decoded must be encodable, and its encoding must decode to the same object.
func FuzzDecode(f *testing.F) {
	for _, sample := range samples() {
		b, err := marshalAttrs(sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, empty := range codecs() {
			x := empty()
			if unmarshalAttrs(b, x) != nil || name == "Family" {
				continue
			}
			once, err := marshalAttrs(x)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			y := empty()
			if err := unmarshalAttrs(once, y); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			twice, err := marshalAttrs(y)
			if err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("%s: %x becomes %x, %v", name, once, twice, err)
			}
		}
	})
}

func FuzzDiag(f *testing.F) {
	b, err := samples()["Connection"].(*diagAttrs).appendDiag(nil, 0xff)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		parseDiagRequest(b)
		c, err := parseDiag(b)
		if err != nil {
			return
		}
		if _, err := c.appendDiag(nil, 0xff); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add(appendMessage(appendMessage(nil, netlink.Header{Type: 3}, []byte{1}), netlink.Header{Type: 4}, nil))
	f.Add([]byte{16, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		msgs, err := splitMessages(b)
		if err != nil {
			return
		}
		var again []byte
		for _, m := range msgs {
			again = appendMessage(again, m.Header, m.Data)
		}
		if n := align4(len(b)); len(again) != n {
			t.Fatalf("%d bytes become %d", n, len(again))
		}
	})
}

// TestTooLong checks that an attribute is refused if its length does not fit the length
// field.
func TestTooLong(t *testing.T) {
	p := pnetAnswer{ID: strings.Repeat("A", 1<<16)}
	if b, err := marshalAttrs(&p); err == nil {
		t.Errorf("%d bytes, no error", len(b))
	}
}

// TestRowAllocs checks that the server allocates nothing for a row.
func TestRowAllocs(t *testing.T) {
	r := &replies{req: &request{}, send: func([]byte) error { return nil }, buf: make([]byte, 0, 2*maxAnswer)}
	g := samples()["LinkGroup"].(*LinkGroup)
	n := testing.AllocsPerRun(1000, func() {
		if err := r.row(cmdGetLgrSMCR, attrLgrSMCR, g); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations a row", n)
	}
}
