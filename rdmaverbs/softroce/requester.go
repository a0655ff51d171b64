// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"time"

	"smcr/rdmaverbs"
)

// requester sends requests. completer.go has its half that handles the answers.
// PSNs, in order:
//
//	una     the oldest that is not acknowledged
//	nxt     the next to send; it goes back to una when packets were lost
//	max     the one after the highest that was sent
//	sq.end  the first PSN of the next work request
type requester struct {
	sq            sendQueue
	una, nxt, max psn

	win         window
	rtt         roundTrip
	maxReads    int
	reads       int // READs in [una, nxt)
	sinceAckReq int // packets since the last one with the AckReq bit

	retries retryCounters
	timers  requestTimers
	probe   probe
	gap     bool // the packets from una on are being sent again
}

func (r *requester) start(p *rdmaverbs.PathInfo, w window) {
	at := psn(p.SQPSN & psnMask)
	r.una, r.nxt, r.max, r.sq.end = at, at, at, at
	r.win = w
	r.rtt = newRoundTrip()
	r.maxReads = int(p.MaxRdAtom)
	r.retries = newRetryCounters(p.RetryCnt, p.RNRRetry)
	r.timers = newRequestTimers(ackTimeout(p.Timeout))
}

// outstanding returns the PSNs sent and not acknowledged.
func (r *requester) outstanding() int { return r.nxt.sub(r.una) }

// ready reports whether fill would add a packet.
func (r *requester) ready(e *endpoint) bool {
	return r.probe.due || r.more()
}

// more reports whether there is something to send at nxt.
func (r *requester) more() bool {
	if r.sq.cur >= r.sq.n || r.timers.resumeAt != never {
		return false
	}
	w := r.sq.at(r.sq.cur)
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
	if r.probe.due && !b.full() {
		r.sendProbe(e, b)
	}
	b.wholeTrains(e.train)
	for !b.full() && r.more() {
		w, before := r.sq.at(r.sq.cur), len(b.pkts)
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
		r.timers.sent(now, r.probeDelay())
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
		r.sq.cur++
	}
	return true
}

// emitRead adds the request for the responses of w that have not arrived.
func (r *requester) emitRead(e *endpoint, w *wqe, b *batch) bool {
	w.emitRead(e, b, r.nxt)
	r.nxt = w.end()
	r.reads++
	r.sinceAckReq = 0
	r.sq.cur++
	return true
}

// sendProbe adds the packet at una once more, with the AckReq bit. Nothing else
// is sent again before the answer, because the peer may only be late.
func (r *requester) sendProbe(e *endpoint, b *batch) {
	r.probe.due = false
	w := r.sq.oldest()
	if w.bad != rdmaverbs.StatusSuccess {
		return
	}
	if w.op == rdmaverbs.OpRead {
		w.emitRead(e, b, r.una)
	} else if !w.emit(e, b, r.una, true) {
		w.bad = rdmaverbs.StatusLocProtErr
		return
	}
	r.probe.sent, r.probe.psn = true, r.una
	if r.rtt.psn == r.una {
		r.rtt.cancel() // the answer may be to the first or the second transmission
	}
	e.stats.retransmits++
}

// probeDelay returns how long to wait for an answer before the next probe.
func (r *requester) probeDelay() time.Duration { return r.probe.delay(r.rtt.probeDelay()) }

// deadline returns the time of the earliest timer, or never.
func (r *requester) deadline() instant { return r.timers.deadline() }

// expire handles the timers that are due at now.
func (r *requester) expire(e *endpoint, now instant) {
	t := &r.timers
	if t.resumeAt <= now {
		t.resumeAt = never
	}
	if t.ackAt <= now {
		e.stats.timeouts++
		r.gap = false
		r.retry(true)
		return
	}
	if t.probeAt <= now {
		e.stats.probes++
		r.gap = false
		r.probe.doublings++
		r.probe.due = r.nxt != r.una
		t.armProbe(now, r.probeDelay())
	}
}

// retry sends all packets from una on again, or fails the oldest request if no
// retry is left. timedOut says that no answer at all came from the peer.
func (r *requester) retry(timedOut bool) {
	if !r.retries.take() {
		r.failAt(r.sq.done, rdmaverbs.StatusRetryExcErr)
		return
	}
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
	r.sq.cur = r.sq.done
	r.reads = 0
	r.sinceAckReq = 0
	r.rtt.cancel()
	r.timers.stopACK()
	r.probe.cancel()
}

// failAt sets the status with which the request at index i fails. retire fails
// it when all before it are complete.
func (r *requester) failAt(i int, status rdmaverbs.WCStatus) {
	if i < r.sq.n {
		r.sq.at(i).bad = status
		r.sq.cur = min(r.sq.cur, i)
		r.timers.stop()
		r.probe.cancel()
	}
}
