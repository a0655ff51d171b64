// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// responder executes the peer's requests in order and answers them
// (InfiniBand specification, volume 1, sections 9.7.4 to 9.7.5, 9.9.3):
//
//	Request                    | Answer
//	PSN as expected            | executed; ACK if asked for
//	    no receive request       | RNR NAK; then no answer until it is sent again
//	  breaks a rule            | NAK, then the error state
//	PSN beyond it              | NAK sequence error, once for each gap
//	PSN before it, READ        | executed again
//	PSN before it, other       | ACK of all executed requests
//	PSN before all that the    | none: the packet is not from the peer,
//	  peer may send again      |   see [history]
//
// An ACK is not sent at once. The next fill sends it after the READ responses
// before it, so a batch of requests gets one ACK.
type responder struct {
	expect psn // next PSN
	past   history
	msn    uint32
	minRNR uint8

	// The message under way: msgNone between messages.
	kind      msgKind
	mr        *mr    // WRITE: where it goes
	raddr     uint64 // WRITE: address of the next byte
	remaining int    // WRITE: bytes to come
	got       int    // bytes received so far

	awaitsRetry bool // a NAK was sent for expect: send no other until that packet arrives
	ackDue      bool
	acked       psn             // all PSNs before it were acknowledged
	nak         header.Syndrome // NAK to send for PSN nakPSN; 0 if none
	nakPSN      psn

	jobs    []readJob // ring of READs to answer
	jobHead int
	jobN    int
	jobMax  int // largest number that are not duplicates
}

type msgKind uint8

const (
	msgNone msgKind = iota
	msgSend
	msgWrite
)

// readJob is a READ response being sent.
type readJob struct {
	at    psn
	msn   uint32
	mr    *mr // nil for no bytes
	raddr uint64
	left  int // bytes
	first bool
	dup   bool // answers a duplicate request
}

func (r *responder) start(expect psn, minRNR uint8, reads int) {
	r.expect, r.acked, r.minRNR = expect, expect, minRNR
	r.past = history{}
	r.jobMax = reads
	// Duplicates may arrive while the answers to the originals wait.
	r.jobs = make([]readJob, 2*reads)
}

// stop discards the answers that are due.
func (r *responder) stop() {
	r.jobN, r.ackDue, r.nak = 0, false, 0
}

func (r *responder) ready() bool { return r.jobN > 0 || r.nak != 0 || r.ackDue }

// request handles a request packet from the peer. It reports whether the packet has
// the expected PSN.
func (r *responder) request(e *endpoint, t *header.Transport) bool {
	at := psn(t.BTH.PSN())
	switch d := at.sub(r.expect); {
	case d > 0:
		e.stats.outOfOrder++
		if !r.awaitsRetry {
			r.awaitsRetry = true
			r.nak, r.nakPSN = header.NAKSequence, r.expect
			e.stats.nakSent++
		}
	case d == 0:
		r.execute(e, t)
		return true
	case r.past.has(-d):
		e.stats.duplicates++
		r.duplicate(e, at, t)
	default:
		e.stats.wrongPSN++
	}
	return false
}

// duplicate answers a request that was already executed.
func (r *responder) duplicate(e *endpoint, at psn, t *header.Transport) {
	if t.BTH.Opcode() != header.ReadRequest {
		r.ackDue = true
		return
	}
	n := int(t.RETH.DMALen())
	if n > maxMsg || r.jobN == len(r.jobs) || packets(n, e.mtu) > r.expect.sub(at) {
		return
	}
	// The memory region may have been closed since. A requester that still
	// waits for the answer then fails after its retries.
	m, ok := e.remote(t.RETH, n, rdmaverbs.AccessRemoteRead)
	if !ok || e.access&rdmaverbs.AccessRemoteRead == 0 {
		return
	}
	r.pushJob(readJob{at: at, msn: r.msn, mr: m, raddr: t.RETH.VA(), left: n, first: true, dup: true})
}

// execute handles the request packet with the expected PSN.
func (r *responder) execute(e *endpoint, t *header.Transport) {
	if r.nak != 0 { // not sent yet, and not valid any more
		r.nak, r.ackDue = 0, true
	}
	r.awaitsRetry = false
	op := t.BTH.Opcode()
	first, last := isFirst(op), isLast(op)
	kind := kindOf(op)

	// Order of opcodes within a message, and lengths (section 9.7.4.1).
	inMessage := r.kind != msgNone
	if inMessage == first || inMessage && kind != r.kind {
		r.refuse(e, header.NAKInvalid)
		return
	}
	if kind == msgNone {
		r.read(e, t)
		return
	}
	n := len(t.Payload)
	if !last && n != e.mtu || n > e.mtu || last && !first && n == 0 {
		r.refuse(e, header.NAKInvalid)
		return
	}
	if kind == msgSend {
		r.send(e, t, first, last)
	} else {
		r.write(e, t, first, last)
	}
}

// send executes a SEND packet.
func (r *responder) send(e *endpoint, t *header.Transport, first, last bool) {
	if e.rq.n == 0 {
		r.notReady(e)
		return
	}
	if first {
		r.kind, r.got = msgSend, 0
	}
	w := &e.rq.ring[e.rq.head]
	if n := len(t.Payload); n > 0 {
		if w.bad {
			r.refuseRecv(e, header.NAKRemoteOp, rdmaverbs.StatusLocProtErr)
			return
		}
		if n > w.sg.n+w.more.n-r.got {
			r.refuseRecv(e, header.NAKInvalid, rdmaverbs.StatusLocLenErr)
			return
		}
		if !w.put(r.got, t.Payload) {
			r.refuseRecv(e, header.NAKRemoteOp, rdmaverbs.StatusLocProtErr)
			return
		}
		r.got += n
	}
	r.done(t, last)
	if last {
		wc := rdmaverbs.WC{ID: e.rq.pop().id, Op: rdmaverbs.WCRecv, Len: r.got}
		if t.ImmDt != nil {
			wc.Imm, wc.HasImm = t.ImmDt.Imm(), true
		}
		e.completeRecv(wc)
	}
}

// write executes an RDMA WRITE packet.
func (r *responder) write(e *endpoint, t *header.Transport, first, last bool) {
	n := len(t.Payload)
	mem, raddr, remaining, got := r.mr, r.raddr, r.remaining, r.got
	if first {
		if e.access&rdmaverbs.AccessRemoteWrite == 0 {
			r.refuse(e, header.NAKInvalid)
			return
		}
		got, raddr = 0, t.RETH.VA()
		var ok bool
		if l := t.RETH.DMALen(); l > maxMsg {
			r.refuse(e, header.NAKInvalid)
			return
		} else if mem, ok = e.remote(t.RETH, int(l), rdmaverbs.AccessRemoteWrite); !ok {
			r.refuse(e, header.NAKRemoteAccess)
			return
		} else {
			remaining = int(l)
		}
	}
	if n > remaining || last != (n == remaining) {
		r.refuse(e, header.NAKInvalid)
		return
	}
	// A packet is executed entirely or not at all: check for the receive
	// request first.
	if last && t.ImmDt != nil && e.rq.n == 0 {
		r.notReady(e)
		return
	}
	if n > 0 {
		if !mem.acquire() {
			r.refuse(e, header.NAKRemoteAccess)
			return
		}
		copy(mem.buf[raddr-mem.addr:], t.Payload)
		mem.release()
	}
	r.kind, r.mr = msgWrite, mem
	r.raddr, r.remaining, r.got = raddr+uint64(n), remaining-n, got+n
	r.done(t, last)
	if last {
		r.mr = nil
		if t.ImmDt != nil {
			e.completeRecv(rdmaverbs.WC{
				ID: e.rq.pop().id, Op: rdmaverbs.WCRecvWriteImm, Len: r.got,
				Imm: t.ImmDt.Imm(), HasImm: true,
			})
		}
	}
}

// read accepts an RDMA READ request.
func (r *responder) read(e *endpoint, t *header.Transport) {
	if e.access&rdmaverbs.AccessRemoteRead == 0 || t.RETH.DMALen() > maxMsg || r.jobMax == 0 {
		r.refuse(e, header.NAKInvalid)
		return
	}
	n := int(t.RETH.DMALen())
	m, ok := e.remote(t.RETH, n, rdmaverbs.AccessRemoteRead)
	if !ok {
		r.refuse(e, header.NAKRemoteAccess)
		return
	}
	if r.jobN >= r.jobMax && !r.dropDuplicates() {
		r.refuse(e, header.NAKInvalid)
		return
	}
	r.msn = (r.msn + 1) & psnMask
	r.pushJob(readJob{at: r.expect, msn: r.msn, mr: m, raddr: t.RETH.VA(), left: n, first: true})
	r.advance(packets(n, e.mtu))
	r.past.answered()
}

// advance advances expect by n PSNs, whose requests were executed or will be answered.
func (r *responder) advance(n int) {
	r.expect = r.expect.add(n)
	r.past.executed(n)
}

// done advances expect after a packet was executed.
func (r *responder) done(t *header.Transport, last bool) {
	r.advance(1)
	if last {
		r.kind = msgNone
		r.msn = (r.msn + 1) & psnMask
	}
	if t.BTH.AckReq() {
		r.ackDue = true
	}
}

// notReady answers the expected packet with an RNR NAK.
func (r *responder) notReady(e *endpoint) {
	r.awaitsRetry = true
	r.nak, r.nakPSN = header.RNR(r.minRNR), r.expect
	e.stats.rnrSent++
}

// refuse answers the expected packet with a NAK, and puts the queue pair into
// the error state.
func (r *responder) refuse(e *endpoint, s header.Syndrome) {
	r.nak, r.nakPSN = s, r.expect
	e.stats.nakSent++
	e.fail()
}

// refuseRecv is like refuse, and completes the present receive request with
// status.
func (r *responder) refuseRecv(e *endpoint, s header.Syndrome, status rdmaverbs.WCStatus) {
	e.completeRecv(rdmaverbs.WC{ID: e.rq.pop().id, Status: status})
	r.refuse(e, s)
}

// remote returns the memory region that a RETH names. ok is false if the peer
// must not access n bytes there. For n = 0 there is no check and no region
// (section 9.7.4.1.5).
func (e *endpoint) remote(h header.RETH, n int, need rdmaverbs.Access) (*mr, bool) {
	if n == 0 {
		return nil, true
	}
	if m := e.mrs.find(h.RKey()); m != nil && m.pd == e.pd && m.access&need != 0 {
		if _, ok := m.slice(h.VA(), n); ok {
			return m, true
		}
	}
	e.stats.wrongKey++
	return nil, false
}

func (r *responder) pushJob(j readJob) {
	r.jobs[(r.jobHead+r.jobN)%len(r.jobs)] = j
	r.jobN++
}

func (r *responder) popJob() {
	r.jobs[r.jobHead] = readJob{}
	r.jobHead = (r.jobHead + 1) % len(r.jobs)
	r.jobN--
}

// dropDuplicates removes the jobs that answer duplicates, to make room for a
// new READ: a requester that sends a new READ does not wait for them any more.
// It reports whether there is room now.
func (r *responder) dropDuplicates() bool {
	for range r.jobN {
		j := r.jobs[r.jobHead]
		r.popJob()
		if !j.dup {
			r.pushJob(j)
		}
	}
	return r.jobN < r.jobMax
}

// fill adds to b the answers that are due, in the order of their requests:
// READ responses, then the NAK or the ACK for all that was executed.
func (r *responder) fill(e *endpoint, b *batch) {
	for r.jobN > 0 {
		if !r.fillJob(e, b) {
			return
		}
	}
	if r.nak != 0 && !b.full() {
		r.emitAck(e, b, r.nak, r.nakPSN)
		r.acked, r.nak, r.ackDue = r.nakPSN, 0, false
	}
}

// fillAck adds the acknowledgement that is due. It is added after requests, so
// that it can be the shorter last packet of a train. b always has room for it.
func (r *responder) fillAck(e *endpoint, b *batch) {
	if r.ackDue && r.jobN == 0 && r.nak == 0 {
		r.emitAck(e, b, header.ACKNoCredits, r.expect.add(-1))
		if r.acked != r.expect {
			r.past.answered()
		}
		r.acked, r.ackDue = r.expect, false
	}
}

func (r *responder) emitAck(e *endpoint, b *batch, s header.Syndrome, at psn) {
	p := b.next(header.Acknowledge.HeaderLen())
	header.BTH(p.hdr).Encode(&header.BTHFields{
		Opcode: header.Acknowledge, MigReq: true, PKey: header.DefaultPKey,
		DestQP: e.dqpn, PSN: uint32(at),
	})
	header.AETH(p.hdr[header.BTHLen:]).Encode(s, r.msn)
}

// fillJob adds packets of the oldest READ response. It returns false if b is
// full before the response ends.
func (r *responder) fillJob(e *endpoint, b *batch) bool {
	j := &r.jobs[r.jobHead]
	for {
		if b.full() {
			return false
		}
		n := min(j.left, e.mtu)
		var data []byte
		if n > 0 {
			if !b.hold(j.mr) {
				r.nak, r.nakPSN = header.NAKRemoteAccess, j.at
				r.jobN = 0
				e.stats.nakSent++
				e.fail()
				return true
			}
			data, _ = j.mr.slice(j.raddr, n)
		}
		op := readOpcode(j.first, n == j.left)
		p := b.next(op.HeaderLen())
		p.payload[0] = data
		header.BTH(p.hdr).Encode(&header.BTHFields{
			Opcode: op, MigReq: true, PadCount: uint8(-n & 3), PKey: header.DefaultPKey,
			DestQP: e.dqpn, PSN: uint32(j.at),
		})
		if op.HasAETH() {
			header.AETH(p.hdr[header.BTHLen:]).Encode(header.ACKNoCredits, j.msn)
		}
		j.at, j.raddr, j.left, j.first = j.at.add(1), j.raddr+uint64(n), j.left-n, false
		if j.left == 0 {
			if !j.dup {
				r.acked = j.at
			}
			r.popJob()
			return true
		}
	}
}

func readOpcode(first, last bool) header.Opcode {
	switch {
	case first && last:
		return header.ReadRespOnly
	case first:
		return header.ReadRespFirst
	case last:
		return header.ReadRespLast
	}
	return header.ReadRespMid
}

// kindOf returns the kind of message to which a request opcode belongs. For a
// READ request, which is always one packet, it returns msgNone.
func kindOf(op header.Opcode) msgKind {
	switch {
	case op <= header.SendOnlyImm:
		return msgSend
	case op <= header.WriteOnlyImm:
		return msgWrite
	}
	return msgNone
}

// isFirst reports whether op begins a message.
func isFirst(op header.Opcode) bool {
	switch op {
	case header.SendFirst, header.SendOnly, header.SendOnlyImm,
		header.WriteFirst, header.WriteOnly, header.WriteOnlyImm, header.ReadRequest:
		return true
	}
	return false
}

// isLast reports whether op ends a message.
func isLast(op header.Opcode) bool {
	switch op {
	case header.SendFirst, header.SendMiddle, header.WriteFirst, header.WriteMiddle:
		return false
	}
	return true
}
