// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The listeners map counts the marked listeners of each local address. An address is in the map
// while its count is above 0. There is room for maxListeners addresses: a listener beyond them
// answers without the option.
//
// A count is changed under its lock. The kernel may use the memory of a deleted element for
// another key at once, so the lock and the count may be those of another key when a program
// comes to them. Therefore a value has a copy of its key, and a deleted one has countDead.

// Offsets in bytes of the fields of a value of the listeners map. The lock is first: without
// CAP_PERFMON, a program may not compute the address of one. The copy of the key is before the
// count: the kernel writes a new value from its beginning.
const (
	countKey  = 8
	countN    = countKey + listenerKeySize
	countSize = countN + 8
)

// countDead is the count of a value that is being deleted.
const countDead = -1 << 31

// maxListeners limits the local addresses of marked listeners.
const maxListeners = 8192

// countTries bounds how often a program looks up a count that another one is deleting. After
// that, the listener is not registered.
const countTries = 4

// findListener looks up the key. R0 is then the address of the value, or nil.
func (a *assembler) findListener() {
	a.mapPtr(asm.R1, mapListeners)
	a.stackPtr(asm.R2, slotKey)
	a.emit(asm.FnMapLookupElem.Call())
}

// lock locks the element in R0, which begins with a lock, and sets R1 and slotElem to its
// address. There is no call until unlock.
func (a *assembler) lock() {
	a.emit(
		asm.StoreMem(asm.RFP, slotElem, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.FnSpinLock.Call(),
		asm.LoadMem(asm.R1, asm.RFP, slotElem, asm.DWord),
	)
}

func (a *assembler) unlock() {
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, slotElem, asm.DWord),
		asm.FnSpinUnlock.Call(),
	)
}

// unlessKey jumps to label if the value in R1 is not that of the key.
func (a *assembler) unlessKey(label string) {
	for i := int16(0); i < listenerKeySize; i += 8 {
		a.emit(
			asm.LoadMem(asm.R2, asm.R1, countKey+i, asm.DWord),
			asm.LoadMem(asm.R3, asm.RFP, slotKey+i, asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R3, label),
		)
	}
}

// take adds 1 to the count of the key, or jumps to label if there is no room.
func (a *assembler) take(label string) {
	taken := a.unique("taken")
	for range countTries {
		have, next, unlock := a.unique("have"), a.unique("next"), a.unique("unlock")
		a.findListener()
		a.emit(asm.JNE.Imm(asm.R0, 0, have))
		a.setSlot(slotHead, 0)
		a.setSlot(slotRest, 0)
		a.mapPtr(asm.R1, mapListeners)
		a.stackPtr(asm.R2, slotKey)
		a.stackPtr(asm.R3, slotHead)
		a.emit(
			asm.Mov.Imm(asm.R4, unix.BPF_NOEXIST), // it fails if the entry exists, which is no error
			asm.FnMapUpdateElem.Call(),
		)
		a.findListener()
		a.emit(asm.JEq.Imm(asm.R0, 0, next))
		a.placeLabel(have)
		a.setSlot(slotGot, 0)
		a.lock()
		a.unlessKey(unlock)
		a.emit(
			asm.LoadMem(asm.R2, asm.R1, countN, asm.Word),
			asm.JSLT.Imm32(asm.R2, 0, unlock),
			asm.Add.Imm(asm.R2, 1),
			asm.StoreMem(asm.R1, countN, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R2, 1),
			asm.StoreMem(asm.RFP, slotGot, asm.R2, asm.DWord),
		)
		a.placeLabel(unlock)
		a.unlock()
		a.emit(
			asm.LoadMem(asm.R1, asm.RFP, slotGot, asm.DWord),
			asm.JNE.Imm(asm.R1, 0, taken),
		)
		a.placeLabel(next)
	}
	a.emit(asm.Ja.Label(label))
	a.placeLabel(taken)
}

// give takes back take. The last one deletes the key.
func (a *assembler) give() {
	unlock, gone := a.unique("unlock"), a.unique("gone")
	a.findListener()
	a.emit(asm.JEq.Imm(asm.R0, 0, gone))
	a.setSlot(slotGot, 0)
	a.lock()
	a.unlessKey(unlock)
	a.emit(
		asm.LoadMem(asm.R2, asm.R1, countN, asm.Word),
		asm.JSLE.Imm32(asm.R2, 0, unlock),
		asm.Sub.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, countN, asm.R2, asm.Word),
		asm.JNE.Imm(asm.R2, 0, unlock),
		// Nobody finds the key anew until it is deleted, and only this program deletes it.
		asm.Mov.Imm(asm.R2, countDead),
		asm.StoreMem(asm.R1, countN, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreMem(asm.RFP, slotGot, asm.R2, asm.DWord),
	)
	a.placeLabel(unlock)
	a.unlock()
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, slotGot, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, gone),
	)
	a.mapPtr(asm.R1, mapListeners)
	a.stackPtr(asm.R2, slotKey)
	a.emit(asm.FnMapDeleteElem.Call())
	a.placeLabel(gone)
}

// register counts the listener of the mark at its address, whose key address sets. It jumps to
// label if there is no room.
func (a *assembler) register(address func(), label string) {
	address()
	a.take(label)
	a.flags(0, flagRegistered)
}

// unregister takes back register.
func (a *assembler) unregister(address func()) {
	address()
	a.give()
	a.flags(flagRegistered, 0)
}
