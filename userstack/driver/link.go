// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"net/netip"
	"sync/atomic"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/internal/mempool"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
)

// tokenFlag marks the IDs of work requests of the send side. Those of the receive side are
// slots of the receive queue.
const tokenFlag = 1 << 63

// link is the driver's part of a linkgroup.Link.
type link struct {
	core *linkgroup.Link
	port *devices.Port
	pool *mempool.Pool
	// terms are the terms of the group, or nil in version 1.
	terms *rendezvous.Terms
	// subnet is where the GID of the link is, the zero Prefix in version 1.
	subnet netip.Prefix
	stall  time.Duration // for how long the peer may stand still

	qp   rdmaverbs.QP
	cq   rdmaverbs.CQ
	rbuf []byte
	rmr  rdmaverbs.MR
	more *longBuf // version 2: for messages longer than recvSlot
	init linkgroup.Endpoint
	peer linkgroup.Endpoint
	mtu  smc.MTU // path MTU code
	roce rdmaverbs.GIDType
	gone atomic.Bool
}

func (l *link) recvWR(slot int) rdmaverbs.RecvWR {
	wr := rdmaverbs.RecvWR{ID: uint64(slot), SG: rdmaverbs.SGE{MR: l.rmr, Off: slot * recvSlot, Len: recvSlot}}
	if l.more != nil {
		wr.More = l.more.recv(slot)
	}
	return wr
}

// message returns the n bytes that arrived in a slot. They are valid until the slot is posted
// again.
func (l *link) message(slot, n int) []byte {
	b := l.rbuf[slot*recvSlot:][:recvSlot]
	if n <= recvSlot || l.more == nil {
		return b[:min(n, recvSlot)]
	}
	return append(append(make([]byte, 0, n), b...), l.more.message(slot, n-recvSlot)...)
}

// create makes the queue pair and its memory. notify is called for each completion, with or
// without the lock of the group. After an error, destroy frees everything that was made.
func (l *link) create(m *groupMemory, notify func(), random func() uint32, trace *rdmaverbs.PacketTrace, tag uint64) (ep linkgroup.Endpoint, err error) {
	pd, err := m.pd(l.port.Device())
	if err != nil {
		return ep, err
	}
	if l.cq, err = l.port.Device().RDMA().CreateCQ(sendDepth+recvDepth, notify); err != nil {
		return ep, err
	}
	if l.rbuf, err = l.pool.Get(recvDepth * recvSlot); err != nil {
		return ep, err
	}
	if l.rmr, err = pd.RegisterMR(l.rbuf, rdmaverbs.AccessLocalWrite); err != nil {
		return ep, err
	}
	if l.terms != nil {
		if l.more, err = newLongBuf(pd); err != nil {
			return ep, err
		}
	}
	sgid, gid, err := l.port.SourceGID(l.subnet)
	if err != nil {
		return ep, err
	}
	gids, err := l.port.Device().RDMA().GIDs(l.port.Num())
	if err != nil {
		return ep, err
	}
	if sgid < len(gids) {
		l.roce = gids[sgid].Type
	}
	l.qp, err = pd.CreateQP(rdmaverbs.QPInit{
		SendCQ: l.cq, RecvCQ: l.cq, MaxSend: sendDepth, MaxRecv: recvDepth,
		Port: l.port.Num(), SGIDIndex: sgid, Access: rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteWrite,
		Trace: trace, Tag: tag,
	})
	if err != nil {
		return ep, err
	}
	wrs := make([]rdmaverbs.RecvWR, recvDepth)
	for i := range wrs {
		wrs[i] = l.recvWR(i)
	}
	if _, err = l.qp.PostRecv(wrs...); err != nil {
		return ep, err
	}
	port, err := l.port.Attr()
	if err != nil {
		return ep, err
	}
	ep = linkgroup.Endpoint{GID: gid, QPN: smc.QPN(l.qp.QPN()), PSN: smc.PSN(random() >> 8), MTU: port.ActiveMTU}
	copy(ep.MAC[:], port.HWAddr)
	if q, ok := l.qp.(rdmaverbs.UDPSender); ok {
		ep.UDPPort = q.UDPPort()
	}
	return ep, nil
}

// retries is the retry count of queue pairs, the largest that there is. Linux uses the same.
const retries = 7

// ackTimeout returns the smallest code of a local ACK timeout with which a queue pair sends
// its last retry at least stall after its request, so that a peer that stands still for this
// time answers it, even if the packets of the meantime are lost. The timeout is 4.096 us *
// 2^code (InfiniBand specification, volume 1, section 9.7.6.1.3).
func ackTimeout(stall time.Duration) (code uint8) {
	for code = 1; code < 31 && retries*timeoutOf(code) < stall; code++ {
	}
	return code
}

func timeoutOf(code uint8) time.Duration { return 4096 * time.Nanosecond << code }

// longestSilence returns after what time without an answer a queue pair fails.
func longestSilence(stall time.Duration) time.Duration {
	return (1 + retries) * timeoutOf(ackTimeout(stall))
}

// path describes the way to the peer. RNR retries without end are what Linux uses. The
// timeout is longer than that of Linux: processes may be kept waiting longer than a kernel,
// and a lost packet rarely has to wait for it.
//
// The hop limits are those of Linux: RoCE packets to a neighbour do not pass a
// router. Behind a router the provider finds the next hop.
func (l *link) path() rdmaverbs.PathInfo {
	p := rdmaverbs.PathInfo{
		DGID: l.peer.GID, DMAC: append([]byte(nil), l.peer.MAC[:]...),
		DQPN: uint32(l.peer.QPN), RQPSN: uint32(l.peer.PSN), SQPSN: uint32(l.init.PSN),
		PathMTU: l.mtu, HopLimit: 1,
		Timeout: ackTimeout(l.stall), RetryCnt: retries, RNRRetry: 7, MinRNR: 5, MaxRdAtom: 1, MaxDestRd: 1,
		UDPPort: l.peer.UDPPort,
	}
	if l.terms != nil && l.terms.Routed {
		p.DMAC, p.HopLimit = nil, 64
	}
	return p
}

// destroy frees the queues and receive buffers of a link. The group's lock is not held.
func (l *link) destroy() {
	l.gone.Store(true)
	if l.qp != nil {
		_ = l.qp.Close()
	}
	if l.rmr != nil {
		_ = l.rmr.Close()
	}
	if l.more != nil {
		l.more.close()
		l.more = nil
	}
	if l.cq != nil {
		_ = l.cq.Close()
	}
	if l.rbuf != nil {
		l.pool.Put(l.rbuf, time.Now())
		l.rbuf = nil
	}
}
