// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"time"

	"smcr/rdmaverbs"
)

// The transport of a queue pair executes the requests in order. Each has these steps:
//
//	When                    | If                        | Then
//	it arrives              | the peer is unreachable   | again after the ACK timeout, RetryCnt times, then it fails
//	                        | no receive request waits  | again after the peer's RNR delay, RNRRetry times, then it fails
//	                        | otherwise                 | it is executed or refused, and the answer is sent
//	the answer arrives      | the path has failed       | like an unreachable peer
//	                        | it was executed           | it completes
//	                        | it was refused or failed  | it completes with an error; the queue pair fails
//
// Memory is read when a request arrives, not when it is posted. This is the latest time
// at which a real device, which may have to send the request again, would read it.

// arm schedules the next events of the queue pair. mu is held.
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

// arrive handles the first request that was not executed yet, if it is due.
func (q *qp) arrive(now time.Time) {
	if q.sent >= len(q.sq)-q.unsent {
		return
	}
	w := q.sq[q.sent]
	if w.at.After(now) || q.sent > 0 && q.sq[q.sent-1].status != rdmaverbs.StatusSuccess {
		// No request is executed after one that has failed. The answer to the failed
		// request flushes the others. Look again later.
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

// answer sends the result of w back.
func (q *qp) answer(now time.Time, w *sendWQE) {
	q.lastAck = q.w.arrival(q.rng, now, q.lastAck)
	w.ackAt = q.lastAck
	q.sent++
}

// retry schedules w again after the ACK timeout, or makes it fail. at is the time of w to
// change.
func (q *qp) retry(now time.Time, w *sendWQE, at *time.Time) {
	if q.rts.Timeout == 0 { // retries without a limit
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

// pathUp reports whether messages can reach the port of the peer.
func (q *qp) pathUp() bool {
	if q.dev.gone || q.dev.closed {
		return false
	}
	to := q.w.byGID(q.n, q.rtr.DGID)
	return to != nil && q.n.reaches(to)
}

// peer returns the connected queue pair if it exists, is connected to q, and can be
// reached. Otherwise it returns nil.
func (q *qp) peer() *qp {
	if !q.pathUp() {
		return nil
	}
	p := q.w.qps[q.rtr.DQPN]
	if p == nil || p.gid != q.rtr.DGID || p.dev.closed || p.dev.gone {
		return nil
	}
	if !p.connectedTo(q) {
		return nil
	}
	return p
}

// connectedTo reports whether q is connected to p.
func (q *qp) connectedTo(p *qp) bool {
	return (q.state == rdmaverbs.QPSRTR || q.state == rdmaverbs.QPSRTS) &&
		q.rtr.DQPN == p.qpn && q.rtr.DGID == p.gid && q.rtr.RQPSN == p.rts.SQPSN
}

// partial places the first packets of a write that was on the way when the path failed.
// The rest is sent again or never arrives.
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

// place stores src, the data of request w of q, in memory of p.
func (p *qp) place(q *qp, w *sendWQE, to, src []byte, kind EventKind) {
	before := append([]byte(nil), to...)
	copy(to, src)
	p.recordWrite(w.wr.RKey, to, before)
	q.w.observe(&Event{Kind: kind, From: q.where(), To: p.where(), Data: before, Mem: to, RKey: w.wr.RKey, Addr: w.wr.RemoteAddr})
}

// execute executes w at p. rnr reports that p has no receive request.
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

// refuse makes q, the receiver, fail because its oldest receive request cannot take a
// message. It returns the status for the sender.
func (q *qp) refuse(st rdmaverbs.WCStatus) rdmaverbs.WCStatus {
	q.rcq.push(rdmaverbs.WC{ID: q.rq[0].id, Status: st, QPN: q.qpn})
	q.rq = q.rq[1:]
	q.fail("no room for a message")
	if st == rdmaverbs.StatusLocLenErr {
		return rdmaverbs.StatusRemInvReqErr
	}
	return rdmaverbs.StatusRemOpErr
}

// remote returns the memory of q, the receiver, that w addresses. It returns false if w
// has no permission.
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

// localOK reports whether all memory regions of w still exist.
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

// message returns the data of w.
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
