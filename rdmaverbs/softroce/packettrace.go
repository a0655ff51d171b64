// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// traced returns what all traced packets of q have in common. The path does not change after
// the first packet.
func (q *qp) traced(out bool) rdmaverbs.TracedPacket {
	return rdmaverbs.TracedPacket{
		Tag: q.tag, Out: out, Type: q.path.typ, Local: q.path.sgid, Remote: q.path.dgid,
		LocalQPN: q.ep.qpn, PeerQPN: q.ep.dqpn,
	}
}

// isSend reports whether packets with this opcode carry a message, and not bytes for the
// memory of the peer.
func isSend(op header.Opcode) bool { return op <= header.SendOnlyImm }

// showSent shows packets that are about to be sent. q.mu is not held.
func (q *qp) showSent(see func(*rdmaverbs.TracedPacket), pkts []packet) {
	for i := range pkts {
		p := &pkts[i]
		bth := header.BTH(p.hdr)
		t := q.traced(true)
		t.Header, t.PayloadLen, t.PadLen = p.hdr, len(p.payload[0])+len(p.payload[1]), int(bth.PadCount())
		if isSend(bth.Opcode()) {
			t.Message = p.payload
		}
		see(&t)
	}
}

// showReceived shows a packet that was received from the peer of q. q.mu is held.
func (q *qp) showReceived(see func(*rdmaverbs.TracedPacket), p *header.Transport) {
	op := p.BTH.Opcode()
	if !op.Known() {
		return
	}
	var hdr [header.MaxTransportLen + header.AETHLen]byte
	b := append(hdr[:0], p.BTH...)
	b = append(append(append(b, p.RETH...), p.AETH...), p.ImmDt...)
	t := q.traced(false)
	t.Header, t.PayloadLen, t.PadLen = b, len(p.Payload), int(p.BTH.PadCount())
	if isSend(op) {
		t.Message[0] = p.Payload
	}
	see(&t)
}
