// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// endpoint is the RC protocol core of one queue pair: a requester with its
// completer, and a responder. It does no I/O: each method is an event with its
// time, and fill returns the packets to send. Its owner calls it from one
// goroutine at a time.
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
	train  int // packets of a train: as many as one message to the kernel may have, see segments

	// writeOnly sends each packet of a WRITE as a separate message. All full
	// packets then have the same length, so a train takes all of them.
	writeOnly bool

	req requester
	rsp responder
	rq  recvQueue

	// sending is set between fill and sent: the packets of a batch are
	// being read, beginning with requester PSN sendingFrom. Work requests
	// with packets in the batch do not complete before sent.
	sending     bool
	sendingFrom psn

	// What the owner must do after it released its lock.
	wakeSend, wakeRecv bool // call notify of the queue
	fatal              bool // the endpoint itself entered Err: report EventQPFatal
	stats              endpointStats
}

// endpointStats has the counters of one queue pair.
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
	wrongPSN    uint64 // requests before all that the peer may send again
	wrongKey    uint64 // requests for memory that the peer must not access
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

// toError enters the error state because the owner asked for it. The endpoint
// sends nothing more.
func (e *endpoint) toError() {
	e.state = rdmaverbs.QPSErr
	e.rsp.stop()
	e.flush()
}

// fail enters the error state because of an error of the transport. The answers
// of the responder that are due are still sent, such as the NAK that tells the
// peer the reason.
func (e *endpoint) fail() {
	if e.state == rdmaverbs.QPSErr {
		return
	}
	e.state = rdmaverbs.QPSErr
	e.fatal = true
	e.flush()
}

// flush completes all work requests as flushed. If a batch is being sent, it
// does nothing: sent flushes then.
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

// fill adds to b the packets that may be sent now. Answers of the responder are
// first, because the peer waits for them. If b is not full afterwards, there is
// no more to send. If fill added packets, the owner sends them and then calls
// sent.
func (e *endpoint) fill(now instant, b *batch) {
	e.sendingFrom = e.req.nxt
	if e.req.probe.due {
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

// onlyACK reports whether fill would only send an acknowledgement, and for
// fewer than most packets.
func (e *endpoint) onlyACK(most int) bool {
	r := &e.rsp
	return e.state == rdmaverbs.QPSRTS && r.ackDue && r.jobN == 0 && r.nak == 0 && r.expect.sub(r.acked) < most && !e.req.ready(e)
}

// sent is called when the batch of the last fill was sent and nothing reads it
// any more.
func (e *endpoint) sent() {
	e.sending = false
	e.completeReady()
}

// completeReady completes the work requests that may complete now.
func (e *endpoint) completeReady() {
	e.req.retire(e)
	if e.state == rdmaverbs.QPSErr {
		e.flush()
	}
}

// receive handles a packet that is to be from the peer. It reports whether the PSN
// proves it: a request has the expected PSN, or a response answers a packet that is
// outstanding.
func (e *endpoint) receive(now instant, t *header.Transport) (proved bool) {
	switch {
	case t.BTH.Opcode().IsResponse():
		if e.state == rdmaverbs.QPSRTS {
			proved = e.req.response(e, now, t)
			e.completeReady()
		}
	case e.state == rdmaverbs.QPSRTR || e.state == rdmaverbs.QPSRTS:
		proved = e.rsp.request(e, t)
	}
	return proved
}

// receiveBad handles a complete packet from the peer that is not a valid
// transport packet: its opcode is unknown, or its length is not allowed for the
// opcode. It ignores packets of other transport services, such as the
// congestion notifications of RoCE version 2.
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

// deadline returns the time at which expire must be called next, or never.
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
	e.completeReady()
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

// overrun puts the queue pair into the error state because it overran its
// completion queue. The next completeReady flushes the remaining work requests.
func (e *endpoint) overrun() {
	if e.state != rdmaverbs.QPSErr {
		e.state = rdmaverbs.QPSErr
		e.fatal = true
	}
}

// windowLimit is the largest number of packets, and of payload bytes, that a
// requester has outstanding.
type windowLimit struct{ packets, bytes int }

func (l windowLimit) forMTU(mtu int) int { return max(min(l.packets, l.bytes/mtu), windowMin) }

// piece is one part of the local memory of a work request: n bytes at offset
// off of mr.
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
	more piece // for the bytes that do not fit into sg
	bad  bool  // the queue pair must not write to this memory
}

// put stores b at offset at of the message. b fits. It reports whether the
// memory region is still open.
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
