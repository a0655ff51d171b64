// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"smcr/smc"
)

func TestSizes(t *testing.T) {
	for mtu, want := range map[smc.MTU]int{0: 0, smc.MTU256: 256, smc.MTU512: 512, smc.MTU1024: 1024, smc.MTU2048: 2048, smc.MTU4096: 4096, 6: 0, 15: 0} {
		if got := mtu.Bytes(); got != want || mtu.Valid() != (want != 0) {
			t.Errorf("MTU code %d: %d bytes, want %d", uint8(mtu), got, want)
		}
	}
	for n, want := range map[int]smc.SizeCode{
		-1: 0, 0: 0, 1: 0, 16 << 10: 0, 16<<10 + 1: 1, 64 << 10: 2, 512 << 10: smc.MaxSizeCodeRFC, 512 << 20: smc.MaxSizeCode, 1 << 30: smc.MaxSizeCode,
	} {
		if got := smc.SizeCodeFor(n); got != want {
			t.Errorf("%d bytes: code %d, want %d", n, got, want)
		}
	}
	if got := smc.MaxSizeCodeRFC.Bytes(); got != 512<<10 {
		t.Errorf("largest element of RFC 7609: %d bytes", got)
	}
}

func TestPeerID(t *testing.T) {
	id := smc.NewPeerID(0xfde2, srvMAC)
	if id.Instance() != 0xfde2 || id.MAC() != srvMAC {
		t.Errorf("%v does not give back its parts", id)
	}
}

func TestModes(t *testing.T) {
	for m, want := range map[Mode][2]bool{ModeR: {true, false}, ModeD: {false, true}, ModeNone: {}, ModeBoth: {true, true}} {
		if got := [2]bool{m.HasR(), m.HasD()}; got != want {
			t.Errorf("%v: R and D %v, want %v", m, got, want)
		}
	}
}

func TestDeleteRKeyFailed(t *testing.T) {
	m := DeleteRKey{Count: 8, ErrorMask: 0b01010000}
	for i := -1; i <= DeleteRKeyMax; i++ {
		if got, want := m.Failed(i), i == 1 || i == 3; got != want {
			t.Errorf("RKey %d: %v, want %v", i, got, want)
		}
	}
}

func TestStrings(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"fde2@52:54:00:00:00:01": smc.NewPeerID(0xfde2, srvMAC),
		"fe80::5054:ff:fe00:1":   srvGID,
		"0x000011":               smc.QPN(0x11),
		"0x00cbc9":               smc.PSN(0xcbc9),
		"1024":                   smc.MTU1024,
		"reserved MTU code 6":    smc.MTU(6),
		"64 KiB":                 smc.SizeCode(2),
		"DECLINE":                TypeDecline,
		"CLC type 9":             CLCType(9),
		"ADD LINK CONTINUATION":  LLCAddLinkCont,
		"LLC opcode 0x21":        LLCType(0x21),
		"SMC-R and SMC-D":        ModeBoth,
		"lost path":              DeleteLinkLostPath,
		"reason 0x12345678":      DeleteLinkReason(0x12345678),
		"no alternate path":      AddLinkNoAlternatePath,
		"0x03010000 (the peer does not speak SMC)": smc.DiagPeerNoSMC,
		"0x12345678":         smc.Diagnosis(0x12345678),
		"DELETE RKEY":        LLCDeleteRKey,
		"none":               ModeNone,
		"invalid MTU":        AddLinkInvalidMTU,
		"unknown link group": DeleteLinkUnknownGroup,
	} {
		if got := v.String(); got != want {
			t.Errorf("%T: %q, want %q", v, got, want)
		}
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
		text := smc.Diagnosis(v).Text()
		if text == "" {
			t.Errorf("%s has no text", name)
		} else if other := texts[text]; other != "" {
			t.Errorf("%s and %s: both %q", name, other, text)
		}
		texts[text] = name
		return true
	})
	if codes != 41 {
		t.Errorf("%d codes", codes)
	}
}
