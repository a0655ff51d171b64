// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// emitTrain adds packets of w from nxt on. w is a WRITE whose packets are
// separate messages. It adds as many full packets as may be sent and lie in one
// piece of memory. Their headers differ only in PSN, address and AckReq bit, so
// the rest is encoded once. emit adds a packet that is not full, is the last of
// the request, or lies in two pieces.
func (r *requester) emitTrain(e *endpoint, now instant, w *wqe, b *batch) bool {
	k := r.nxt.sub(w.first)
	off := k * e.mtu
	g, at := w.place(off)
	n := min(w.npkts-1-k, (g.n-at)/e.mtu, b.most-len(b.pkts), r.win.size-r.outstanding())
	if n < 2 || w.flags&rdmaverbs.Inline != 0 {
		return r.emit(e, now, w, b)
	}
	if !b.hold(g.mr) {
		return false
	}
	const length = header.BTHLen + header.RETHLen
	var same [length]byte
	header.BTH(same[:]).Encode(&header.BTHFields{
		Opcode: header.WriteOnly, MigReq: true, PadCount: uint8(-e.mtu & 3), PKey: header.DefaultPKey, DestQP: e.dqpn,
	})
	header.RETH(same[header.BTHLen:]).Encode(&header.RETHFields{RKey: w.rkey, DMALen: uint32(e.mtu)})
	buf := g.mr.buf[g.off+at:][:n*e.mtu]
	va := w.raddr + uint64(off)
	for range n {
		i := len(b.pkts)
		b.pkts = b.pkts[:i+1]
		hdr := b.hdrs[i][:length]
		copy(hdr, same[:])
		number := uint32(r.nxt)
		if r.wantsAck() {
			number |= ackReqBit
			r.noteAckReq(now)
		}
		binary.BigEndian.PutUint32(hdr[header.BTHLen-4:], number)
		binary.BigEndian.PutUint64(hdr[header.BTHLen:], va)
		p := &b.pkts[i]
		p.hdr = hdr
		p.payload[0], p.payload[1] = buf[:e.mtu:e.mtu], nil
		buf = buf[e.mtu:]
		va += uint64(e.mtu)
		r.nxt = r.nxt.add(1)
	}
	return true
}

// ackReqBit is the AckReq bit in the 32-bit word of the PSN.
const ackReqBit = 1 << 31

// wantsAck counts the packet at nxt and reports whether it must request an
// acknowledgement although it is not the last of its message. Otherwise the
// window would be used up before an acknowledgement arrives.
func (r *requester) wantsAck() bool {
	r.sinceAckReq++
	return r.sinceAckReq*4 >= r.win.size || r.outstanding()+1 >= r.win.size
}

// noteAckReq records that the packet at nxt requests an acknowledgement.
func (r *requester) noteAckReq(now instant) {
	r.sinceAckReq = 0
	if !r.nxt.before(r.max) {
		r.rtt.begin(now, r.nxt)
	}
}
