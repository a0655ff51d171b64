// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"fmt"
	"math/rand/v2"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// qp is a queue pair. Its state is guarded by World.mu.
type qp struct {
	n      *netdev // below its port
	gid    smc.GID // its source address
	w      *World
	dev    *Device
	pd     *pd
	init   rdmaverbs.QPInit
	scq    *cq
	rcq    *cq
	qpn    uint32
	state  rdmaverbs.QPState
	rtr    rdmaverbs.PathInfo // as given to ToRTR
	rts    rdmaverbs.PathInfo // as given to ToRTS
	closed bool

	rng *rand.Rand
	rq  []recvWQE
	sq  []*sendWQE
	// sent is the number of requests at the head of sq that the peer has executed or
	// refused. Their answers are on the way.
	sent int
	// unsent is the number of requests at the tail of sq that are sent at the end of the
	// round of the device's loop.
	unsent     int
	held       []held // acknowledged but not yet delivered to the host
	undo       []undo // writes since the last message
	lastArrive time.Time
	lastAck    time.Time
	sendArmed  bool // an event for the first request not sent is scheduled
	ackArmed   bool // an event for the first answer is scheduled
}

// sendWQE is a send work request that was posted.
type sendWQE struct {
	wr     rdmaverbs.SendWR
	inline []byte
	length int
	posted time.Time
	at     time.Time // when it arrives at the peer
	ackAt  time.Time // when the answer arrives
	status rdmaverbs.WCStatus
	tries  int  // how often it was repeated without an answer
	rnrs   int  // how often it was repeated because there was no receive request
	again  bool // the answer was lost: only a peer that works can repeat it
}

type recvWQE struct {
	id       uint64
	sg, more rdmaverbs.SGE
	bad      bool
}

// put stores a message.
func (r *recvWQE) put(b []byte) {
	for _, g := range []rdmaverbs.SGE{r.sg, r.more} {
		if g.Len > 0 {
			b = b[copy(g.MR.(*mr).buf[g.Off:g.Off+g.Len], b):]
		}
	}
}

// gone reports whether memory of the request is not registered any more.
func (r *recvWQE) gone() bool {
	for _, g := range []rdmaverbs.SGE{r.sg, r.more} {
		if m, _ := g.MR.(*mr); m != nil && m.closed {
			return true
		}
	}
	return false
}

// CreateQP implements rdmaverbs.PD.
func (p *pd) CreateQP(init rdmaverbs.QPInit) (rdmaverbs.QP, error) {
	scq, ok1 := init.SendCQ.(*cq)
	rcq, ok2 := init.RecvCQ.(*cq)
	bad := func(what string) (rdmaverbs.QP, error) {
		return nil, fmt.Errorf("simfabric: create queue pair: %s: %w", what, rdmaverbs.ErrInvalid)
	}
	n, err := p.dev.port(init.Port)
	switch {
	case !ok1 || !ok2 || scq.dev != p.dev || rcq.dev != p.dev:
		return bad("completion queue of another device")
	case err != nil:
		return bad("no such port")
	case init.SGIDIndex < 0 || init.SGIDIndex >= len(n.gids):
		return bad("no such GID index")
	case init.MaxSend < 0 || init.MaxSend > maxQPWR || init.MaxRecv < 0 || init.MaxRecv > maxQPWR:
		return bad("queue size")
	}
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := p.dev.usable(); err != nil {
		return nil, err
	}
	if p.closed || scq.closed || rcq.closed {
		return nil, fmt.Errorf("simfabric: create queue pair: %w", rdmaverbs.ErrClosed)
	}
	q := &qp{w: w, n: n, gid: n.gids[init.SGIDIndex].GID, dev: p.dev, pd: p, init: init, scq: scq, rcq: rcq, state: rdmaverbs.QPSInit}
	for q.qpn < 16 || w.qps[q.qpn] != nil {
		q.qpn = n.rng.Uint32N(1<<24 - 1)
	}
	w.qps[q.qpn] = q
	q.rng = w.random(atQP, q.qpn)
	w.count.QPs++
	p.users++
	scq.qps++
	rcq.qps++
	return q, nil
}

// QPN implements rdmaverbs.QP.
func (q *qp) QPN() uint32 { return q.qpn }

// State implements rdmaverbs.QP.
func (q *qp) State() rdmaverbs.QPState {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	return q.state
}

func (q *qp) checkPath(p *rdmaverbs.PathInfo) error {
	switch {
	case p.DGID.IsZero(), p.DQPN < 2, p.DQPN >= 1<<24, p.RQPSN >= 1<<24, p.SQPSN >= 1<<24, p.PathMTU.Bytes() == 0,
		p.RetryCnt > 7, p.RNRRetry > 7, p.MinRNR > 31, p.Timeout > 31, p.MaxDestRd > maxReads, len(p.DMAC) != 0 && len(p.DMAC) != 6:
		return fmt.Errorf("simfabric: queue pair %d: path %+v: %w", q.qpn, *p, rdmaverbs.ErrInvalid)
	case p.PathMTU > q.n.MTU:
		return fmt.Errorf("simfabric: queue pair %d: path MTU of %d bytes, at most %d: %w", q.qpn, p.PathMTU.Bytes(), q.n.MTU.Bytes(), rdmaverbs.ErrInvalid)
	}
	return nil
}

func (q *qp) checkState(want rdmaverbs.QPState) error {
	if q.closed {
		return fmt.Errorf("simfabric: queue pair %d: %w", q.qpn, rdmaverbs.ErrClosed)
	}
	if q.state != want {
		return fmt.Errorf("simfabric: queue pair %d is in state %d: %w", q.qpn, q.state, rdmaverbs.ErrBadState)
	}
	return nil
}

// ToRTR implements rdmaverbs.QP.
func (q *qp) ToRTR(p rdmaverbs.PathInfo) error {
	q.w.mu.Lock()
	defer q.w.unlock()
	if err := q.checkPath(&p); err != nil {
		return err
	}
	if err := q.checkState(rdmaverbs.QPSInit); err != nil {
		return err
	}
	q.rtr, q.state = p, rdmaverbs.QPSRTR
	return nil
}

// ToRTS implements rdmaverbs.QP.
func (q *qp) ToRTS(p rdmaverbs.PathInfo) error {
	q.w.mu.Lock()
	defer q.w.unlock()
	if err := q.checkPath(&p); err != nil {
		return err
	}
	if err := q.checkState(rdmaverbs.QPSRTR); err != nil {
		return err
	}
	q.rts, q.state = p, rdmaverbs.QPSRTS
	return nil
}

// ToError implements rdmaverbs.QP.
func (q *qp) ToError() error {
	q.w.mu.Lock()
	defer q.w.unlock()
	if q.closed {
		return fmt.Errorf("simfabric: queue pair %d: %w", q.qpn, rdmaverbs.ErrClosed)
	}
	q.toError()
	return nil
}

// toError flushes all requests. mu is held.
func (q *qp) toError() {
	q.releaseAll()
	q.state = rdmaverbs.QPSErr
	for _, w := range q.sq {
		q.scq.push(rdmaverbs.WC{ID: w.wr.ID, Status: rdmaverbs.StatusFlushErr, QPN: q.qpn})
	}
	for _, r := range q.rq {
		q.rcq.push(rdmaverbs.WC{ID: r.id, Status: rdmaverbs.StatusFlushErr, QPN: q.qpn})
	}
	q.sq, q.rq, q.sent, q.unsent = nil, nil, 0, 0
}

// fail calls toError when the queue pair fails without a call of its user, and reports
// the reason to the observer. mu is held.
func (q *qp) fail(reason string) {
	if q.state == rdmaverbs.QPSErr {
		return
	}
	q.w.observe(&Event{Kind: EventFailed, From: q.where(), Note: reason})
	q.toError()
	q.dev.event(rdmaverbs.AsyncEvent{Type: rdmaverbs.EventQPFatal, QPN: q.qpn})
}

// Close implements rdmaverbs.QP. Before it returns, it calls the notify functions for the
// requests that it flushes.
func (q *qp) Close() error {
	q.w.mu.Lock()
	defer q.w.unlock()
	if q.closed {
		return fmt.Errorf("simfabric: queue pair %d: %w", q.qpn, rdmaverbs.ErrClosed)
	}
	q.toError()
	q.closed = true
	delete(q.w.qps, q.qpn)
	q.w.count.QPs--
	q.pd.users--
	q.scq.qps--
	q.rcq.qps--
	return nil
}

// PostRecv implements rdmaverbs.QP.
func (q *qp) PostRecv(wrs ...rdmaverbs.RecvWR) (int, error) {
	q.w.mu.Lock()
	defer q.w.unlock()
	if q.closed {
		return 0, fmt.Errorf("simfabric: queue pair %d: %w", q.qpn, rdmaverbs.ErrClosed)
	}
	for i := range wrs {
		wr := &wrs[i]
		if q.state == rdmaverbs.QPSErr {
			q.rcq.push(rdmaverbs.WC{ID: wr.ID, Status: rdmaverbs.StatusFlushErr, QPN: q.qpn})
			continue
		}
		if len(q.rq) >= q.init.MaxRecv {
			return i, fmt.Errorf("simfabric: queue pair %d: receive queue: %w", q.qpn, rdmaverbs.ErrQueueFull)
		}
		ok, err := q.checkSGE(&wr.SG, rdmaverbs.AccessLocalWrite)
		if err != nil {
			return i, err
		}
		ok2, err := q.checkSGE(&wr.More, rdmaverbs.AccessLocalWrite)
		if err != nil {
			return i, err
		}
		q.rq = append(q.rq, recvWQE{id: wr.ID, sg: wr.SG, more: wr.More, bad: !ok || !ok2})
	}
	return len(wrs), nil
}

// PostSend implements rdmaverbs.QP.
func (q *qp) PostSend(wrs ...rdmaverbs.SendWR) (int, error) {
	q.w.mu.Lock()
	defer q.w.unlock()
	if q.closed {
		return 0, fmt.Errorf("simfabric: queue pair %d: %w", q.qpn, rdmaverbs.ErrClosed)
	}
	if q.state != rdmaverbs.QPSRTS && q.state != rdmaverbs.QPSErr {
		return 0, fmt.Errorf("simfabric: queue pair %d is not ready to send (state %d): %w", q.qpn, q.state, rdmaverbs.ErrBadState)
	}
	now := time.Now()
	for i := range wrs {
		if q.state == rdmaverbs.QPSErr {
			q.scq.push(rdmaverbs.WC{ID: wrs[i].ID, Status: rdmaverbs.StatusFlushErr, QPN: q.qpn})
			continue
		}
		if err := q.postSend(now, &wrs[i]); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *qp) postSend(now time.Time, wr *rdmaverbs.SendWR) error {
	if len(q.sq) >= q.init.MaxSend {
		return fmt.Errorf("simfabric: queue pair %d: send queue: %w", q.qpn, rdmaverbs.ErrQueueFull)
	}
	inline := wr.Flags&rdmaverbs.Inline != 0
	if wr.Op < rdmaverbs.OpSend || wr.Op > rdmaverbs.OpRead || inline && (wr.Op == rdmaverbs.OpRead || len(wr.InlineData) > maxInline) {
		return fmt.Errorf("simfabric: queue pair %d: operation %d with %d bytes inline: %w", q.qpn, wr.Op, len(wr.InlineData), rdmaverbs.ErrInvalid)
	}
	w := &sendWQE{wr: *wr, posted: now}
	w.wr.InlineData = nil
	if inline {
		w.inline = append([]byte(nil), wr.InlineData...)
		w.length = len(w.inline)
	} else {
		need := rdmaverbs.Access(0)
		if wr.Op == rdmaverbs.OpRead {
			need = rdmaverbs.AccessLocalWrite
		}
		for i := range w.wr.SG {
			ok, err := q.checkSGE(&w.wr.SG[i], need)
			if err != nil {
				return err
			}
			if !ok {
				w.status = rdmaverbs.StatusLocProtErr
			}
			w.length += w.wr.SG[i].Len
		}
	}
	switch {
	case w.length > maxMsg:
		w.status = rdmaverbs.StatusLocLenErr
	case wr.Op == rdmaverbs.OpRead && q.rts.MaxRdAtom == 0:
		w.status = rdmaverbs.StatusLocQPOpErr
	}
	q.sq = append(q.sq, w)
	if q.unsent++; q.dev.loop == nil {
		q.transmit(now)
	} else if q.unsent == 1 {
		q.dev.loop.out = append(q.dev.loop.out, q)
		q.dev.loop.send.Schedule()
	}
	return nil
}

// transmit sends what was posted. mu is held.
func (q *qp) transmit(now time.Time) {
	for _, w := range q.sq[len(q.sq)-q.unsent:] {
		q.lastArrive = q.w.arrival(q.rng, now, q.lastArrive)
		w.at = q.lastArrive
	}
	q.unsent = 0
	q.arm()
}

// checkSGE checks local memory. An error means that the request is invalid, false that it
// will fail when it is executed.
func (q *qp) checkSGE(g *rdmaverbs.SGE, need rdmaverbs.Access) (bool, error) {
	if g.Len == 0 {
		return true, nil
	}
	m, ok := g.MR.(*mr)
	if !ok || g.Len < 0 || g.Off < 0 {
		return false, fmt.Errorf("simfabric: queue pair %d: %d bytes at offset %d of memory region %v: %w", q.qpn, g.Len, g.Off, g.MR, rdmaverbs.ErrInvalid)
	}
	return m.pd == q.pd && m.access&need == need && g.Off <= len(m.buf) && g.Len <= len(m.buf)-g.Off, nil
}
