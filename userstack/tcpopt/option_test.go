// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/asm"

	"smcr/userstack/wire"
)

// TestOptionBytes checks that the instructions write the same option to the stack as
// package wire, and that each call about a header option has its length.
func TestOptionBytes(t *testing.T) {
	want := wire.AppendTCPOption(nil)
	for name, emit := range map[string]func(*assembler){
		"search": func(a *assembler) { a.unlessReceived(0, labelOut) },
		"store":  func(a *assembler) { a.store(labelOut) },
	} {
		var a assembler
		emit(&a)
		stored, sized := false, false
		for i, ins := range a.insns {
			switch {
			case ins.OpCode == asm.LoadImmOp(asm.DWord) && !ins.IsLoadFromMap():
				slot := binary.NativeEndian.AppendUint64(nil, uint64(ins.Constant))
				next := a.insns[i+1]
				stored = bytes.Equal(slot[:len(want)], want) && next.Dst == asm.RFP && next.Src == ins.Dst && next.Offset == slotOption
			case ins.Dst == asm.R3 && ins.OpCode == asm.Mov.Op(asm.ImmSource):
				sized = ins.Constant == int64(len(want))
			}
		}
		if !stored || !sized {
			t.Errorf("%s: the option is stored: %v, has its length: %v\n%v", name, stored, sized, a.insns)
		}
	}
	var a assembler
	a.reserve()
	if got := a.insns[1]; got.Dst != asm.R2 || got.Constant != int64(len(want)) {
		t.Errorf("reserve: %v", a.insns)
	}
}
