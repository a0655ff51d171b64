// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"net"
	"slices"
	"sync"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// qp is a queue pair: an endpoint, its lock, and its driver.
type qp struct {
	dev  *Device
	pd   *pd
	sgid rdmaverbs.GIDEntry
	path path // written once, by ToRTR

	mu     sync.Mutex
	ep     endpoint
	port   peerPort // from which packets of the peer come
	closed bool
	idle   sync.Cond // on mu: a batch was sent
	wakeAt instant   // the timers call at this time at the latest

	// Guarded by timers.mu.
	timerAt    instant
	timerIndex int

	shard       *shard
	trace       *rdmaverbs.PacketTrace // or nil
	tag         uint64
	ackHeld     bool      // only the shard's thread uses it
	toSend      bool      // guarded by shard.round.mu
	closeNotice *closedQP // set on close if the peer must be told
}

// CreateQP creates a queue pair in state Init. It fails with
// rdmaverbs.ErrInvalid if a field of init is wrong, and with
// rdmaverbs.ErrNoResources if the device has its maximum of queue pairs. It
// fails with rdmaverbs.ErrClosed if the domain, a completion queue or the
// device is closed.
func (p *pd) CreateQP(init rdmaverbs.QPInit) (rdmaverbs.QP, error) {
	scq, ok1 := init.SendCQ.(*cq)
	rcq, ok2 := init.RecvCQ.(*cq)
	switch {
	case !ok1 || !ok2 || scq.dev != p.dev || rcq.dev != p.dev:
		return nil, fmt.Errorf("softroce: create queue pair: completion queue of another device: %w", rdmaverbs.ErrInvalid)
	case init.Port != 1:
		return nil, fmt.Errorf("softroce: create queue pair: port %d, there is only port 1: %w", init.Port, rdmaverbs.ErrInvalid)
	case init.MaxSend < 0 || init.MaxSend > maxQPWR || init.MaxRecv < 0 || init.MaxRecv > maxQPWR:
		return nil, fmt.Errorf("softroce: create queue pair: queues of %d and %d work requests, at most %d: %w", init.MaxSend, init.MaxRecv, maxQPWR, rdmaverbs.ErrInvalid)
	}
	gids, err := p.dev.GIDs(1)
	if err != nil {
		return nil, err
	}
	if init.SGIDIndex < 0 || init.SGIDIndex >= len(gids) {
		return nil, fmt.Errorf("softroce: create queue pair: GID index %d, the table of %s has %d: %w", init.SGIDIndex, p.dev.name, len(gids), rdmaverbs.ErrInvalid)
	}
	if gids[init.SGIDIndex].GID.IsZero() {
		return nil, fmt.Errorf("softroce: create queue pair: entry %d of the GID table of %s is not in use: %w", init.SGIDIndex, p.dev.name, rdmaverbs.ErrInvalid)
	}
	if err := p.acquire(); err != nil {
		return nil, err
	}
	if err := scq.attach(init.MaxSend); err != nil {
		p.release()
		return nil, err
	}
	if err := rcq.attach(init.MaxRecv); err != nil {
		scq.detach(init.MaxSend)
		p.release()
		return nil, err
	}
	q := &qp{
		dev:        p.dev,
		pd:         p,
		sgid:       gids[init.SGIDIndex],
		shard:      p.dev.shards[int(p.shard.Load())%len(p.dev.shards)],
		trace:      init.Trace,
		tag:        init.Tag,
		wakeAt:     never,
		timerIndex: -1,
		ep: endpoint{
			state:  rdmaverbs.QPSInit,
			access: init.Access,

			writeOnly: p.dev.writeOnly,
			pd:        p,
			mrs:       &p.dev.mrs,
			sendCQ:    scq,
			recvCQ:    rcq,
		},
	}
	q.idle.L = &q.mu
	q.ep.req.sq.ring = make([]wqe, init.MaxSend)
	q.ep.rq.ring = make([]recvWQE, init.MaxRecv)
	if err := p.dev.addQP(q); err != nil {
		q.releaseParts()
		return nil, err
	}
	return q, nil
}

func (q *qp) releaseParts() {
	q.ep.sendCQ.detach(len(q.ep.req.sq.ring))
	q.ep.recvCQ.detach(len(q.ep.rq.ring))
	q.pd.release()
}

// QPN returns the queue pair number.
func (q *qp) QPN() uint32 { return q.ep.qpn }

// flow chooses a source port. The queue pairs use all of them, so that a network with
// parallel links can spread the flows (annex A17, A17.9.2).
func (q *qp) flow() uint16 { return uint16(q.ep.qpn) }

// UDPPort implements rdmaverbs.UDPSender.
func (q *qp) UDPPort() uint16 {
	return q.dev.wire.sourcePort(&path{typ: q.sgid.Type, sgid: q.sgid.GID, flow: q.flow()})
}

var _ rdmaverbs.UDPSender = (*qp)(nil)

// State returns the state now.
func (q *qp) State() rdmaverbs.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ep.state
}

// ToRTR moves the queue pair from Init to ready-to-receive. See [rdmaverbs.QP].
func (q *qp) ToRTR(p rdmaverbs.PathInfo) error {
	if err := q.checkPath(&p); err != nil {
		return err
	}
	dmac, err := q.resolve(&p)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkState(rdmaverbs.QPSInit, "RTR"); err != nil {
		return err
	}
	hop := p.HopLimit
	if hop == 0 {
		hop = 1
		if q.sgid.Type == rdmaverbs.RoCEv2 {
			hop = 64
		}
	}
	q.path = path{
		typ:      q.sgid.Type,
		sgid:     q.sgid.GID,
		dgid:     p.DGID,
		dmac:     dmac,
		hopLimit: hop,
		flow:     q.flow(),
	}
	if q.sgid.Type == rdmaverbs.RoCEv2 {
		q.port = peerPort(p.UDPPort)
	}
	q.ep.toRTR(&p)
	return nil
}

// ToRTS moves the queue pair from ready-to-receive to ready-to-send. See
// [rdmaverbs.QP].
func (q *qp) ToRTS(p rdmaverbs.PathInfo) error {
	if err := q.checkPath(&p); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkState(rdmaverbs.QPSRTR, "RTS"); err != nil {
		return err
	}
	q.ep.toRTS(&p, q.dev.window)
	return nil
}

func (q *qp) checkState(want rdmaverbs.QPState, to string) error {
	if q.closed {
		return fmt.Errorf("softroce: queue pair %d: %w", q.ep.qpn, rdmaverbs.ErrClosed)
	}
	if q.ep.state != want {
		return fmt.Errorf("softroce: queue pair %d cannot move to %s from state %d: %w", q.ep.qpn, to, q.ep.state, rdmaverbs.ErrBadState)
	}
	return nil
}

// checkPath checks the parts of p that do not depend on the state.
func (q *qp) checkPath(p *rdmaverbs.PathInfo) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("softroce: queue pair %d: path: %s: %w", q.ep.qpn, fmt.Sprintf(format, a...), rdmaverbs.ErrInvalid)
	}
	switch {
	case p.DGID.IsZero():
		return bad("no destination GID")
	case p.DQPN < 2 || p.DQPN > psnMask:
		return bad("destination queue pair number %d", p.DQPN)
	case p.RQPSN > psnMask || p.SQPSN > psnMask:
		return bad("PSN of more than 24 bits")
	case p.PathMTU.Bytes() == 0:
		return bad("path MTU code %d", p.PathMTU)
	case p.RetryCnt > 7 || p.RNRRetry > 7 || p.MinRNR > 31 || p.Timeout > 31:
		return bad("retry count, RNR retry count, RNR timer or timeout out of range")
	case p.MaxDestRd > maxRead:
		return bad("%d RDMA READs as responder, at most %d", p.MaxDestRd, maxRead)
	}
	if most := q.dev.pathMTU(q.sgid.Type); p.PathMTU > most {
		return bad("MTU of %d bytes does not fit the netdev, at most %d", p.PathMTU.Bytes(), most.Bytes())
	}
	return nil
}

// resolve returns the MAC address of the destination, or nil if the IP stack
// finds it.
func (q *qp) resolve(p *rdmaverbs.PathInfo) (net.HardwareAddr, error) {
	switch {
	case len(p.DMAC) == 6:
		return slices.Clone(p.DMAC), nil
	case len(p.DMAC) != 0:
		return nil, fmt.Errorf("softroce: queue pair %d: destination MAC of %d bytes: %w", q.ep.qpn, len(p.DMAC), rdmaverbs.ErrInvalid)
	}
	g := p.DGID
	if g[0] == 0xfe && g[1] == 0x80 && g[11] == 0xff && g[12] == 0xfe {
		return net.HardwareAddr{g[8] ^ 2, g[9], g[10], g[13], g[14], g[15]}, nil
	}
	if q.sgid.Type == rdmaverbs.RoCEv2 {
		return nil, nil // the IP stack resolves it
	}
	return nil, fmt.Errorf("softroce: queue pair %d: GID %v does not contain a MAC address: set DMAC in the path: %w", q.ep.qpn, g, rdmaverbs.ErrInvalid)
}

// ToError moves to the error state.
func (q *qp) ToError() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fmt.Errorf("softroce: queue pair %d: %w", q.ep.qpn, rdmaverbs.ErrClosed)
	}
	if q.guarded(func() { q.ep.toError() }) {
		q.unlock()
	}
	return nil
}

// Close flushes the queue pair and frees it. When it returns, no packet of
// the queue pair is being sent any more.
func (q *qp) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fmt.Errorf("softroce: queue pair %d: %w", q.ep.qpn, rdmaverbs.ErrClosed)
	}
	q.closed = true
	if !q.guarded(func() { q.ep.toError() }) {
		q.mu.Lock()
	}
	for q.ep.sending {
		q.idle.Wait()
	}
	q.unlock()
	q.dev.removeQP(q)
	q.releaseParts()
	return nil
}

// PostRecv adds receive work requests.
func (q *qp) PostRecv(wrs ...rdmaverbs.RecvWR) (int, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return 0, fmt.Errorf("softroce: queue pair %d: %w", q.ep.qpn, rdmaverbs.ErrClosed)
	}
	n, err := 0, error(nil)
	if !q.guarded(func() {
		for i := range wrs {
			if err = q.postRecv(&wrs[i]); err != nil {
				break
			}
			n++
		}
		q.ep.completeReady()
	}) {
		return n, q.errFault()
	}
	q.unlock()
	return n, err
}

// errFault is the error of a call that has put the queue pair into the error state by a
// panic.
func (q *qp) errFault() error {
	return fmt.Errorf("softroce: queue pair %d: internal error, see the log: %w", q.ep.qpn, rdmaverbs.ErrBadState)
}

func (q *qp) postRecv(wr *rdmaverbs.RecvWR) error {
	if q.ep.rq.n == len(q.ep.rq.ring) {
		return fmt.Errorf("softroce: queue pair %d: receive queue: %w", q.ep.qpn, rdmaverbs.ErrQueueFull)
	}
	sg, status, err := q.piece(wr.SG, rdmaverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	more, status2, err := q.piece(wr.More, rdmaverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	q.ep.rq.push(recvWQE{
		id: wr.ID, sg: sg, more: more,
		bad: status != rdmaverbs.StatusSuccess || status2 != rdmaverbs.StatusSuccess,
	})
	return nil
}

// PostSend adds send work requests, and sends as much as the window allows.
func (q *qp) PostSend(wrs ...rdmaverbs.SendWR) (int, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return 0, fmt.Errorf("softroce: queue pair %d: %w", q.ep.qpn, rdmaverbs.ErrClosed)
	}
	if s := q.ep.state; s != rdmaverbs.QPSRTS && s != rdmaverbs.QPSErr {
		q.mu.Unlock()
		return 0, fmt.Errorf("softroce: queue pair %d is not ready to send (state %d): %w", q.ep.qpn, s, rdmaverbs.ErrBadState)
	}
	n, err := 0, error(nil)
	if !q.guarded(func() {
		for i := range wrs {
			if err = q.postSend(&wrs[i]); err != nil {
				break
			}
			n++
		}
		if q.shard.round != nil {
			q.ep.completeReady()
		}
	}) {
		return n, q.errFault()
	}
	if q.shard.round != nil {
		q.deferSend()
	} else {
		q.pump(-1)
	}
	return n, err
}

func (q *qp) postSend(wr *rdmaverbs.SendWR) error {
	r := &q.ep.req
	if r.sq.full() {
		return fmt.Errorf("softroce: queue pair %d: send queue: %w", q.ep.qpn, rdmaverbs.ErrQueueFull)
	}
	if wr.Op < rdmaverbs.OpSend || wr.Op > rdmaverbs.OpRead {
		return fmt.Errorf("softroce: queue pair %d: operation %d: %w", q.ep.qpn, wr.Op, rdmaverbs.ErrInvalid)
	}
	inline := wr.Flags&rdmaverbs.Inline != 0
	if inline && (wr.Op == rdmaverbs.OpRead || len(wr.InlineData) > maxInline) {
		return fmt.Errorf("softroce: queue pair %d: %d bytes inline, at most %d and not for a READ: %w", q.ep.qpn, len(wr.InlineData), maxInline, rdmaverbs.ErrInvalid)
	}
	w := r.sq.slot()
	w.id, w.op, w.flags, w.imm, w.raddr, w.rkey = wr.ID, wr.Op, wr.Flags, wr.Imm, wr.RemoteAddr, wr.RKey
	if inline {
		w.inline = append(w.inline, wr.InlineData...)
		w.length = len(w.inline)
	} else {
		need := rdmaverbs.Access(0)
		if wr.Op == rdmaverbs.OpRead {
			need = rdmaverbs.AccessLocalWrite
		}
		for i := range wr.SG {
			sg, status, err := q.piece(wr.SG[i], need)
			if err != nil {
				return err
			}
			w.sg[i] = sg
			w.length += sg.n
			if status != rdmaverbs.StatusSuccess {
				w.bad = status
			}
		}
	}
	switch {
	case w.length > maxMsg:
		w.bad = rdmaverbs.StatusLocLenErr
	case wr.Op == rdmaverbs.OpRead && r.maxReads == 0:
		w.bad = rdmaverbs.StatusLocQPOpErr
	}
	r.sq.push(w, max(q.ep.mtu, 1))
	return nil
}

// piece checks local memory. It returns an error if the request is invalid. If
// it returns a status other than success, the request must fail with this
// status when it is the oldest.
func (q *qp) piece(g rdmaverbs.SGE, need rdmaverbs.Access) (piece, rdmaverbs.WCStatus, error) {
	if g.Len == 0 {
		return piece{}, rdmaverbs.StatusSuccess, nil
	}
	m, ok := g.MR.(*mr)
	if !ok || g.Len < 0 || g.Off < 0 {
		return piece{}, 0, fmt.Errorf("softroce: queue pair %d: %d bytes at offset %d of memory region %v: %w", q.ep.qpn, g.Len, g.Off, g.MR, rdmaverbs.ErrInvalid)
	}
	p := piece{mr: m, off: g.Off, n: g.Len}
	if m.pd != q.pd || m.access&need != need || g.Off > len(m.buf) || g.Len > len(m.buf)-g.Off {
		return p, rdmaverbs.StatusLocProtErr, nil
	}
	return p, rdmaverbs.StatusSuccess, nil
}

// from reports whether the addresses of a packet are those of the connected peer and of
// the queue pair.
func (q *qp) from(in *inbound) bool { return q.path.cameBack(in) }

// receive handles one packet. It reports whether the packet proves that it is from the
// peer, see [endpoint.receive]. q.mu is held.
func (q *qp) receive(now instant, t *header.Transport, err error) (proved bool) {
	if err != nil {
		q.ep.receiveBad(t.BTH)
		return false
	}
	return q.ep.receive(now, t)
}
