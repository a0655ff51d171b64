// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"time"

	"smcr/rdmaverbs"
)

// An adapter acknowledges what it has received before the host sees it. If it
// fails in between, the sender believes that the message was delivered, and it
// was not: that is what failover validation is for (RFC 7609, section 4.6.1).

// held is a message that an adapter has acknowledged and keeps.
type held struct {
	at   time.Time // when the host sees it
	wc   rdmaverbs.WC
	undo []undo // the writes before it
}

// undo is memory as it was before a write.
type undo struct {
	mr         *mr
	to, before []byte
}

// deliver announces a message to the host, at once or when Config.Hold has
// passed. mu is held.
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

// written takes note of a write, in case it comes to nothing.
func (q *qp) written(rkey uint32, to, before []byte) {
	if q.w.cfg.Hold > 0 {
		q.undo = append(q.undo, undo{q.w.mrs[rkey], to, before})
	}
}

// release announces what is due.
func (q *qp) release(now time.Time) {
	for len(q.held) > 0 && !q.held[0].at.After(now) {
		q.rcq.push(q.held[0].wc)
		q.held = q.held[1:]
	}
}

// releaseAll announces everything: the queue pair ends, its adapter does not.
func (q *qp) releaseAll() {
	for _, h := range q.held {
		q.rcq.push(h.wc)
	}
	q.held, q.undo = nil, nil
}

// forget loses what the adapter keeps.
func (q *qp) forget() {
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
