// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"time"

	"smcr/rdmaverbs"
)

// The transport of a queue pair takes the requests in order. Each goes
// through these steps:
//
//	When                    | If                        | Then
//	it arrives              | the peer is out of reach  | again after the ACK timeout, RetryCnt times, then it fails
//	                        | no receive request waits  | again after the peer's RNR delay, RNRRetry times, then it fails
//	                        | else                      | it is executed or refused, and the answer sent
//	the answer arrives      | the path is broken now    | as out of reach
//	                        | it was executed           | it completes
//	                        | it was refused or failed  | it completes with an error; the queue pair fails
//
// Memory is read when a request arrives, not when it is posted: the latest
// time at which a device that had to send it again would read it.

// arm schedules what is next. mu is held.
func (q *qp) arm() {
	if q.sent < len(q.sq)-q.unsent && !q.sendArmed {
		q.sendArmed = true
		q.w.at(q.sq[q.sent].at, func(now time.Time) {
			q.sendArmed = false
			q.arrive(now)
			q.arm()
		})
	}
	if q.sent > 0 && !q.ackArmed {
		q.ackArmed = true
		q.w.at(q.sq[0].ackAt, func(now time.Time) {
			q.ackArmed = false
			q.answered(now)
			q.arm()
		})
	}
}

// arrive handles the first request that was not executed, if it is due.
func (q *qp) arrive(now time.Time) {
	if q.sent >= len(q.sq)-q.unsent {
		return
	}
	w := q.sq[q.sent]
	if w.at.After(now) || q.sent > 0 && q.sq[q.sent-1].status != rdmaverbs.StatusSuccess {
		// Behind one that failed nothing is executed any more; the answer to
		// that one flushes the rest. Look again later.
		w.at = maxTime(w.at, now.Add(time.Millisecond))
		return
	}
	if w.status != rdmaverbs.StatusSuccess { // local fault
		q.answer(now, w)
		return
	}
	peer := q.peer()
	if peer == nil {
		q.partial(w)
		q.retry(now, w, &w.at)
		return
	}
	switch st, rnr := q.execute(peer, w); {
	case rnr && (q.rts.RNRRetry == 7 || w.rnrs < int(q.rts.RNRRetry)):
		w.rnrs++
		w.at = now.Add(rnrDelay(peer.rtr.MinRNR))
	case rnr:
		w.status = rdmaverbs.StatusRNRRetryExcErr
		q.answer(now, w)
	default:
		w.status = st
		q.answer(now, w)
	}
}

// answer sends the outcome of w back.
func (q *qp) answer(now time.Time, w *sendWQE) {
	q.lastAck = q.w.arrival(q.rng, now, q.lastAck)
	w.ackAt = q.lastAck
	q.sent++
}

// retry repeats w after the ACK timeout, or fails it. at is the time of w that
// the repetition moves.
func (q *qp) retry(now time.Time, w *sendWQE, at *time.Time) {
	if q.rts.Timeout == 0 { // never gives up
		*at = now.Add(time.Second)
		return
	}
	if w.tries > int(q.rts.RetryCnt) {
		w.status, w.ackAt = rdmaverbs.StatusRetryExcErr, now
		q.lastAck = maxTime(q.lastAck, now)
		if at == &w.at {
			q.sent++
		}
		return
	}
	w.tries++
	*at = now.Add(ackTimeout(q.rts.Timeout))
}

// answered handles the answer to the oldest request, if it is due.
func (q *qp) answered(now time.Time) {
	if q.sent == 0 {
		return
	}
	w := q.sq[0]
	if w.ackAt.After(now) {
		return
	}
	local := w.status == rdmaverbs.StatusRetryExcErr || w.status == rdmaverbs.StatusLocProtErr ||
		w.status == rdmaverbs.StatusLocLenErr || w.status == rdmaverbs.StatusLocQPOpErr
	if !local && (!q.pathUp() || w.again && w.status == rdmaverbs.StatusSuccess && q.peer() == nil) {
		w.again = true
		q.retry(now, w, &w.ackAt)
		return
	}
	q.sq = q.sq[1:]
	q.sent--
	if w.status != rdmaverbs.StatusSuccess {
		q.scq.push(rdmaverbs.WC{ID: w.wr.ID, Status: w.status, QPN: q.qpn})
		q.fail(w.status.String())
		return
	}
	if w.wr.Flags&rdmaverbs.Signaled != 0 {
		wc := rdmaverbs.WC{ID: w.wr.ID, Op: rdmaverbs.WCWrite, QPN: q.qpn}
		switch w.wr.Op {
		case rdmaverbs.OpSend, rdmaverbs.OpSendImm:
			wc.Op = rdmaverbs.WCSend
		case rdmaverbs.OpRead:
			wc.Op, wc.Len = rdmaverbs.WCRead, w.length
		}
		q.scq.push(wc)
	}
}

// pathUp reports whether messages get through to the peer's port.
func (q *qp) pathUp() bool {
	if q.dev.gone || q.dev.closed {
		return false
	}
	to := q.w.byGID(q.n, q.rtr.DGID)
	return to != nil && q.n.reaches(to)
}

// peer returns the connected queue pair if it is there, connected to q, and
// can be reached.
func (q *qp) peer() *qp {
	if !q.pathUp() {
		return nil
	}
	p := q.w.qps[q.rtr.DQPN]
	if p == nil || p.gid != q.rtr.DGID || p.dev.closed || p.dev.gone {
		return nil
	}
	if !p.pairs(q) {
		return nil
	}
	return p
}

// pairs reports whether q, which is connected to p, finds p connected to it.
func (q *qp) pairs(p *qp) bool {
	return (q.state == rdmaverbs.QPSRTR || q.state == rdmaverbs.QPSRTS) &&
		q.rtr.DQPN == p.qpn && q.rtr.DGID == p.gid && q.rtr.RQPSN == p.rts.SQPSN
}

// partial places the first packets of a write which was under way when the
// path broke. The rest is repeated, or never comes.
func (q *qp) partial(w *sendWQE) {
	mtu := q.rts.PathMTU.Bytes()
	if w.tries > 0 || w.wr.Op != rdmaverbs.OpWrite || w.length <= mtu || !w.localOK() {
		return
	}
	p := q.broken(w.posted)
	if p == nil {
		return
	}
	to, ok := p.remote(w, rdmaverbs.AccessRemoteWrite)
	if !ok {
		return
	}
	n := mtu * q.rng.IntN((w.length-1)/mtu+1)
	msg := make([]byte, w.length)
	w.gather(msg)
	p.place(q, w, to[:n], msg[:n], EventPartial)
}

// place stores src, which w of q brings, in memory of p.
func (p *qp) place(q *qp, w *sendWQE, to, src []byte, kind EventKind) {
	before := append([]byte(nil), to...)
	copy(to, src)
	p.written(w.wr.RKey, to, before)
	q.w.observe(&Event{Kind: kind, From: q.where(), To: p.where(), Data: before, Mem: to, RKey: w.wr.RKey, Addr: w.wr.RemoteAddr})
}

// execute does at p what w asks for. rnr says that p has no receive request.
func (q *qp) execute(p *qp, w *sendWQE) (st rdmaverbs.WCStatus, rnr bool) {
	wr := &w.wr
	takes := wr.Op == rdmaverbs.OpSend || wr.Op == rdmaverbs.OpSendImm || wr.Op == rdmaverbs.OpWriteImm
	if takes && len(p.rq) == 0 {
		return 0, true
	}
	if !w.localOK() {
		return rdmaverbs.StatusLocProtErr, false
	}
	wc := rdmaverbs.WC{QPN: p.qpn, Op: rdmaverbs.WCRecv, Len: w.length}
	switch wr.Op {
	case rdmaverbs.OpSend, rdmaverbs.OpSendImm:
		msg := w.message()
		if q.w.cfg.Alter != nil {
			var deliver bool
			if msg, deliver = q.w.cfg.Alter(q.where(), p.where(), msg); !deliver {
				q.w.observe(&Event{Kind: EventLost, From: q.where(), To: p.where(), Data: msg})
				return rdmaverbs.StatusSuccess, false
			}
		}
		q.w.observe(&Event{Kind: EventSend, From: q.where(), To: p.where(), Data: msg})
		if st := p.receive(msg); st != rdmaverbs.StatusSuccess {
			return st, false
		}
		wc.Len = len(msg)
	case rdmaverbs.OpWrite, rdmaverbs.OpWriteImm:
		wc.Op = rdmaverbs.WCRecvWriteImm
		to, ok := p.remote(w, rdmaverbs.AccessRemoteWrite)
		if !ok {
			q.w.observe(&Event{Kind: EventRefused, From: q.where(), To: p.where(), RKey: wr.RKey, Addr: wr.RemoteAddr})
			p.fail("remote access error")
			return rdmaverbs.StatusRemAccessErr, false
		}
		if q.w.cfg.Observe == nil && q.w.cfg.Hold <= 0 {
			w.gather(to)
		} else {
			p.place(q, w, to, w.message(), EventWrite)
		}
	case rdmaverbs.OpRead:
		from, ok := p.remote(w, rdmaverbs.AccessRemoteRead)
		if !ok {
			p.fail("remote access error")
			return rdmaverbs.StatusRemAccessErr, false
		}
		w.scatter(from)
	}
	if takes {
		wc.ID = p.rq[0].id
		p.rq = p.rq[1:]
		if wr.Op != rdmaverbs.OpSend {
			wc.Imm, wc.HasImm = wr.Imm, true
		}
		p.deliver(wc)
	}
	return rdmaverbs.StatusSuccess, false
}

// refuse fails q, the receiver, whose oldest receive request cannot take a
// message, and returns what the sender sees.
func (q *qp) refuse(st rdmaverbs.WCStatus) rdmaverbs.WCStatus {
	q.rcq.push(rdmaverbs.WC{ID: q.rq[0].id, Status: st, QPN: q.qpn})
	q.rq = q.rq[1:]
	q.fail("no room for a message")
	if st == rdmaverbs.StatusLocLenErr {
		return rdmaverbs.StatusRemInvReqErr
	}
	return rdmaverbs.StatusRemOpErr
}

// remote returns the memory of q, the receiver, that w names.
func (q *qp) remote(w *sendWQE, need rdmaverbs.Access) ([]byte, bool) {
	if q.init.Access&need == 0 {
		return nil, false
	}
	if w.length == 0 {
		return nil, true
	}
	m := q.w.mrs[w.wr.RKey]
	if m == nil || m.pd != q.pd || m.access&need == 0 {
		return nil, false
	}
	return m.slice(w.wr.RemoteAddr, w.length)
}

// localOK reports whether the regions that w names still exist.
func (w *sendWQE) localOK() bool {
	if w.inline != nil {
		return true
	}
	for i := range w.wr.SG {
		if g := &w.wr.SG[i]; g.Len > 0 && g.MR.(*mr).closed {
			return false
		}
	}
	return true
}

// message returns the bytes that are sent.
func (w *sendWQE) message() []byte {
	if w.inline != nil {
		return w.inline
	}
	b := make([]byte, w.length)
	w.gather(b)
	return b
}

func (w *sendWQE) gather(to []byte) {
	if w.inline != nil {
		copy(to, w.inline)
		return
	}
	for i := range w.wr.SG {
		if g := &w.wr.SG[i]; g.Len > 0 {
			to = to[copy(to, g.MR.(*mr).buf[g.Off:g.Off+g.Len]):]
		}
	}
}

func (w *sendWQE) scatter(from []byte) {
	for i := range w.wr.SG {
		if g := &w.wr.SG[i]; g.Len > 0 {
			from = from[copy(g.MR.(*mr).buf[g.Off:g.Off+g.Len], from):]
		}
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
