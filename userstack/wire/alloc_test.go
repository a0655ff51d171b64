// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"testing"
)

// parseAllocs and appendAllocs count with the concrete type, so that no
// interface boxes it.
func parseAllocs[T encoding.BinaryAppender](t *testing.T, file string, parse func([]byte) (T, error)) {
	t.Helper()
	raw := readHex(t, "testdata/figures/"+file+".hex")
	var m T
	if n := testing.AllocsPerRun(100, func() { m, _ = parse(raw) }); n != 0 {
		t.Errorf("parsing %s allocates %v times", file, n)
	}
	buf := make([]byte, 0, len(raw))
	if n := testing.AllocsPerRun(100, func() { buf, _ = m.AppendBinary(buf[:0]) }); n != 0 {
		t.Errorf("encoding %s allocates %v times", file, n)
	}
	if string(buf) != string(raw) {
		t.Errorf("encoded\n%x, want\n%x", buf, raw)
	}
}

func TestNoAllocation(t *testing.T) {
	parseAllocs(t, "cdc.rfc", ParseCDC)
	parseAllocs(t, "llc_confirm_link.rfc", ParseConfirmLink)
	parseAllocs(t, "llc_add_link.rfc", ParseAddLink)
	parseAllocs(t, "llc_add_link_cont.rfc", ParseAddLinkCont)
	parseAllocs(t, "llc_delete_link.rfc", ParseDeleteLink)
	parseAllocs(t, "llc_confirm_rkey.rfc", ParseConfirmRKey)
	parseAllocs(t, "llc_confirm_rkey_cont.rfc", ParseConfirmRKeyCont)
	parseAllocs(t, "llc_delete_rkey.rfc", ParseDeleteRKey)
	parseAllocs(t, "llc_test_link.rfc", ParseTestLink)
	parseAllocs(t, "clc_accept.rfc", ParseAccept)
	parseAllocs(t, "clc_confirm.rfc", ParseConfirm)
	parseAllocs(t, "clc_decline.rfc", ParseDecline)
	parseAllocs(t, "clc_accept_v2.next", ParseAcceptV2)
	parseAllocs(t, "clc_confirm_v2.next", ParseConfirmV2)
	parseAllocs(t, "llc2_confirm_link.spec", ParseConfirmLink)
	parseAllocs(t, "llc2_delete_link.spec", ParseDeleteLink)
	parseAllocs(t, "llc2_confirm_rkey.spec", ParseConfirmRKey)
	parseAllocs(t, "llc2_delete_rkey.reply", ParseDeleteRKeyV2)
	parseAllocs(t, "llc2_test_link.spec", ParseTestLink)

	raw := readHex(t, "testdata/figures/llc_confirm_rkey.rfc.hex")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ParseLLC(raw); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("ParseLLC allocates %v times, want the interface value alone", n)
	}
}

func BenchmarkCDCAppend(b *testing.B) {
	m := CDC{Seq: 1, Token: 2, Prod: Cursor{3, 4}, Cons: Cursor{5, 6}, Flags: ProdWriterBlocked}
	buf := make([]byte, 0, CDCLen)
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = m.AppendBinary(buf[:0]); err != nil {
			b.Fatal(err)
		}
		m.Seq++
	}
}

func BenchmarkCDCParse(b *testing.B) {
	raw := readHex(b, "testdata/figures/cdc.rfc.hex")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseCDC(raw); err != nil {
			b.Fatal(err)
		}
	}
}
