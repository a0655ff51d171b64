// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"time"

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

// requester sends requests. completer.go has its half that handles the answers.
//
// The send queue is a ring. From its head it has first the requests that are
// acknowledged but not completed, because a batch is still being sent (their
// number is done), then those with packets outstanding, then those not sent.
// PSNs, in order:
//
//	una  the oldest that is not acknowledged
//	nxt  the next to send; it goes back to una when packets were lost
//	max  the one after the highest that was sent
//	end  the first PSN of the next work request
type requester struct {
	ring []wqe
	head int
	n    int
	done int
	cur  int // index of the request that holds nxt, n if there is none

	una, nxt, max, end psn

	win         window
	maxReads    int
	reads       int // READs in [una, nxt)
	sinceAckReq int // packets since the last one with the AckReq bit
	timeout     time.Duration
	retryCnt    uint8
	rnrRetry    uint8
	retries     uint8 // left
	rnrs        uint8 // left
	gap         bool  // the packets from una on are being sent again
	ackAt       instant
	probeAt     instant
	backoff     uint // doublings of the probe delay
	again       bool // send the packet at una once more, as a probe
	probing     bool // a probe with PSN probed was sent and has no answer yet
	probed      psn
	resumeAt    instant
	rttPSN      psn
	rttAt       instant // when rttPSN was sent; never if none is timed
}

func (r *requester) start(p *rdmaverbs.PathInfo, w window) {
	at := psn(p.SQPSN & psnMask)
	r.una, r.nxt, r.max, r.end = at, at, at, at
	r.win = w
	r.maxReads = int(p.MaxRdAtom)
	r.timeout = ackTimeout(p.Timeout)
	r.retryCnt, r.rnrRetry = p.RetryCnt, p.RNRRetry
	r.retries, r.rnrs = r.retryCnt, r.rnrRetry
	r.ackAt, r.probeAt, r.resumeAt, r.rttAt = never, never, never, never
}

// at returns the request at index i from the head.
func (r *requester) at(i int) *wqe {
	if i += r.head; i >= len(r.ring) {
		i -= len(r.ring)
	}
	return &r.ring[i]
}

// post reserves the next slot of the send queue, which must have room. The
// caller fills it in and calls posted.
func (r *requester) post() *wqe {
	w := r.at(r.n)
	*w = wqe{inline: w.inline[:0]}
	return w
}

// posted assigns PSNs to the request in the slot and adds it to the queue.
func (r *requester) posted(w *wqe, mtu int) {
	w.first = r.end
	w.npkts = packets(w.length, mtu)
	if w.bad != rdmaverbs.StatusSuccess {
		w.npkts = 0
	}
	r.end = w.end()
	r.n++
}

// packets returns how many packets a message of n bytes takes.
func packets(n, mtu int) int { return max((n+mtu-1)/mtu, 1) }

// outstanding returns the PSNs sent and not acknowledged.
func (r *requester) outstanding() int { return r.nxt.sub(r.una) }

// ready reports whether fill would add a packet.
func (r *requester) ready(e *endpoint) bool {
	return r.again || r.more()
}

// more reports whether there is something to send at nxt.
func (r *requester) more() bool {
	if r.cur >= r.n || r.resumeAt != never {
		return false
	}
	w := r.at(r.cur)
	if w.bad != rdmaverbs.StatusSuccess || r.outstanding() >= r.win.size {
		return false
	}
	if w.op == rdmaverbs.OpRead {
		return r.reads < r.maxReads && w.end().sub(r.una) > 0
	}
	return true
}

// fill adds request packets to b as far as the window allows.
func (r *requester) fill(e *endpoint, now instant, b *batch) {
	sent := false
	if r.again && !b.full() {
		r.probe(e, b)
	}
	b.wholeTrains(e.train)
	for !b.full() && r.more() {
		w, before := r.at(r.cur), len(b.pkts)
		var ok bool
		switch {
		case w.op == rdmaverbs.OpRead:
			ok = r.emitRead(e, w, b)
		case e.writeOnly && w.op == rdmaverbs.OpWrite:
			ok = r.emitTrain(e, now, w, b)
		default:
			ok = r.emit(e, now, w, b)
		}
		if !ok {
			// The memory region is closed: the request fails when it is the
			// oldest.
			w.bad = rdmaverbs.StatusLocProtErr
			break
		}
		sent = true
		n := len(b.pkts) - before
		if first := r.nxt.sub(r.max); first > 0 {
			r.max = r.nxt
			n = max(n-first, 0)
		}
		e.stats.retransmits += uint64(n)
	}
	if sent {
		if r.ackAt == never && r.timeout > 0 {
			r.ackAt = now.add(r.timeout)
		}
		if r.probeAt == never {
			r.armProbe(now)
		}
	}
}

// emit adds the packet at nxt, which belongs to a SEND or WRITE.
func (r *requester) emit(e *endpoint, now instant, w *wqe, b *batch) bool {
	last := r.nxt.sub(w.first) == w.npkts-1
	ask := r.wantsAck() || last
	if !w.emit(e, b, r.nxt, ask) {
		return false
	}
	if ask {
		r.noteAckReq(now)
	}
	r.nxt = r.nxt.add(1)
	if last {
		r.cur++
	}
	return true
}

// emitRead adds the request for the responses of w that have not arrived.
func (r *requester) emitRead(e *endpoint, w *wqe, b *batch) bool {
	w.emitRead(e, b, r.nxt)
	r.nxt = w.end()
	r.reads++
	r.sinceAckReq = 0
	r.cur++
	return true
}

// probe adds the packet at una once more, with the AckReq bit. Nothing else is
// sent again before the answer, because the peer may only be late.
func (r *requester) probe(e *endpoint, b *batch) {
	r.again = false
	w := r.at(r.done)
	if w.bad != rdmaverbs.StatusSuccess {
		return
	}
	if w.op == rdmaverbs.OpRead {
		w.emitRead(e, b, r.una)
	} else if !w.emit(e, b, r.una, true) {
		w.bad = rdmaverbs.StatusLocProtErr
		return
	}
	r.probing, r.probed = true, r.una
	if r.rttPSN == r.una {
		r.rttAt = never // the answer may be to the first or the second transmission
	}
	e.stats.retransmits++
}

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
		if !g.mr.acquire() {
			return false
		}
		m := copy(g.mr.buf[g.off+off:g.off+g.n], data)
		g.mr.release()
		data = data[m:]
		off = 0
	}
	return true
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

// deadline returns the time of the earliest timer, or never.
func (r *requester) deadline() instant { return min(r.ackAt, r.probeAt, r.resumeAt) }

// armProbe sets the probe timer if its delay is shorter than the local ACK
// timeout. If the last packets of a message are lost, the peer sends no NAK.
// The probe finds this long before the local ACK timeout, which is usually 0.1
// s or more. A probe does not count as a retry.
func (r *requester) armProbe(now instant) {
	d := r.win.probeDelay() << min(r.backoff, 16)
	if r.timeout > 0 && d >= r.timeout || d > probeMax {
		r.probeAt = never
		return
	}
	r.probeAt = now.add(d)
}

// probeMax is the largest probe delay if there is no local ACK timeout.
const probeMax = 4 * time.Second

// expire handles the timers that are due at now.
func (r *requester) expire(e *endpoint, now instant) {
	if r.resumeAt <= now {
		r.resumeAt = never
	}
	if r.ackAt <= now {
		e.stats.timeouts++
		r.gap = false
		r.retry(true)
		return
	}
	if r.probeAt <= now {
		e.stats.probes++
		r.gap = false
		r.backoff++
		r.again = r.nxt != r.una
		r.armProbe(now)
	}
}

// retry sends all packets from una on again, or fails the oldest request if no
// retry is left. timedOut says that no answer at all came from the peer.
func (r *requester) retry(timedOut bool) {
	if r.retries == 0 {
		r.failAt(r.done, rdmaverbs.StatusRetryExcErr)
		return
	}
	r.retries--
	if timedOut {
		r.win.onTimeout(r.max)
	} else {
		r.win.onLoss(r.max)
	}
	r.rewind()
}

// rewind makes the packet at una the next one to send.
func (r *requester) rewind() {
	r.nxt = r.una
	r.cur = r.done
	r.reads = 0
	r.sinceAckReq = 0
	r.rttAt = never
	r.ackAt, r.probeAt = never, never
	r.again, r.probing = false, false
}

// failAt sets the status with which the request at index i fails. retire fails
// it when all before it are complete.
func (r *requester) failAt(i int, status rdmaverbs.WCStatus) {
	if i < r.n {
		r.at(i).bad = status
		r.cur = min(r.cur, i)
		r.ackAt, r.probeAt, r.resumeAt = never, never, never
		r.again, r.probing = false, false
	}
}
