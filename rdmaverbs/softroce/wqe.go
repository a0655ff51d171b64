// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// wqe is a send work request in the send queue.
type wqe struct {
	id     uint64
	op     rdmaverbs.Opcode
	flags  rdmaverbs.SendFlags
	imm    uint32
	raddr  uint64
	rkey   uint32
	sg     [2]piece
	inline []byte // payload copied at post; the slot keeps the memory
	length int    // bytes of the message
	first  psn    // PSN of the first packet
	npkts  int    // number of its PSNs; for a READ those of its responses
	// bad is the status with which the request fails when all before it are
	// complete.
	bad rdmaverbs.WCStatus
}

// end returns the PSN after the last one of the request.
func (w *wqe) end() psn { return w.first.add(w.npkts) }

// emit adds the packet of w with PSN at. It reports whether its memory regions
// are open.
func (w *wqe) emit(e *endpoint, b *batch, at psn, ask bool) bool {
	k := at.sub(w.first)
	off := k * e.mtu
	n := min(w.length-off, e.mtu)
	firstPkt, lastPkt := k == 0, k == w.npkts-1
	op := requestOpcode(w.op, firstPkt, lastPkt)
	vaddr, dmaLen := w.raddr, w.length
	if e.writeOnly && w.op == rdmaverbs.OpWrite {
		op, vaddr, dmaLen = header.WriteOnly, w.raddr+uint64(off), n
	}
	payload, ok := w.gather(b, off, n)
	if !ok {
		return false
	}
	p := b.next(op.HeaderLen())
	p.payload = payload
	header.BTH(p.hdr).Encode(&header.BTHFields{
		Opcode:    op,
		Solicited: lastPkt && w.flags&rdmaverbs.Solicited != 0,
		MigReq:    true,
		PadCount:  uint8(-n & 3),
		PKey:      header.DefaultPKey,
		DestQP:    e.dqpn,
		AckReq:    ask,
		PSN:       uint32(at),
	})
	rest := p.hdr[header.BTHLen:]
	if op.HasRETH() {
		header.RETH(rest).Encode(&header.RETHFields{VA: vaddr, RKey: w.rkey, DMALen: uint32(dmaLen)})
		rest = rest[header.RETHLen:]
	}
	if op.HasImmDt() {
		header.ImmDt(rest).SetImm(w.imm)
	}
	return true
}

// emitRead adds the request for the responses of w, a READ, from PSN at on.
func (w *wqe) emitRead(e *endpoint, b *batch, at psn) {
	off := at.sub(w.first) * e.mtu
	p := b.next(header.ReadRequest.HeaderLen())
	header.BTH(p.hdr).Encode(&header.BTHFields{
		Opcode:    header.ReadRequest,
		Solicited: w.flags&rdmaverbs.Solicited != 0,
		MigReq:    true,
		PKey:      header.DefaultPKey,
		DestQP:    e.dqpn,
		AckReq:    true,
		PSN:       uint32(at),
	})
	header.RETH(p.hdr[header.BTHLen:]).Encode(&header.RETHFields{
		VA: w.raddr + uint64(off), RKey: w.rkey, DMALen: uint32(w.length - off),
	})
}

// gather returns n bytes of the message from offset off, in up to two pieces,
// and keeps their memory regions open for b. ok is false if a region is closed.
func (w *wqe) gather(b *batch, off, n int) (p [2][]byte, ok bool) {
	if w.flags&rdmaverbs.Inline != 0 {
		p[0] = w.inline[off : off+n]
		return p, true
	}
	i := 0
	for _, g := range w.sg {
		if n == 0 {
			break
		}
		if off >= g.n {
			off -= g.n
			continue
		}
		if !b.hold(g.mr) {
			return p, false
		}
		m := min(g.n-off, n)
		p[i] = g.mr.buf[g.off+off : g.off+off+m]
		i++
		n -= m
		off = 0
	}
	return p, true
}

// scatter copies data to the message's memory from offset off. It reports
// false if a memory region is closed.
func (w *wqe) scatter(off int, data []byte) bool {
	for _, g := range w.sg {
		if len(data) == 0 {
			break
		}
		if off >= g.n {
			off -= g.n
			continue
		}
		to := g.mr.buf[g.off+off : g.off+g.n] // before acquire: a panic must not leave the region in use
		if !g.mr.acquire() {
			return false
		}
		m := copy(to, data)
		g.mr.release()
		data = data[m:]
		off = 0
	}
	return true
}

// place returns the piece of memory that has byte off of the message, and the
// offset of this byte in the piece.
func (w *wqe) place(off int) (g piece, at int) {
	for _, g = range w.sg {
		if off < g.n {
			break
		}
		off -= g.n
	}
	return g, off
}

// requestOpcode returns the opcode of a packet of a SEND or WRITE.
func requestOpcode(op rdmaverbs.Opcode, first, last bool) header.Opcode {
	imm := op == rdmaverbs.OpSendImm || op == rdmaverbs.OpWriteImm
	if op == rdmaverbs.OpSend || op == rdmaverbs.OpSendImm {
		switch {
		case first && last && imm:
			return header.SendOnlyImm
		case first && last:
			return header.SendOnly
		case first:
			return header.SendFirst
		case last && imm:
			return header.SendLastImm
		case last:
			return header.SendLast
		}
		return header.SendMiddle
	}
	switch {
	case first && last && imm:
		return header.WriteOnlyImm
	case first && last:
		return header.WriteOnly
	case first:
		return header.WriteFirst
	case last && imm:
		return header.WriteLastImm
	case last:
		return header.WriteLast
	}
	return header.WriteMiddle
}
