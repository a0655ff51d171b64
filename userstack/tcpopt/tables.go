// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The tables here are for what all users of the machine can make the program keep. Nothing in
// them is ever replaced by something newer: what has no room is not announced, and both ends
// know that.
//
// The listeners map counts. Its keys are the local addresses of marked listeners, and, with a
// network namespace 0, which no socket has, the users who have such listeners (userKey), and
// all of them (allKey). A key is in the map while its count is above 0.
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
	countPart = countN + 4 // of the handshakes array
	countSize = countPart + 4
)

// countDead is the count of a value that is being deleted. As unsigned number it is above each
// limit.
const countDead = -1 << 31

// Ports of the keys with network namespace 0. The port of a user is the user.
const allKeyPort = -1 // is no user

const (
	// maxListeners limits the marked listeners, and so their local addresses. Users other than
	// root and the stack's own take at most maxListenersOthers of these, and one of them
	// maxListenersUser, and no more than is then left for others. Beyond it, a listener answers without the option.
	maxListeners       = 8192
	maxListenersOthers = maxListeners - maxListeners/8
	maxListenersUser   = 2048
)

// countTries bounds how often a program looks up a count that another one is deleting. After
// that, the listener is not registered.
const countTries = 4

// Results of take in slotGot.
const (
	gotNone = iota
	gotTaken
	gotStale
)

// plainKey sets the key to one that is not an address. The port is in R2.
func (a *assembler) plainKey() {
	for i := int16(0); i < listenerKeySize-8; i += 8 {
		a.setSlot(slotKey+i, 0)
	}
	a.emit(asm.StoreMem(asm.RFP, slotKeyPort, asm.R2, asm.DWord))
}

func (a *assembler) allKey() {
	a.emit(asm.Mov.Imm(asm.R2, allKeyPort))
	a.plainKey()
}

// userKey sets the key to that of the user of the mark.
func (a *assembler) userKey() {
	a.emit(asm.LoadMem(asm.R2, regMark, markOwner, asm.Word))
	a.plainKey()
}

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

// take adds 1 to the count of the key, or jumps to label if it has reached the limit or there is
// no room. The first one decides about the part of the count. With home, it becomes that of the
// mark. With leaves, the key is that of a user, who leaves as much for others: slotAll has what all
// users have. Without it, take sets slotAll to the count.
func (a *assembler) take(limit int32, home, leaves bool, label string) {
	taken := a.unique("taken")
	for range countTries {
		have, next, unlock, stale := a.unique("have"), a.unique("next"), a.unique("unlock"), a.unique("stale")
		a.findListener()
		a.emit(asm.JNE.Imm(asm.R0, 0, have))
		a.setSlot(slotHead, 0)
		a.emit(
			asm.LoadMem(asm.R2, regMark, markPart, asm.Word),
			asm.Mov.Imm(asm.R1, 0),
		)
		a.storePair(slotRest)
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
		a.setSlot(slotGot, gotNone)
		a.lock()
		a.unlessKey(stale)
		a.emit(
			asm.LoadMem(asm.R2, asm.R1, countN, asm.Word),
			asm.JSLT.Imm32(asm.R2, 0, stale),
			asm.JGE.Imm(asm.R2, limit, unlock),
		)
		if leaves {
			// As quota.Fair: the first one, or no more than is then left.
			first := a.unique("first")
			a.emit(
				asm.JEq.Imm(asm.R2, 0, first),
				asm.Mov.Imm(asm.R3, maxListenersOthers-1), // with this one
				asm.LoadMem(asm.R0, asm.RFP, slotAll, asm.DWord),
				asm.Sub.Reg(asm.R3, asm.R0),
				asm.JSGE.Reg(asm.R2, asm.R3, unlock),
			)
			a.placeLabel(first)
		} else {
			a.emit(asm.StoreMem(asm.RFP, slotAll, asm.R2, asm.DWord))
		}
		a.emit(
			asm.Add.Imm(asm.R2, 1),
			asm.StoreMem(asm.R1, countN, asm.R2, asm.Word),
		)
		if home {
			a.emit(
				asm.LoadMem(asm.R2, asm.R1, countPart, asm.Word),
				asm.StoreMem(regMark, markHome, asm.R2, asm.Word),
			)
		}
		a.emit(
			asm.Mov.Imm(asm.R2, gotTaken),
			asm.StoreMem(asm.RFP, slotGot, asm.R2, asm.DWord),
			asm.Ja.Label(unlock),
		)
		a.placeLabel(stale)
		a.emit(
			asm.Mov.Imm(asm.R2, gotStale),
			asm.StoreMem(asm.RFP, slotGot, asm.R2, asm.DWord),
		)
		a.placeLabel(unlock)
		a.unlock()
		a.emit(
			asm.LoadMem(asm.R1, asm.RFP, slotGot, asm.DWord),
			asm.JEq.Imm(asm.R1, gotTaken, taken),
			asm.JEq.Imm(asm.R1, gotNone, label),
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

// register counts the listener of the mark for its user and at its address, whose key address
// sets. It jumps to label if there is no room.
func (a *assembler) register(address func(), label string) {
	root, counted := a.unique("root"), a.unique("counted")
	noUser, noAddress, done := a.unique("nouser"), a.unique("noaddress"), a.unique("registered")
	a.allKey()
	a.emit(
		asm.LoadMem(asm.R1, regMark, markOwner, asm.Word),
		asm.JEq.Imm(asm.R1, 0, root),
	)
	a.take(maxListenersOthers, false, false, label)
	a.userKey()
	a.take(maxListenersUser, false, true, noUser)
	a.emit(asm.Ja.Label(counted))
	a.placeLabel(root)
	a.take(maxListeners, false, false, label)
	a.placeLabel(counted)
	address()
	a.take(maxListeners, true, false, noAddress)
	a.emit(asm.Ja.Label(done))
	a.placeLabel(noAddress)
	a.emit(
		asm.LoadMem(asm.R1, regMark, markOwner, asm.Word),
		asm.JEq.Imm(asm.R1, 0, noUser),
	)
	a.userKey()
	a.give()
	a.placeLabel(noUser)
	a.allKey()
	a.give()
	a.emit(asm.Ja.Label(label))
	a.placeLabel(done)
	a.flags(0, flagRegistered)
}

// unregister takes back register.
func (a *assembler) unregister(address func()) {
	root := a.unique("root")
	address()
	a.give()
	a.emit(
		asm.LoadMem(asm.R1, regMark, markOwner, asm.Word),
		asm.JEq.Imm(asm.R1, 0, root),
	)
	a.userKey()
	a.give()
	a.placeLabel(root)
	a.allKey()
	a.give()
	a.flags(flagRegistered, 0)
}
