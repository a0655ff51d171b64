// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/userstack/wire"
)

// TestOptionBytes checks that the instructions write the same option to the stack as
// package wire, and that each call about a header option has its length.
func TestOptionBytes(t *testing.T) {
	want := wire.AppendTCPOption(nil)
	for name, emit := range map[string]func(*assembler){
		"search": func(a *assembler) { a.unlessReceived(option(), 0, labelOut) },
		"store":  func(a *assembler) { a.store(option(), labelOut) },
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
	a.reserve(1)
	if got := a.insns[1]; got.Dst != asm.R2 || got.Constant != int64(len(want)) {
		t.Errorf("reserve: %v", a.insns)
	}
}

// TestOptionOnACK: a client whose ACK alone has the option, which RFC 7609 permits (section
// 3.5.1.1), gets a TCP connection: the SYN-ACK went out without the option, so the client
// cannot expect SMC-R.
func TestOptionOnACK(t *testing.T) {
	b := newBed(t)
	b.addPhantom()
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	var isn uint32
	b.must(netnstest.Until(ioTimeout, func() error {
		capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
		b.sendTCP(5000, 4001, tcpFlagSYN, 1000, 0, slices.Clone(mss), nil) // answered each time
		// Real time: a capture is read when it has ended.
		time.Sleep(50 * time.Millisecond)
		for _, s := range b.segments(capture) {
			if s.syn && s.ack && s.dst == 5000 {
				isn = s.seq
				return nil
			}
		}
		return errors.New("no SYN-ACK")
	}))
	b.sendTCP(5000, 4001, tcpFlagACK, 1001, isn+1, wire.AppendTCPOption(nil), nil)
	b.wantPeer("server", b.accept(l), PeerNoSMC)
}
