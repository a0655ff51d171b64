// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"smcr/userstack/wire"
)

// Names of the maps in instructions.
const (
	mapMarks      = "marks"
	mapListeners  = "listeners"
	mapHandshakes = "handshakes"
	mapHeld       = "held"
)

// Stack slots of both programs, as offsets in bytes from the frame pointer. The key of
// the listeners map has the cookie of the network namespace (8 bytes), the local address
// (16 bytes: IPv6 or IPv4-mapped, zero for a wildcard) and the port (8 bytes). All but
// the address is in host byte order.
//
// A new value of the listeners map has the key in it, so the slots before the key, of the key
// and behind it are one piece.
const (
	slotHead    = -countSize
	slotKey     = slotHead + countKey
	slotKeyAddr = slotKey + 8
	slotKeyPort = slotKey + 24
	slotRest    = slotKey + listenerKeySize // 8 bytes
	slotOption  = slotHead - 8
	slotCookie  = slotOption - 8
	// This slot has no other use, see storePair.
	slotInt = slotCookie - 8
	// What is kept over a call of a helper: the element, the result, the time, and the first
	// and the current index in the handshakes array.
	slotElem  = slotInt - 8
	slotGot   = slotElem - 8
	slotNow   = slotGot - 8
	slotFirst = slotNow - 8
	slotIndex = slotFirst - 8
	// What hold.go needs: a key of the held map, and the Ethernet header of a SYN.
	slotHeld  = slotIndex - heldKeySize
	slotEther = slotHeld - 16
)

// optionSlot is a TCP option, padded to a 64-bit stack slot.
type optionSlot [8]byte

// option returns the TCP option of SMC-R.
func option() (slot optionSlot) {
	copy(slot[:], wire.AppendTCPOption(nil))
	return slot
}

// probeExID is the experiment id of the probe: 'SMCr'. It belongs to no protocol, so a host
// ignores it. Its first 16 bits differ from those of SMC-R: the kernel compares no more
// when it looks for an option that is there twice.
const probeExID = 0x534d4372

// probe returns the TCP option that only a SYN-ACK with copied options has. It has the size
// of that of SMC-R, because the kernel does not find an option of kind 254 after a shorter
// one.
func probe() (slot optionSlot) {
	slot[0], slot[1] = wire.TCPOptionKind, wire.TCPOptionLen
	binary.BigEndian.PutUint32(slot[2:], probeExID)
	return slot
}

// Registers that keep their meaning in a whole program: the context, the mark of the
// socket, and an intermediate result.
const (
	regCtx    = asm.R6
	regMark   = asm.R7
	regResult = asm.R8
	regSock   = asm.R9 // struct bpf_sock in the command program
)

// labelOut is the label at the end of a program.
const labelOut = "out"

// assembler collects instructions and labels.
type assembler struct {
	insns asm.Instructions
	label string // for the next instruction
	fresh int    // number of labels from unique
}

func (a *assembler) emit(insns ...asm.Instruction) {
	for _, ins := range insns {
		if a.label != "" {
			ins = ins.WithSymbol(a.label)
			a.label = ""
		}
		a.insns = append(a.insns, ins)
	}
}

// placeLabel puts a label on the next instruction.
func (a *assembler) placeLabel(label string) {
	if a.label != "" {
		// An instruction has only one label, so add an instruction that does nothing.
		a.emit(asm.Ja.Label(label))
	}
	a.label = label
}

// unique returns a label that no other call returns.
func (a *assembler) unique(prefix string) string {
	a.fresh++
	return prefix + "_" + string(rune('a'+a.fresh/26)) + string(rune('a'+a.fresh%26))
}

// mapPtr loads the address of a map.
func (a *assembler) mapPtr(dst asm.Register, name string) {
	a.emit(asm.LoadMapPtr(dst, 0).WithReference(name))
}

// stackPtr loads the address of a stack slot.
func (a *assembler) stackPtr(dst asm.Register, slot int32) {
	a.emit(asm.Mov.Reg(dst, asm.RFP), asm.Add.Imm(dst, slot))
}

// setSlot writes a 64-bit value to a stack slot. It uses R1.
func (a *assembler) setSlot(slot int16, value int32) {
	a.emit(
		asm.Mov.Imm(asm.R1, value),
		asm.StoreMem(asm.RFP, slot, asm.R1, asm.DWord),
	)
}

// unlessBits jumps to label if none of the bits is set in the 32-bit field.
func (a *assembler) unlessBits(base asm.Register, offset int16, bits int32, label string) {
	a.emit(
		asm.LoadMem(asm.R1, base, offset, asm.Word),
		asm.And.Imm(asm.R1, bits),
		asm.JEq.Imm(asm.R1, 0, label),
	)
}

// ifBits jumps to label if one of the bits is set in the 32-bit field.
func (a *assembler) ifBits(base asm.Register, offset int16, bits int32, label string) {
	a.emit(
		asm.LoadMem(asm.R1, base, offset, asm.Word),
		asm.And.Imm(asm.R1, bits),
		asm.JNE.Imm(asm.R1, 0, label),
	)
}

// flags clears and sets flags in the mark.
func (a *assembler) flags(clear, set int32) {
	a.emit(asm.LoadMem(asm.R1, regMark, markFlags, asm.Word))
	if clear != 0 {
		a.emit(asm.And.Imm(asm.R1, ^clear))
	}
	if set != 0 {
		a.emit(asm.Or.Imm(asm.R1, set))
	}
	a.emit(asm.StoreMem(regMark, markFlags, asm.R1, asm.Word))
}

// storage sets regMark to the address of the storage of the socket in R2, or jumps to
// label if the socket has none.
func (a *assembler) storage(label string) {
	a.mapPtr(asm.R1, mapMarks)
	a.emit(
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkStorageGet.Call(),
		asm.JEq.Imm(asm.R0, 0, label),
		asm.Mov.Reg(regMark, asm.R0),
	)
}

// mappedIPv4 is the third part of an IPv6 address that stands for one of IPv4.
var mappedIPv4 = int32(binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))

// addressFields has the offsets of a local address in a context or socket.
type addressFields struct {
	base                   asm.Register
	family, ip4, ip6, port int16
}

// listenerKey builds the key of the listeners map from a local address.
func (a *assembler) listenerKey(f addressFields) {
	v4, port := a.unique("v4"), a.unique("port")
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.FnGetNetnsCookie.Call(),
		asm.StoreMem(asm.RFP, slotKey, asm.R0, asm.DWord),
		asm.LoadMem(asm.R1, f.base, f.family, asm.Word),
		asm.JEq.Imm(asm.R1, unix.AF_INET, v4),
	)
	for i := int16(0); i < 16; i += 8 {
		a.emit(
			asm.LoadMem(asm.R1, f.base, f.ip6+i, asm.Word),
			asm.LoadMem(asm.R2, f.base, f.ip6+i+4, asm.Word),
		)
		a.storePair(slotKeyAddr + i)
	}
	a.emit(asm.Ja.Label(port))

	a.placeLabel(v4)
	wildcard := a.unique("wildcard")
	a.setSlot(slotKeyAddr, 0)
	a.emit(
		asm.LoadMem(asm.R2, f.base, f.ip4, asm.Word),
		asm.JEq.Imm(asm.R2, 0, wildcard), // with R1 zero
		asm.Mov.Imm32(asm.R1, mappedIPv4),
	)
	a.placeLabel(wildcard)
	a.storePair(slotKeyAddr + 8)

	a.placeLabel(port)
	a.emit(
		asm.LoadMem(asm.R1, f.base, f.port, asm.Word),
		asm.StoreMem(asm.RFP, slotKeyPort, asm.R1, asm.DWord),
	)
}

// storePair writes two 32-bit values to a stack slot, R1 to the lower address. It
// clobbers both. Older verifiers require a single write of the whole slot from processes
// without CAP_PERFMON.
func (a *assembler) storePair(slot int16) {
	low, high := asm.R1, asm.R2
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // big-endian
		low, high = high, low
	}
	a.emit(
		asm.LSh.Imm(high, 32),
		asm.Or.Reg(high, low),
		asm.StoreMem(asm.RFP, slot, high, asm.DWord),
	)
}

// unlessListener jumps to label if no marked listener has the local address of the key, or
// its port on every address.
func (a *assembler) unlessListener(label string) {
	wildcard, found := a.unique("wildcard"), a.unique("found")
	a.findListener()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, wildcard),
		asm.LoadMem(asm.R1, asm.R0, countN, asm.Word),
		asm.JSGT.Imm32(asm.R1, 0, found), // less than 0 is one that is being deleted
	)
	a.placeLabel(wildcard)
	a.setSlot(slotKeyAddr, 0)
	a.setSlot(slotKeyAddr+8, 0)
	a.findListener()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, label),
		asm.LoadMem(asm.R1, asm.R0, countN, asm.Word),
		asm.JSLE.Imm32(asm.R1, 0, label),
	)
	a.placeLabel(found)
}

// optionOnStack writes an option to a stack slot.
func (a *assembler) optionOnStack(opt optionSlot) {
	a.emit(
		asm.LoadImm(asm.R1, int64(binary.NativeEndian.Uint64(opt[:])), asm.DWord),
		asm.StoreMem(asm.RFP, slotOption, asm.R1, asm.DWord),
	)
}

// unlessReceived jumps to label if the segment of the peer lacks an option: the segment
// of the callback, or with loadFromSYN the SYN.
func (a *assembler) unlessReceived(opt optionSlot, from int32, label string) {
	a.optionOnStack(opt)
	a.emit(asm.Mov.Reg(asm.R1, regCtx))
	a.stackPtr(asm.R2, slotOption)
	a.emit(
		asm.Mov.Imm(asm.R3, wire.TCPOptionLen),
		asm.Mov.Imm(asm.R4, from),
		asm.FnLoadHdrOpt.Call(),
		// An option with the same ExID and another length is not the option of SMC.
		asm.JNE.Imm(asm.R0, wire.TCPOptionLen, label),
	)
}

// reserve reserves room for n options in the header. R0 is 0 on success.
func (a *assembler) reserve(n int32) {
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.Mov.Imm(asm.R2, n*wire.TCPOptionLen),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnReserveHdrOpt.Call(),
	)
}

// store writes an option into the header. It jumps to label if the header has the option
// then.
func (a *assembler) store(opt optionSlot, label string) {
	a.optionOnStack(opt)
	a.emit(asm.Mov.Reg(asm.R1, regCtx))
	a.stackPtr(asm.R2, slotOption)
	a.emit(
		asm.Mov.Imm(asm.R3, wire.TCPOptionLen),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnStoreHdrOpt.Call(),
		asm.JEq.Imm(asm.R0, 0, label),
		// Another stack has marked the same socket and has already written the option.
		asm.JEq.Imm(asm.R0, -int32(unix.EEXIST), label),
	)
}

// cookieOnStack writes the socket cookie to its stack slot. A connection has the same
// cookie as its request socket.
func (a *assembler) cookieOnStack() {
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.FnGetSocketCookie.Call(),
		asm.StoreMem(asm.RFP, slotCookie, asm.R0, asm.DWord),
	)
}

// callbacks clears and sets callback flags of the socket.
func (a *assembler) callbacks(clear, set int32) {
	a.emit(asm.LoadMem(asm.R2, regCtx, opsCBFlags, asm.Word))
	if clear != 0 {
		a.emit(asm.And.Imm(asm.R2, ^clear))
	}
	if set != 0 {
		a.emit(asm.Or.Imm(asm.R2, set))
	}
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.FnSockOpsCbFlagsSet.Call(),
	)
}

// setSaveSYN makes the listener in R1 save the SYNs of its connections. The value 1 is in
// its stack slot.
func (a *assembler) setSaveSYN() {
	a.emit(
		asm.Mov.Imm(asm.R2, unix.IPPROTO_TCP),
		asm.Mov.Imm(asm.R3, unix.TCP_SAVE_SYN),
	)
	a.stackPtr(asm.R4, slotInt)
	a.emit(
		asm.Mov.Imm(asm.R5, 4),
		asm.FnSetsockopt.Call(),
	)
}

// finish ends the program with the result 1, which allows the operation.
func (a *assembler) finish() asm.Instructions {
	a.placeLabel(labelOut)
	a.emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
	return a.insns
}
