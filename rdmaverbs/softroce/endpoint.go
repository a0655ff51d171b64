// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// endpoint is the RC protocol core of one queue pair: a requester with its
// completer, and a responder. It is pure: each method is an event with its
// time, and what the endpoint wants to send is taken from it with fill. Its
// owner calls it from one goroutine at a time.
//
//	From   | Event                                         | To
//	Init   | toRTR                                         | RTR
//	RTR    | toRTS                                         | RTS
//	RTR,RTS| request that the responder must refuse        | Err, after its NAK
//	RTS    | retries exhausted, fatal NAK, bad response    | Err
//	RTS    | work request with bad local memory at its turn| Err
//	any    | toError                                       | Err
//
// (InfiniBand specification, volume 1, sections 10.3.1 and 9.9.) In state
// Err every work request, outstanding or posted later, completes as flushed.
type endpoint struct {
	qpn    uint32
	state  rdmaverbs.QPState
	access rdmaverbs.Access
	pd     *pd
	mrs    *mrTable
	sendCQ *cq
	recvCQ *cq
	dqpn   uint32
	mtu    int // payload bytes a packet
	train  int // packets that fit one datagram of the IP stack, which cuts it into them

	// writeOnly makes each packet of a WRITE a message of its own. All packets
	// are of one length then, so that a train has no odd ones out.
	writeOnly bool

	req requester
	rsp responder
	rq  recvQueue

	// sending is set between fill and sent: the packets of a batch are
	// being read, beginning with requester PSN sendingFrom. Work requests
	// with packets in the batch do not complete before sent.
	sending     bool
	sendingFrom psn

	// What the owner is to do once its lock is dropped.
	wakeSend, wakeRecv bool // call the queue's notify
	fatal              bool // the endpoint entered Err by itself: EventQPFatal
	stats              endpointStats
}

// endpointStats counts what the transport of one queue pair had to repair.
type endpointStats struct {
	retransmits uint64 // packets sent again
	timeouts    uint64 // expirations of the local ACK timer
	probes      uint64 // early retransmissions
	nakSent     uint64
	nakReceived uint64
	rnrSent     uint64
	rnrReceived uint64
	duplicates  uint64 // requests received again
	ghosts      uint64 // responses to nothing outstanding
	outOfOrder  uint64 // requests beyond the expected PSN
}

func (e *endpoint) toRTR(p *rdmaverbs.PathInfo) {
	e.dqpn = p.DQPN
	e.mtu = p.PathMTU.Bytes()
	e.train = min(maxSegs, maxSegBytes/(e.mtu+header.BTHLen+header.RETHLen+header.ICRCLen))
	e.rsp.start(psn(p.RQPSN&psnMask), p.MinRNR, int(p.MaxDestRd))
	e.state = rdmaverbs.QPSRTR
}

func (e *endpoint) toRTS(p *rdmaverbs.PathInfo, limit windowLimit) {
	e.req.start(p, newWindow(limit.forMTU(e.mtu)))
	e.state = rdmaverbs.QPSRTS
}

// toError enters the error state at the owner's wish. Nothing more is sent.
func (e *endpoint) toError() {
	e.state = rdmaverbs.QPSErr
	e.rsp.stop()
	e.flush()
}

// fail enters the error state for a reason of the transport's own. What the
// responder still has to say, such as the NAK that tells the peer why, is
// sent.
func (e *endpoint) fail() {
	if e.state == rdmaverbs.QPSErr {
		return
	}
	e.state = rdmaverbs.QPSErr
	e.fatal = true
	e.flush()
}

// flush completes all work requests as flushed, unless a batch is under way:
// then sent does it.
func (e *endpoint) flush() {
	if e.sending {
		return
	}
	e.req.flush(e)
	for e.rq.n > 0 {
		w := e.rq.pop()
		e.completeRecv(rdmaverbs.WC{ID: w.id, Status: rdmaverbs.StatusFlushErr})
	}
}

// fill adds to b the packets that may be sent now, what the responder was asked
// for first: the peer waits for it. It returns without filling b entirely only if
// there is no more to send. After a fill that added packets, the owner sends
// them and calls sent.
func (e *endpoint) fill(now instant, b *batch) {
	e.sendingFrom = e.req.nxt
	if e.req.again {
		e.sendingFrom = e.req.una
	}
	e.rsp.fill(e, b)
	if e.state == rdmaverbs.QPSRTS {
		e.req.fill(e, now, b)
	}
	e.rsp.fillAck(e, b)
	e.sending = len(b.pkts) > 0
}

// ready reports whether fill would have something to send.
func (e *endpoint) ready() bool {
	return e.rsp.ready() || e.state == rdmaverbs.QPSRTS && e.req.ready(e)
}

// onlyACK reports whether an acknowledgement, for less than most packets, is all
// that fill would have to send.
func (e *endpoint) onlyACK(most int) bool {
	r := &e.rsp
	return e.state == rdmaverbs.QPSRTS && r.ackDue && r.jobN == 0 && r.nak == 0 && r.expect.sub(r.told) < most && !e.req.ready(e)
}

// sent tells that the batch of the last fill was sent and is no longer read.
func (e *endpoint) sent() {
	e.sending = false
	e.settle()
}

// settle completes the work requests that may complete.
func (e *endpoint) settle() {
	e.req.retire(e)
	if e.state == rdmaverbs.QPSErr {
		e.flush()
	}
}

// receive handles a packet from the peer.
func (e *endpoint) receive(now instant, t *header.Transport) {
	switch {
	case t.BTH.Opcode().IsResponse():
		if e.state == rdmaverbs.QPSRTS {
			e.req.response(e, now, t)
			e.settle()
		}
	case e.state == rdmaverbs.QPSRTR || e.state == rdmaverbs.QPSRTS:
		e.rsp.request(e, t)
	}
}

// receiveBad handles a packet from the peer that is whole but no valid
// transport packet: an unknown opcode, or a length that the opcode does not
// allow. Packets of other transport services, such as the congestion
// notifications of RoCE version 2, are none of ours.
func (e *endpoint) receiveBad(bth header.BTH) {
	const serviceBits = 0xe0
	if e.state != rdmaverbs.QPSRTR && e.state != rdmaverbs.QPSRTS ||
		bth.Opcode()&serviceBits != 0 || bth.Opcode().IsResponse() {
		return
	}
	if psn(bth.PSN()) == e.rsp.expect {
		e.rsp.refuse(e, header.NAKInvalid)
	}
}

// deadline is when expire wants to be called next, or never.
func (e *endpoint) deadline() instant {
	if e.state != rdmaverbs.QPSRTS {
		return never
	}
	return e.req.deadline()
}

// expire handles the deadlines that have passed.
func (e *endpoint) expire(now instant) {
	if e.state != rdmaverbs.QPSRTS {
		return
	}
	e.req.expire(e, now)
	e.settle()
}

func (e *endpoint) completeSend(wc rdmaverbs.WC) {
	wc.QPN = e.qpn
	wake, overrun := e.sendCQ.push(wc)
	e.wakeSend = e.wakeSend || wake
	if overrun {
		e.overrun()
	}
}

func (e *endpoint) completeRecv(wc rdmaverbs.WC) {
	wc.QPN = e.qpn
	wake, overrun := e.recvCQ.push(wc)
	e.wakeRecv = e.wakeRecv || wake
	if overrun {
		e.overrun()
	}
}

// overrun stops the queue pair that overran its completion queue. The work
// requests left are flushed by the next settle.
func (e *endpoint) overrun() {
	if e.state != rdmaverbs.QPSErr {
		e.state = rdmaverbs.QPSErr
		e.fatal = true
	}
}

// windowLimit bounds the packets that a requester has outstanding.
type windowLimit struct{ packets, bytes int }

func (l windowLimit) forMTU(mtu int) int { return max(min(l.packets, l.bytes/mtu), windowMin) }

// piece is local memory of a work request: n bytes at offset off of mr.
type piece struct {
	mr     *mr
	off, n int
}

// recvQueue is a ring of receive work requests.
type recvQueue struct {
	ring    []recvWQE
	head, n int
}

type recvWQE struct {
	id   uint64
	sg   piece
	more piece // what does not fit sg
	bad  bool  // they are no memory the queue pair may write
}

// put stores b at offset at of the message; it fits. False means that the
// memory is gone.
func (w *recvWQE) put(at int, b []byte) bool {
	if at < w.sg.n {
		n := min(len(b), w.sg.n-at)
		if !w.sg.put(at, b[:n]) {
			return false
		}
		at, b = at+n, b[n:]
	}
	return len(b) == 0 || w.more.put(at-w.sg.n, b)
}

func (p *piece) put(at int, b []byte) bool {
	if !p.mr.acquire() {
		return false
	}
	copy(p.mr.buf[p.off+at:], b)
	p.mr.release()
	return true
}

func (q *recvQueue) push(w recvWQE) {
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i] = w
	q.n++
}

func (q *recvQueue) pop() recvWQE {
	w := q.ring[q.head]
	q.ring[q.head] = recvWQE{}
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
	return w
}
