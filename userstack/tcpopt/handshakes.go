// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"github.com/cilium/ebpf/asm"
)

// The handshakes array has an element for each half-open connection whose SYN had the option:
// what its SYN-ACK says. The array has sets, and a connection can be in any element of one set,
// by its cookie.
//
// Without an element, the SYN-ACK has no option, and the server reports PeerNoSMC. An element
// is free when its connection is established, or after handshakeTime, when a half-open
// connection has ended. So no connection loses its element to another one. The set of a
// connection that found no free element has none for handshakeTime: a SYN-ACK that is sent
// again must be like the first one, which is not known any more.
const (
	handshakeSets = 512
	handshakeWays = 4 // of a set
	maxHandshakes = handshakeSets * handshakeWays
)

// handshakeTime, in nanoseconds, is longer than a half-open connection lives with the default
// tcp_synack_retries.
const handshakeTime = 70_000_000_000

// Offsets in bytes of the fields of an element.
const (
	shakeFact   = 4 // behind the lock, see tables.go
	shakeCookie = 8
	shakeUntil  = 16 // free from then on, CLOCK_MONOTONIC in nanoseconds
	shakeFull   = 24 // in the first of a set: the set is full until then
	shakeSize   = 32
)

// Facts of an element.
const (
	synAckPlain    = 1 // the SYN-ACK has no option
	synAckSMC      = 2 // the SYN-ACK has the option
	synAckReserved = 3 // the SYN-ACK that is being built has room for the option
)

// A handshake is an element of the handshakes array, as user space reads it.
type handshake struct {
	Lock, Fact          uint32
	Cookie, Until, Full uint64
}

// set sets the slot of the first index to the first element of the set of the connection, whose
// cookie is in its slot.
func (a *assembler) set() {
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, slotCookie, asm.DWord),
		asm.And.Imm(asm.R1, handshakeSets-1),
		asm.Mul.Imm(asm.R1, handshakeWays),
		asm.StoreMem(asm.RFP, slotFirst, asm.R1, asm.DWord),
	)
}

// element sets R0 to an element of the set, or jumps to label if there is none, which does not
// happen.
func (a *assembler) element(way int32, label string) {
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, slotFirst, asm.DWord),
		asm.Add.Imm(asm.R1, way),
		asm.StoreMem(asm.RFP, slotIndex, asm.R1, asm.Word),
	)
	a.mapPtr(asm.R1, mapHandshakes)
	a.stackPtr(asm.R2, slotIndex)
	a.emit(
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, label),
	)
}

// findHandshake sets R0 to the element of this connection, or jumps to label.
func (a *assembler) findHandshake(label string) {
	found := a.unique("shake")
	a.cookieOnStack()
	a.set()
	for way := range int32(handshakeWays) {
		a.element(way, label)
		a.emit(
			asm.LoadMem(asm.R1, asm.R0, shakeCookie, asm.DWord),
			asm.LoadMem(asm.R2, asm.RFP, slotCookie, asm.DWord),
			asm.JEq.Reg(asm.R1, asm.R2, found),
		)
	}
	a.emit(asm.Ja.Label(label))
	a.placeLabel(found)
}

// claimHandshake finds a free element for this connection, for which findHandshake has found
// none, or jumps to label.
func (a *assembler) claimHandshake(label string) {
	claimed := a.unique("claimed")
	a.emit(
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, slotNow, asm.R0, asm.DWord),
	)
	a.element(0, label)
	a.emit(
		asm.LoadMem(asm.R1, asm.R0, shakeFull, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotNow, asm.DWord),
		asm.JGT.Reg(asm.R1, asm.R2, label),
	)
	for way := range int32(handshakeWays) {
		busy, next := a.unique("busy"), a.unique("next")
		a.element(way, label)
		a.emit(
			asm.LoadMem(asm.R1, asm.R0, shakeUntil, asm.DWord),
			asm.LoadMem(asm.R2, asm.RFP, slotNow, asm.DWord),
			asm.JGT.Reg(asm.R1, asm.R2, next),
		)
		a.setSlot(slotGot, 0)
		a.lock()
		a.emit(
			asm.LoadMem(asm.R2, asm.R1, shakeUntil, asm.DWord),
			asm.LoadMem(asm.R3, asm.RFP, slotNow, asm.DWord),
			asm.JGT.Reg(asm.R2, asm.R3, busy),
		)
		a.handshakeEnd(asm.R3)
		a.emit(
			asm.StoreMem(asm.R1, shakeUntil, asm.R3, asm.DWord),
			asm.LoadMem(asm.R2, asm.RFP, slotCookie, asm.DWord),
			asm.StoreMem(asm.R1, shakeCookie, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R2, synAckPlain),
			asm.StoreMem(asm.R1, shakeFact, asm.R2, asm.Word),
			asm.StoreMem(asm.RFP, slotGot, asm.R2, asm.DWord),
		)
		a.placeLabel(busy)
		a.unlock()
		a.emit(
			asm.LoadMem(asm.R1, asm.RFP, slotGot, asm.DWord),
			asm.JNE.Imm(asm.R1, 0, claimed),
		)
		a.placeLabel(next)
	}
	a.element(0, label)
	a.emit(asm.LoadMem(asm.R3, asm.RFP, slotNow, asm.DWord))
	a.handshakeEnd(asm.R3)
	a.emit(
		asm.StoreMem(asm.R0, shakeFull, asm.R3, asm.DWord),
		asm.Ja.Label(label),
	)
	a.placeLabel(claimed)
}

// handshakeEnd adds handshakeTime to a register. It uses R4.
func (a *assembler) handshakeEnd(r asm.Register) {
	a.emit(asm.LoadImm(asm.R4, handshakeTime, asm.DWord), asm.Add.Reg(r, asm.R4))
}

// recordHandshake changes the fact of the element of this connection, if it has one.
func (a *assembler) recordHandshake(fact int32) {
	none := a.unique("none")
	a.findHandshake(none)
	a.emit(
		asm.Mov.Imm(asm.R1, fact),
		asm.StoreMem(asm.R0, shakeFact, asm.R1, asm.Word),
	)
	a.placeLabel(none)
}

// endHandshake sets R1 to the fact of the element of this connection and frees the element, or
// jumps to label if there is none.
func (a *assembler) endHandshake(label string) {
	a.findHandshake(label)
	a.lock()
	a.emit(
		asm.LoadMem(asm.R2, asm.R1, shakeFact, asm.Word),
		asm.StoreMem(asm.RFP, slotGot, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.R1, shakeCookie, asm.R2, asm.DWord),
		asm.StoreMem(asm.R1, shakeUntil, asm.R2, asm.DWord),
	)
	a.unlock()
	a.emit(asm.LoadMem(asm.R1, asm.RFP, slotGot, asm.DWord))
}
