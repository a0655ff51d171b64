// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"time"

	"smcr/rdmaverbs/softroce/header"
	"smcr/userstack/wire"
)

// train decodes the RoCE packets of a UDP datagram. A capture on the host that sends can have
// several packets in one: the sender gives them to the kernel at once, and the kernel or the
// netdev divides them later (UDP_SEGMENT). All have the length of the first, except that the
// last may be shorter. The ICRC of each cannot be checked, because it depends on the headers
// that are made later.
func (d *Decoder) train(now time.Time, r *roce) {
	n := ownLength(r.data)
	if n == 0 || n+header.BTHLen+header.ICRCLen > r.length || n+header.BTHLen > len(r.data) || !isBTH(r.data[n:]) {
		d.roce(now, r)
		return
	}
	data := r.data
	for at := 0; at < r.length && at < len(data); at += n {
		one := *r
		one.length = min(n, r.length-at)
		one.data = data[at:min(at+one.length, len(data))]
		one.icrc = nil
		d.roce(now, &one)
	}
}

// isBTH reports whether b probably begins with a BTH of the reliable connection service.
func isBTH(b []byte) bool {
	bth := header.BTH(b)
	return bth.Opcode().Known() && bth.TVer() == 0 && bth.PKey() == header.DefaultPKey
}

// ownLength returns how long the packet at the beginning of b says that it is, from the BTH to
// the end of the ICRC, or 0 if it does not say so.
func ownLength(b []byte) int {
	if len(b) < header.BTHLen {
		return 0
	}
	op := header.BTH(b).Opcode()
	n := op.HeaderLen()
	if n == 0 || len(b) < n {
		return 0
	}
	payload := 0
	switch op {
	case header.Acknowledge, header.ReadRequest:
	case header.WriteOnly, header.WriteOnlyImm:
		dma := header.RETH(b[header.BTHLen:]).DMALen()
		if dma > 1<<16 {
			return 0
		}
		payload = int(dma)
	case header.SendOnly, header.SendOnlyImm:
		if payload = messageLength(b[n:]); payload == 0 {
			return 0
		}
	default:
		return 0
	}
	return n + (payload+3)&^3 + header.ICRCLen
}

// messageLength returns the length in the header of an LLC or CDC message, or 0 if there is
// none.
func messageLength(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	const v2 = 0x20 // in the opcode of version 2
	switch t := wire.LLCType(b[0]); {
	case b[0] == wire.CDCType, t >= wire.LLCConfirmLink && t <= wire.LLCDeleteRKey:
		if b[1] == wire.LLCLen {
			return wire.LLCLen
		}
	case t >= v2|wire.LLCConfirmLink && t <= v2|wire.LLCDeleteRKey:
		// The byte order is that of the specification or that of the sender.
		for _, n := range []uint16{binary.BigEndian.Uint16(b[1:]), binary.LittleEndian.Uint16(b[1:])} {
			if n >= wire.LLCLen && n <= wire.MaxLLCLenV2 {
				return int(n)
			}
		}
	}
	return 0
}
