// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"smcr/userstack/wire"
)

// Names by which instructions refer to maps.
const (
	mapMarks      = "marks"
	mapListeners  = "listeners"
	mapHandshakes = "handshakes"
)

// Stack slots of both programs, as offsets in bytes from the frame pointer.
// The key of the listeners map is made up of the cookie of the network
// namespace (8), the local address as IPv6 (16; zero for a wildcard, IPv4
// mapped) and the port (8), all but the address in host byte order.
const (
	slotKey     = -listenerKeySize
	slotKeyAddr = slotKey + 8
	slotKeyPort = slotKey + 24
	slotOption  = slotKey - 8
	slotCookie  = slotOption - 8
	slotValue   = slotCookie - 8
	// A slot of its own, for storePair's reason.
	slotInt = slotValue - 8
)

// option returns the TCP option of SMC-R, filled up to a 64-bit stack slot.
func option() (slot [8]byte) {
	copy(slot[:], wire.AppendTCPOption(nil))
	return slot
}

// Registers that hold the same throughout: a program's context, the mark of the
// socket at hand, and a result under way.
const (
	regCtx    = asm.R6
	regMark   = asm.R7
	regResult = asm.R8
	regSock   = asm.R9 // struct bpf_sock in the command program
)

// labelOut ends a program without effect.
const labelOut = "out"

// assembler collects instructions and puts labels on them.
type assembler struct {
	insns asm.Instructions
	label string // for the next instruction
	fresh int    // number of labels made up
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

// here puts a label on the next instruction.
func (a *assembler) here(label string) {
	if a.label != "" {
		// One instruction has one label; a jump to the next one does nothing.
		a.emit(asm.Ja.Label(label))
	}
	a.label = label
}

// unique makes a label that no other call returns.
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

// setSlot writes a 64-bit value to a stack slot by way of R1.
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

// flags clears and sets bits in the mark.
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

// storage points regMark at the storage of the socket in R2, or jumps to label
// if the socket has none.
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

// addressFields says where a context or socket has its local address.
type addressFields struct {
	base                   asm.Register
	family, ip4, ip6, port int16
}

// listenerKey builds the key of the listeners map from a local address.
func (a *assembler) listenerKey(f addressFields) {
	v4, port := a.unique("v4"), a.unique("port")
	mapped := int32(binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))
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

	a.here(v4)
	wildcard := a.unique("wildcard")
	a.setSlot(slotKeyAddr, 0)
	a.emit(
		asm.LoadMem(asm.R2, f.base, f.ip4, asm.Word),
		asm.JEq.Imm(asm.R2, 0, wildcard), // with R1 zero
		asm.Mov.Imm32(asm.R1, mapped),
	)
	a.here(wildcard)
	a.storePair(slotKeyAddr + 8)

	a.here(port)
	a.emit(
		asm.LoadMem(asm.R1, f.base, f.port, asm.Word),
		asm.StoreMem(asm.RFP, slotKeyPort, asm.R1, asm.DWord),
	)
}

// storePair writes two 32-bit values to a stack slot, R1 to the lower address. It
// clobbers both. Older verifiers want a slot written whole by those who lack
// CAP_PERFMON.
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

// findListener looks the key up and leaves the address of the count, or nil,
// in R0.
func (a *assembler) findListener() {
	a.mapPtr(asm.R1, mapListeners)
	a.stackPtr(asm.R2, slotKey)
	a.emit(asm.FnMapLookupElem.Call())
}

// register adds 1 to the count of listeners of the key. It jumps to label if there is no
// room.
func (a *assembler) register(label string) {
	a.setSlot(slotValue, 0)
	a.mapPtr(asm.R1, mapListeners)
	a.stackPtr(asm.R2, slotKey)
	a.stackPtr(asm.R3, slotValue)
	a.emit(
		asm.Mov.Imm(asm.R4, unix.BPF_NOEXIST), // fails if it is there, as it may be
		asm.FnMapUpdateElem.Call(),
	)
	a.findListener()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, label),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.Word, 0),
	)
}

// unregister subtracts 1 from the count of listeners of the key. It does not remove the
// entry, because another listener may be registering at the same time. The kernel removes
// the entry when it needs room.
func (a *assembler) unregister() {
	gone := a.unique("gone")
	a.findListener()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, gone),
		asm.Mov.Imm(asm.R1, -1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.Word, 0),
	)
	a.here(gone)
	a.flags(flagRegistered, 0)
}

// unlessListener jumps to label if no marked listener has the local address of
// the key, or its port on every address.
func (a *assembler) unlessListener(label string) {
	wildcard, found := a.unique("wildcard"), a.unique("found")
	a.findListener()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, wildcard),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.JSGT.Imm32(asm.R1, 0, found),
	)
	a.here(wildcard)
	a.setSlot(slotKeyAddr, 0)
	a.setSlot(slotKeyAddr+8, 0)
	a.findListener()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, label),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
		asm.JSLE.Imm32(asm.R1, 0, label),
	)
	a.here(found)
}

// optionOnStack writes the option to its stack slot.
func (a *assembler) optionOnStack() {
	opt := option()
	a.emit(
		asm.LoadImm(asm.R1, int64(binary.NativeEndian.Uint64(opt[:])), asm.DWord),
		asm.StoreMem(asm.RFP, slotOption, asm.R1, asm.DWord),
	)
}

// unlessReceived jumps to label if the peer's segment lacks the option: the
// segment at hand, or the SYN with loadFromSYN.
func (a *assembler) unlessReceived(from int32, label string) {
	a.optionOnStack()
	a.emit(asm.Mov.Reg(asm.R1, regCtx))
	a.stackPtr(asm.R2, slotOption)
	a.emit(
		asm.Mov.Imm(asm.R3, wire.TCPOptionLen),
		asm.Mov.Imm(asm.R4, from),
		asm.FnLoadHdrOpt.Call(),
		// An option of the same ExID and another length is not that of SMC.
		asm.JNE.Imm(asm.R0, wire.TCPOptionLen, label),
	)
}

// reserve asks for room in the header; R0 is 0 on success.
func (a *assembler) reserve() {
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.Mov.Imm(asm.R2, wire.TCPOptionLen),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnReserveHdrOpt.Call(),
	)
}

// store writes the option into the header and jumps to label if it is there now.
func (a *assembler) store(label string) {
	a.optionOnStack()
	a.emit(asm.Mov.Reg(asm.R1, regCtx))
	a.stackPtr(asm.R2, slotOption)
	a.emit(
		asm.Mov.Imm(asm.R3, wire.TCPOptionLen),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnStoreHdrOpt.Call(),
		asm.JEq.Imm(asm.R0, 0, label),
		// Another stack has marked the same socket, and has written the option.
		asm.JEq.Imm(asm.R0, -int32(unix.EEXIST), label),
	)
}

// cookieOnStack writes the socket cookie to its stack slot. A request socket
// hands its cookie on to the connection.
func (a *assembler) cookieOnStack() {
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.FnGetSocketCookie.Call(),
		asm.StoreMem(asm.RFP, slotCookie, asm.R0, asm.DWord),
	)
}

// recall looks up what was noted of the SYN-ACK of this connection and leaves
// it in R1, or jumps to label if nothing was.
func (a *assembler) recall(label string) {
	a.cookieOnStack()
	a.mapPtr(asm.R1, mapHandshakes)
	a.stackPtr(asm.R2, slotCookie)
	a.emit(
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, label),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
	)
}

// note remembers a fact about the SYN-ACK of this connection.
func (a *assembler) note(fact int32) {
	a.cookieOnStack()
	a.setSlot(slotValue, fact)
	a.mapPtr(asm.R1, mapHandshakes)
	a.stackPtr(asm.R2, slotCookie)
	a.stackPtr(asm.R3, slotValue)
	a.emit(
		asm.Mov.Imm(asm.R4, unix.BPF_ANY),
		asm.FnMapUpdateElem.Call(),
	)
}

// forget drops what was noted under the cookie in its slot.
func (a *assembler) forget() {
	a.mapPtr(asm.R1, mapHandshakes)
	a.stackPtr(asm.R2, slotCookie)
	a.emit(asm.FnMapDeleteElem.Call())
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

// setSaveSYN makes the listener in R1 keep the SYNs of its connections, with
// the value 1 in its slot.
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

// finish ends a program with the result 1, which allows the operation.
func (a *assembler) finish() asm.Instructions {
	a.here(labelOut)
	a.emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
	return a.insns
}
