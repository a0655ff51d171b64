// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"

	"smcr/guard"
	"smcr/rdmaverbs"
)

// pump sends the packets of the endpoint, up to limit batches, or all if limit
// is negative. It is called with q.mu held and releases it. If another
// goroutine is sending for q, that goroutine also sends these packets. more
// reports whether packets remain.
func (q *qp) pump(limit int) (more bool) {
	for ; ; limit-- {
		var b *batch
		if !q.guarded(func() { b, more = q.nextBatch(limit != 0, &b) }) {
			if b != nil {
				b.free()
			}
			return false
		}
		if b == nil {
			q.unlock()
			return more
		}
		q.mu.Unlock()
		err := q.send(b.pkts)
		b.free()
		q.mu.Lock()
		ok := q.guarded(q.sent)
		q.idle.Broadcast()
		switch {
		case !ok:
			return false
		case err != nil:
			q.sendFailed(err)
			return false
		}
		if q.ep.wakeSend || q.ep.wakeRecv {
			q.unlock()
			q.mu.Lock()
		}
	}
}

// nextBatch returns the packets that q may send now, or nil if there are none, or if want is
// false. more reports whether there are packets. If nextBatch panics, *filling is the batch
// that it was filling, or nil. q.mu is held.
func (q *qp) nextBatch(want bool, filling **batch) (b *batch, more bool) {
	e := &q.ep
	e.completeReady()
	for !e.sending && e.ready() {
		if !want {
			return nil, true
		}
		b = batches.Get().(*batch)
		*filling = b
		e.fill(q.dev.now(), b)
		if len(b.pkts) > 0 {
			return b, true
		}
		b.free()
		*filling = nil
		e.completeReady()
	}
	return nil, false
}

func (q *qp) sent() { q.ep.sent() }

// sendFailed handles the error of send. q.mu is held, and sendFailed releases it.
func (q *qp) sendFailed(err error) {
	if errors.As(err, new(*guard.Error)) {
		q.fault()
		return
	}
	q.unlock()
	q.dev.wireFailed(err)
}

// unlock releases q.mu. Then it does what the endpoint asked for: set a timer,
// call notify functions, report an event.
func (q *qp) unlock() {
	e := &q.ep
	wakeSend, wakeRecv, fatal := e.wakeSend, e.wakeRecv, e.fatal
	e.wakeSend, e.wakeRecv, e.fatal = false, false, false
	at := e.deadline()
	arm := at < q.wakeAt
	if arm {
		q.wakeAt = at
	}
	q.mu.Unlock()

	if arm {
		q.dev.timers.set(q, at)
	}
	if wakeRecv && e.recvCQ.notify != nil {
		q.dev.guarded("the report of a completion", e.recvCQ.notify)
	}
	if wakeSend && e.sendCQ.notify != nil && !(wakeRecv && e.sendCQ == e.recvCQ) {
		q.dev.guarded("the report of a completion", e.sendCQ.notify)
	}
	if fatal {
		q.dev.events.report(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventQPFatal, Port: 1, QPN: e.qpn})
	}
}

// expire is called by the timers.
func (q *qp) expire() {
	if q.closeNotice != nil {
		q.sendCloseNotice()
		return
	}
	for more := true; more; {
		q.mu.Lock()
		q.wakeAt = never
		if !q.guarded(func() { q.ep.expire(q.dev.now()) }) {
			return
		}
		more = q.pump(1)
	}
}
