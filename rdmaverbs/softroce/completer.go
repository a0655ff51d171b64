// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// The completer is the half of the requester that handles answers (InfiniBand
// specification, volume 1, section 9.7.5 and 9.9.2):
//	Answer                       | Action
//	ACK                          | everything to its PSN is done
//	ACK beyond a READ's response | the response was lost: send again from there
//	READ response, in order      | everything before it is done; copy its data
//	READ response, ahead         | a response was lost: send again from there
//	NAK, sequence error          | everything before its PSN is done; send again
//	RNR NAK                      | the same, after the delay in the NAK
//	other NAK                    | the same, and the request at its PSN fails
//	any, outside [una, max)      | a ghost answer: ignore
//	any, after the oldest failed | ignore: the queue pair is about to fail

// response handles an answer from the peer. It reports whether the answer is to a
// packet that is outstanding.
func (r *requester) response(e *endpoint, now instant, t *header.Transport) bool {
	at := psn(t.BTH.PSN())
	if !at.in(r.una, r.max) {
		e.stats.ghosts++
		return false
	}
	if r.sq.oldest().bad != rdmaverbs.StatusSuccess {
		// The queue pair enters the error state when the batch that is being
		// sent was sent. An answer must not complete the request meanwhile.
		return true
	}
	if t.BTH.Opcode() == header.Acknowledge {
		r.acknowledgement(e, now, at, t.AETH.Syndrome())
	} else {
		r.readResponse(e, now, at, t)
	}
	return true
}

// acknowledgement handles an ACK or NAK for PSN at.
func (r *requester) acknowledgement(e *endpoint, now instant, at psn, s header.Syndrome) {
	switch {
	case s.IsACK():
		probe := r.probe.answeredBy(at)
		if r.acknowledge(now, at.add(1)) {
			r.repairLoss()
		} else if probe {
			r.probeAnswered()
		}
	case s.IsRNR():
		e.stats.rnrReceived++
		if r.acknowledge(now, at) {
			r.repairLoss()
			return
		}
		r.notReady(now, s.Code())
	case s == header.NAKSequence:
		e.stats.nakReceived++
		r.acknowledge(now, at)
		r.repairLoss()
	case s.IsNAK():
		e.stats.nakReceived++
		if r.acknowledge(now, at) {
			r.repairLoss()
			return
		}
		r.failAt(r.sq.done, nakStatus(s))
	}
}

// nakStatus returns the completion status for a fatal NAK.
func nakStatus(s header.Syndrome) rdmaverbs.WCStatus {
	switch s {
	case header.NAKInvalid:
		return rdmaverbs.StatusRemInvReqErr
	case header.NAKRemoteAccess:
		return rdmaverbs.StatusRemAccessErr
	case header.NAKRemoteOp:
		return rdmaverbs.StatusRemOpErr
	}
	return rdmaverbs.StatusBadRespErr
}

// acknowledge handles the acknowledgement of all packets before upto, which
// lies in (una, max]. It stops at a READ whose response is not complete, and
// then reports that a response was lost.
func (r *requester) acknowledge(now instant, upto psn) (lostResponse bool) {
	from := r.una
	n := upto.sub(from)
	for n > 0 {
		w := r.sq.oldest()
		if w.op == rdmaverbs.OpRead {
			lostResponse = true
			break
		}
		left := w.npkts - r.una.sub(w.first)
		if n < left {
			r.una = r.una.add(n)
			break
		}
		r.una = w.end()
		r.sq.done++
		n -= left
	}
	if r.una != from {
		r.progress(now, r.una.sub(from))
	}
	return lostResponse
}

// progress is called after una advanced by n. It resets the retry counters and
// restarts the timers.
func (r *requester) progress(now instant, n int) {
	late := r.nxt.before(r.una)
	if late {
		r.nxt = r.una
	}
	r.win.answered(late)
	r.sq.cur = max(r.sq.cur, r.sq.done)
	r.retries.reset()
	r.gap = false
	r.probe = probe{}
	r.win.acked(n, r.una)
	r.rtt.acknowledged(now, r.una)
	r.timers.stop()
	if r.nxt != r.una {
		r.timers.sent(now, r.probeDelay())
	}
}

// repairLoss sends again from una, because the packet or the response at una
// was lost. It does so once: it ignores further signs of the same loss, and
// signs that arrive before a packet was sent again.
func (r *requester) repairLoss() {
	if r.gap || r.nxt == r.una {
		return
	}
	r.retry(false)
	r.gap = true
}

// probeAnswered handles an answer that acknowledges the probe and no later
// packet: the later packets were lost. It counts no retry. An answer to packets
// that were sent before the probe nearly always acknowledges more than the
// probe.
func (r *requester) probeAnswered() {
	if r.nxt == r.una {
		return
	}
	r.win.onSuspectedLoss(r.max)
	r.rewind()
	r.gap = true
}

// notReady handles an RNR NAK: the peer had no receive request for the packet
// at una. It waits as long as the timer code says.
func (r *requester) notReady(now instant, code uint8) {
	if r.nxt == r.una {
		return // already waiting, or about to send it again
	}
	if !r.retries.takeRNR() {
		r.failAt(r.sq.done, rdmaverbs.StatusRNRRetryExcErr)
		return
	}
	r.rewind()
	r.timers.resumeAt = now.add(header.RNRDelay(code))
}

// readResponse handles a READ response packet with PSN at.
func (r *requester) readResponse(e *endpoint, now instant, at psn, t *header.Transport) {
	w := r.sq.oldest()
	if at != r.una {
		// The response also acknowledges the requests before it that are not
		// READs.
		if r.acknowledge(now, at); r.una != at {
			r.repairLoss()
			return
		}
		w = r.sq.oldest()
	}
	if w.op != rdmaverbs.OpRead {
		e.stats.ghosts++
		return
	}
	// If a READ was sent again from its middle, the answer is a new message:
	// FIRST may stand for MIDDLE, and ONLY for LAST.
	k := at.sub(w.first)
	off := k * e.mtu
	want := min(w.length-off, e.mtu)
	last := k == w.npkts-1
	op := t.BTH.Opcode()
	if len(t.Payload) != want || last != (op == header.ReadRespLast || op == header.ReadRespOnly) {
		r.failAt(r.sq.done, rdmaverbs.StatusBadRespErr)
		return
	}
	if !w.scatter(off, t.Payload) {
		r.failAt(r.sq.done, rdmaverbs.StatusLocProtErr)
		return
	}
	r.una = r.una.add(1)
	if last {
		if r.sq.cur > r.sq.done { // it was sent since the last rewind
			r.reads--
		}
		r.sq.done++
	}
	r.progress(now, 1)
}

// retire completes the requests at the head of the queue that are done and have
// no packet in the batch being sent. If the oldest request that is not done
// cannot succeed, it fails the endpoint.
func (r *requester) retire(e *endpoint) {
	for r.sq.done > 0 {
		w := r.sq.at(0)
		if e.sending && e.sendingFrom.before(w.end()) {
			return
		}
		if w.flags&rdmaverbs.Signaled != 0 {
			e.completeSend(success(w))
		}
		r.sq.pop()
	}
	if r.sq.n == 0 || e.sending || e.state != rdmaverbs.QPSRTS {
		return
	}
	if w := r.sq.at(0); w.bad != rdmaverbs.StatusSuccess {
		e.completeSend(rdmaverbs.WC{ID: w.id, Status: w.bad})
		r.sq.pop()
		e.fail()
	}
}

// success returns the completion of w.
func success(w *wqe) rdmaverbs.WC {
	wc := rdmaverbs.WC{ID: w.id}
	switch w.op {
	case rdmaverbs.OpSend, rdmaverbs.OpSendImm:
		wc.Op = rdmaverbs.WCSend
	case rdmaverbs.OpRead:
		wc.Op = rdmaverbs.WCRead
		wc.Len = w.length
	default:
		wc.Op = rdmaverbs.WCWrite
	}
	return wc
}

// flush completes all requests. Those that are not done get StatusFlushErr.
func (r *requester) flush(e *endpoint) {
	r.retire(e)
	for r.sq.n > 0 {
		e.completeSend(rdmaverbs.WC{ID: r.sq.at(0).id, Status: rdmaverbs.StatusFlushErr})
		r.sq.pop()
	}
}
