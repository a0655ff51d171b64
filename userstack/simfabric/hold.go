// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"time"

	"smcr/rdmaverbs"
)

// An adapter acknowledges what it has received before the host processes it. If the
// adapter fails in between, the sender believes that the message was delivered, although
// it was not. Failover validation finds such messages (RFC 7609, section 4.6.1).

// held is a message that an adapter has acknowledged and not passed to the host.
type held struct {
	at   time.Time // when the host gets it
	wc   rdmaverbs.WC
	undo []undo // the writes before the message
}

// undo is the content of memory before a write.
type undo struct {
	mr         *mr
	to, before []byte
}

// deliver passes a message to the host, at once or after a time of at most Config.Hold.
// mu is held.
func (q *qp) deliver(wc rdmaverbs.WC) {
	if q.w.cfg.Hold <= 0 {
		q.rcq.push(wc)
		return
	}
	at := time.Now().Add(time.Duration(1 + q.rng.Int64N(int64(q.w.cfg.Hold))))
	if n := len(q.held); n > 0 {
		at = maxTime(at, q.held[n-1].at)
	}
	q.held = append(q.held, held{at, wc, q.undo})
	q.undo = nil
	q.w.at(at, q.release)
}

// recordWrite records the memory before a write, in case loseHeld has to undo the write.
func (q *qp) recordWrite(rkey uint32, to, before []byte) {
	if q.w.cfg.Hold > 0 {
		q.undo = append(q.undo, undo{q.w.mrs[rkey], to, before})
	}
}

// release passes the messages that are due to the host.
func (q *qp) release(now time.Time) {
	for len(q.held) > 0 && !q.held[0].at.After(now) {
		q.rcq.push(q.held[0].wc)
		q.held = q.held[1:]
	}
}

// releaseAll passes all messages to the host: the queue pair ends, but its adapter works.
func (q *qp) releaseAll() {
	for _, h := range q.held {
		q.rcq.push(h.wc)
	}
	q.held, q.undo = nil, nil
}

// loseHeld drops the messages that the adapter holds, and undoes their writes.
func (q *qp) loseHeld() {
	back := func(us []undo) {
		for i := len(us) - 1; i >= 0; i-- {
			if !us[i].mr.closed {
				copy(us[i].to, us[i].before)
			}
		}
	}
	back(q.undo)
	for i := len(q.held) - 1; i >= 0; i-- {
		q.w.observe(&Event{Kind: EventChange, From: q.where(), Note: "loses a message that it has acknowledged"})
		back(q.held[i].undo)
	}
	for _, h := range q.held {
		q.rcq.push(rdmaverbs.WC{ID: h.wc.ID, Status: rdmaverbs.StatusFlushErr, QPN: q.qpn})
	}
	q.held, q.undo = nil, nil
}
