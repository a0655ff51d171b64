// SPDX-License-Identifier: Apache-2.0

package smc

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

var mac = MAC{0x52, 0x54, 0, 0, 0, 1}

func TestSizes(t *testing.T) {
	for mtu, want := range map[MTU]int{0: 0, MTU256: 256, MTU512: 512, MTU1024: 1024, MTU2048: 2048, MTU4096: 4096, 6: 0, 15: 0} {
		if got := mtu.Bytes(); got != want || mtu.Valid() != (want != 0) {
			t.Errorf("MTU code %d: %d bytes, want %d", uint8(mtu), got, want)
		}
	}
	for n, want := range map[int]SizeCode{
		-1: 0, 0: 0, 1: 0, 16 << 10: 0, 16<<10 + 1: 1, 64 << 10: 2, 512 << 10: MaxSizeCodeRFC, 512 << 20: MaxSizeCode, 1 << 30: MaxSizeCode,
	} {
		if got := SizeCodeFor(n); got != want {
			t.Errorf("%d bytes: code %d, want %d", n, got, want)
		}
	}
	if got := MaxSizeCodeRFC.Bytes(); got != 512<<10 {
		t.Errorf("largest element of RFC 7609: %d bytes", got)
	}
}

func TestPeerID(t *testing.T) {
	id := NewPeerID(0xfde2, mac)
	if id.Instance() != 0xfde2 || id.MAC() != mac {
		t.Errorf("%v does not give back its parts", id)
	}
}

func TestStrings(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"52:54:00:00:00:01":                       mac,
		"fde2525400000001":                        NewPeerID(0xfde2, mac),
		"fe80:0000:0000:0000:5054:00ff:fe00:0001": GID(netip.MustParseAddr("fe80::5054:ff:fe00:1").As16()),
		"0x000011":                                QPN(0x11),
		"0x00cbc9":                                PSN(0xcbc9),
		"0x00abcdef":                              RKey(0xabcdef),
		"1024":                                    MTU1024,
		"reserved MTU code 6":                     MTU(6),
		"64 KiB":                                  SizeCode(2),
		"client":                                  Client,
		"server":                                  Server,
		"Role(2)":                                 Role(2),
		"SYM":                                     GroupSymmetric,
		"ASYML":                                   GroupAsymmetricLocal,
		"GroupType(5)":                            GroupType(5),
		"ACTIVATING":                              LinkActivating,
		"LinkState(9)":                            LinkState(9),
		"LINUX":                                   OSLinux,
		"OS(7)":                                   OS(7),
		"PEERFINCLOSEWAIT":                        StatePeerFinCloseWait,
		"ConnState(99)":                           ConnState(99),
		"0x03010000 (the peer does not speak SMC)": DiagPeerNoSMC,
		"0x12345678": Diagnosis(0x12345678),
	} {
		if got := v.String(); got != want {
			t.Errorf("%T: %q, want %q", v, got, want)
		}
	}
	if Client.Short() != "CLNT" || Server.Short() != "SERV" {
		t.Errorf("short roles %s and %s", Client.Short(), Server.Short())
	}
}

func TestGIDIPv4(t *testing.T) {
	for _, tt := range []struct{ gid, want string }{
		{"::ffff:10.77.0.2", "10.77.0.2"},
		{"::10.77.0.2", "10.77.0.2"},
		{"::", ""},
		{"::ffff:0.0.0.0", ""},
		{"fe80::5054:ff:fe00:1", ""},
		{"::fffe:10.77.0.2", ""},
		{"1::ffff:10.77.0.2", ""},
	} {
		a, ok := GID(netip.MustParseAddr(tt.gid).As16()).IPv4()
		if ok != (tt.want != "") || ok && a.String() != tt.want {
			t.Errorf("%s: %v, %v", tt.gid, a, ok)
		}
	}
	if g := GIDFromIPv4(netip.MustParseAddr("::ffff:10.0.0.1")); g.Addr() != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("mapped address: %s", g)
	}
	if g := GIDFromIPv4(netip.MustParseAddr("2001:db8::1")); g != (GID{}) {
		t.Errorf("IPv6: %s", g)
	}
}

// TestDiagnosisText reads the constants out of the source, so that none is
// left without a text of its own.
func TestDiagnosisText(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "diagnosis.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	codes := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Diag") {
			return true
		}
		name := spec.Names[0].Name
		v, err := strconv.ParseUint(spec.Values[0].(*ast.BasicLit).Value, 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		codes++
		text := Diagnosis(v).Text()
		if text == "" {
			t.Errorf("%s has no text", name)
		} else if other := texts[text]; other != "" {
			t.Errorf("%s and %s: both %q", name, other, text)
		}
		texts[text] = name
		return true
	})
	if codes != 45 {
		t.Errorf("%d codes", codes)
	}
}
