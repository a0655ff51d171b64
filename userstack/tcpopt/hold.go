// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"smcr/quota"
)

// The held map says to whom listeners announce nothing for now, and until when. The program looks there once for a connection, before
// its first SYN-ACK:
//
//	entry                         | a SYN from there
//	------------------------------+-------------------------------------------------
//	a neighbour, an Ethernet      | is answered without the option
//	address                       |
//	a host that is known          | otherwise: is answered with it
//	a network behind a router     | otherwise: without it
//	strangers                     | otherwise: without it
//
// User space writes the map, and removes what is over when it writes the next entry.

// maxHeld is how many entries there may be: those of quota.Silents, as many hosts that are known, and some origins that have their share.
const maxHeld = 4 * quota.MostSilents

// Kinds of entries.
const (
	heldNeighbour = iota + 1
	heldHost4
	heldHost6
	heldNetwork4
	heldNetwork6
	heldStrangers
)

// heldKey is a key of the held map: a kind, and an address in the order of bytes of the network, in two parts as the program reads them.
type heldKey struct{ Kind, A, B uint64 }

const heldKeySize = 24

// Offsets in bytes of the fields of a key on the stack.
const (
	heldA = 8
	heldB = 16
)

func neighbourKey(mac [6]byte) heldKey {
	return heldKey{heldNeighbour, uint64(binary.NativeEndian.Uint16(mac[:2])), uint64(binary.NativeEndian.Uint32(mac[2:]))}
}

// addressKey returns the key of a host, or of a network by its first address.
func addressKey(kind4, kind6 uint64, a netip.Addr) heldKey {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return heldKey{Kind: kind4, B: uint64(binary.NativeEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return heldKey{kind6, binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])}
}

// originKey returns the key of an origin. The zero Origin stands for strangers.
func originKey(o quota.Origin) heldKey {
	if mac, ok := o.Neighbour(); ok {
		return neighbourKey(mac)
	}
	if n := o.Network(); n.IsValid() {
		return addressKey(heldNetwork4, heldNetwork6, n.Masked().Addr())
	}
	return heldKey{Kind: heldStrangers}
}

// networkMask has the bits of a network's address in the part of a key that the program reads.
func networkMask(bits, size int) int64 {
	var b [8]byte
	for i := range bits / 8 {
		b[i] = 0xff
	}
	if size == 4 {
		return int64(binary.NativeEndian.Uint32(b[:4]))
	}
	return int64(binary.NativeEndian.Uint64(b[:]))
}

// heldUntil is what user space knows of the held map.
type heldUntil struct {
	mu    sync.Mutex
	until map[heldKey]time.Duration // CLOCK_MONOTONIC
}

// Hold has listeners announce nothing to the hosts of an origin for a time, but for known hosts behind a router. The zero Origin stands for all
// hosts but those that are known. The known hosts are as quota.Origin.HostOf has them. A time that is longer already stays. Connections that
// were announced are not affected. Errors: ErrClosed.
func (p *Program) Hold(o quota.Origin, d time.Duration, known []netip.Addr) error {
	if err := p.acquire(); err != nil {
		return err
	}
	defer p.release()
	h := &p.held
	h.mu.Lock()
	defer h.mu.Unlock()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return fmt.Errorf("tcpopt: clock_gettime: %w", err)
	}
	now := time.Duration(ts.Nano())
	for k, until := range h.until {
		if until > now {
			continue
		}
		if err := p.objs.held.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("tcpopt: to whom nothing is announced: %w", err)
		}
		delete(h.until, k)
	}
	keys := []heldKey{originKey(o)}
	for _, a := range known {
		keys = append(keys, addressKey(heldHost4, heldHost6, a))
	}
	for _, k := range keys {
		if h.until[k] >= now+d {
			continue
		}
		if err := p.objs.held.Put(k, uint64(now+d)); err != nil {
			return fmt.Errorf("tcpopt: to whom nothing is announced: %w", err)
		}
		if h.until == nil {
			h.until = map[heldKey]time.Duration{}
		}
		h.until[k] = now + d
	}
	return nil
}

// Options of bpf_getsockopt, level IPPROTO_TCP, and offsets in an Ethernet header.
const (
	tcpBPFSynMAC = 1007 // the SYN from its link layer header on
	etherLen     = 14
	etherSrc     = 6
)

// ifHeld jumps to label if the key on the stack, of a kind, has an entry that is not over. The time is in its slot.
func (a *assembler) ifHeld(kind int32, label string) {
	free := a.unique("free")
	a.setSlot(slotHeld, kind)
	a.mapPtr(asm.R1, mapHeld)
	a.stackPtr(asm.R2, slotHeld)
	a.emit(
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, free),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.LoadMem(asm.R2, asm.RFP, slotNow, asm.DWord),
		asm.JGT.Reg(asm.R1, asm.R2, label),
	)
	a.placeLabel(free)
}

// maskHeld clears bits of a part of the key on the stack.
func (a *assembler) maskHeld(part int16, mask int64) {
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, slotHeld+part, asm.DWord),
		asm.LoadImm(asm.R2, mask, asm.DWord),
		asm.And.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.RFP, slotHeld+part, asm.R1, asm.DWord),
	)
}

// unlessAnnounced jumps to label if nothing is announced to the host whose SYN is answered.
func (a sockOps) unlessAnnounced(label string) {
	v4, v6, strangers, announced := a.unique("from"), a.unique("from"), a.unique("strangers"), a.unique("announced")
	a.emit(
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, slotNow, asm.R0, asm.DWord),
	)
	a.setSlot(slotEther, 0)
	a.setSlot(slotEther+8, 0)
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.Mov.Imm(asm.R2, unix.IPPROTO_TCP),
		asm.Mov.Imm(asm.R3, tcpBPFSynMAC),
	)
	a.stackPtr(asm.R4, slotEther)
	a.emit(
		asm.Mov.Imm(asm.R5, etherLen),
		asm.FnGetsockopt.Call(), // the SYN is longer, which is an error and what is wanted
		asm.LoadMem(asm.R1, asm.RFP, slotEther+etherSrc, asm.Half),
		asm.StoreMem(asm.RFP, slotHeld+heldA, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, slotEther+etherSrc+2, asm.Word),
		asm.StoreMem(asm.RFP, slotHeld+heldB, asm.R1, asm.DWord),
	)
	a.ifHeld(heldNeighbour, label)

	a.emit(
		asm.LoadMem(asm.R2, regCtx, opsRemoteIP4, asm.Word),
		asm.LoadMem(asm.R1, regCtx, opsFamily, asm.Word),
		asm.JEq.Imm(asm.R1, unix.AF_INET, v4),
		// A listener of IPv6 has hosts of IPv4, too, with mapped addresses.
		asm.LoadMem(asm.R1, regCtx, opsRemoteIP6, asm.Word),
		asm.JNE.Imm(asm.R1, 0, v6),
		asm.LoadMem(asm.R1, regCtx, opsRemoteIP6+4, asm.Word),
		asm.JNE.Imm(asm.R1, 0, v6),
		asm.LoadMem(asm.R1, regCtx, opsRemoteIP6+8, asm.Word),
		asm.Mov.Imm32(asm.R3, mappedIPv4),
		asm.LoadMem(asm.R2, regCtx, opsRemoteIP6+12, asm.Word),
		asm.JEq.Reg(asm.R1, asm.R3, v4),
	)
	a.placeLabel(v6)
	for i := int16(0); i < 16; i += 8 {
		a.emit(
			asm.LoadMem(asm.R1, regCtx, opsRemoteIP6+i, asm.Word),
			asm.LoadMem(asm.R2, regCtx, opsRemoteIP6+i+4, asm.Word),
		)
		a.storePair(slotHeld + heldA + i)
	}
	a.ifHeld(heldHost6, announced)
	a.setSlot(slotHeld+heldB, 0) // behind a router, a subnet is a host
	a.ifHeld(heldHost6, announced)
	a.maskHeld(heldA, networkMask(quota.Network6, 8))
	a.ifHeld(heldNetwork6, label)
	a.emit(asm.Ja.Label(strangers))

	a.placeLabel(v4)
	a.emit(asm.StoreMem(asm.RFP, slotHeld+heldB, asm.R2, asm.DWord))
	a.setSlot(slotHeld+heldA, 0)
	a.ifHeld(heldHost4, announced)
	a.maskHeld(heldB, networkMask(quota.Network4, 4))
	a.ifHeld(heldNetwork4, label)

	a.placeLabel(strangers)
	a.setSlot(slotHeld+heldA, 0)
	a.setSlot(slotHeld+heldB, 0)
	a.ifHeld(heldStrangers, label)
	a.placeLabel(announced)
}
