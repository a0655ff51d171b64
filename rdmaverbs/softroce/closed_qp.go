// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"slices"
	"sync/atomic"
	"time"

	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// A closedQP is a queue pair that was closed and whose peer may not know it. By
// the InfiniBand specification, packets for it are dropped, and the peer
// notices after its retries. But the soft-RoCE of Linux retries without end if
// the retry count is 7, which is the count of SMC. SMC in Linux then waits
// without end for its work requests before it deletes the link, and so do
// connections that are opened or closed at that time. So the peer gets a NAK
// with the code "remote operational error":
//
//	Event                           | Who gets the NAK
//	--------------------------------+------------------------------------------
//	closed while the netdev is down | the peer, through another netdev of the
//	                                | host if one reaches it, some times over
//	a request comes                 | its sender
//
// A NAK also acknowledges all packets before its PSN. This one must not
// acknowledge anything, even if it was received: if SMC in Linux has moved a
// connection to another link and then sees a success on the old link, it
// regards the send buffer as free, overwrites it, and sends the overwritten
// bytes again. So the NAK has the oldest PSN that is not acknowledged for the
// peer. If the peer sent a request, this is the PSN of its first packet,
// because retries begin there. Otherwise the device sends a NAK for each PSN
// that it may be, in rising order, because the last ACKs may be lost. The peer
// ignores a NAK for a PSN that is acknowledged.
type closedQP struct {
	qpn   uint32
	dqpn  uint32
	path  path
	port  peerPort // of the peer
	acked psn      // all PSNs before it were acknowledged
	msn   uint32

	again atomic.Int64 // instant from which the next request is answered

	notices  int           // close notices that were scheduled; only the timers use it
	interval time.Duration // before the last close notice
}

// maxClosedQPs is the number of closed queue pairs that a device remembers. If there are more, the oldest one of the peer
// that has most is forgotten: a peer that makes many does not have those of others forgotten.
const maxClosedQPs = 256

// If the peer cannot reach this device, the device repeats the close notice
// closeNotices times: after firstCloseNotice, then each time after five times
// the interval before. The peer may have had no request outstanding at the
// first notice. It may still send until the layer above tells it of the
// failure.
//
// maxUncertain is the number of packets that the peer may have outstanding,
// which is 128 with Linux.
const (
	maxUncertain     = 128
	closeNotices     = 4
	firstCloseNotice = 20 * time.Millisecond
)

// closedInterval is the shortest time between two NAKs for the requests to a closed queue
// pair. One is enough for a peer that receives it.
const closedInterval = time.Millisecond

// closedQPs has what a device keeps of its closed queue pairs. The lock of the
// device guards it.
type closedQPs struct {
	list  []*closedQP   // at most maxClosedQPs, oldest first: see remember
	stats endpointStats // sums of all closed queue pairs
}

// remember adds q, which was just closed, if it ever had a peer. It returns nil
// if not.
func (c *closedQPs) remember(q *qp) *closedQP {
	if q.path.dgid.IsZero() {
		return nil
	}
	p := &closedQP{qpn: q.ep.qpn, dqpn: q.ep.dqpn, path: q.path, port: q.port, acked: q.ep.rsp.acked, msn: q.ep.rsp.msn}
	c.list = append(c.list, p)
	if len(c.list) > maxClosedQPs {
		peers, most := map[smc.GID]int{}, p.path.dgid
		for _, o := range c.list {
			peers[o.path.dgid]++
		}
		for _, o := range c.list { // in this order, so that runs are repeatable
			if peers[o.path.dgid] > peers[most] {
				most = o.path.dgid
			}
		}
		i := slices.IndexFunc(c.list, func(o *closedQP) bool { return o.path.dgid == most })
		c.list = slices.Delete(c.list, i, i+1)
	}
	return p
}

// find returns the closed queue pair with number qpn, or nil.
func (c *closedQPs) find(qpn uint32) *closedQP {
	i := slices.IndexFunc(c.list, func(p *closedQP) bool { return p.qpn == qpn })
	if i < 0 {
		return nil
	}
	return c.list[i]
}

// findClosed looks at a packet whose queue pair is not known. It returns the
// closed queue pair that must answer it now and the PSN for the NAK, or nil.
func (d *Device) findClosed(now instant, in *inbound, bth header.BTH) (*closedQP, psn) {
	const serviceBits = 0xe0
	if bth.Opcode()&serviceBits != 0 || bth.Opcode().IsResponse() {
		return nil, 0
	}
	d.mu.RLock()
	p := d.closedQPs.find(bth.DestQP())
	d.mu.RUnlock()
	if p == nil || !p.path.cameBack(in) {
		return nil, 0
	}
	if !p.port.accepts(in.srcPort) {
		d.drops.wrongSource.Add(1)
		return nil, 0
	}
	if again := p.again.Load(); now < instant(again) || !p.again.CompareAndSwap(again, int64(now.add(closedInterval))) {
		return nil, 0
	}
	at := psn(bth.PSN())
	if at.sub(p.acked) > 0 {
		at = p.acked
	}
	return p, at
}

// sendClosedNAK tells the peer of a closed queue pair that its requests fail:
// it sends a NAK for each PSN from from to last.
func (d *Device) sendClosedNAK(p *closedQP, from, last psn) {
	d.mu.Lock()
	up := d.port.active()
	d.closedQPs.stats.nakSent++
	d.mu.Unlock()
	aside, _ := d.wire.(interface{ sendViaSiblings(*path, []packet) })
	b := batches.Get().(*batch)
	defer b.free()
	for at := from; at.sub(last) <= 0; {
		for ; at.sub(last) <= 0 && !b.full(); at = at.add(1) {
			out := b.next(header.Acknowledge.HeaderLen())
			header.BTH(out.hdr).Encode(&header.BTHFields{
				Opcode: header.Acknowledge, MigReq: true, PKey: header.DefaultPKey, DestQP: p.dqpn, PSN: uint32(at),
			})
			header.AETH(out.hdr[header.BTHLen:]).Encode(header.NAKRemoteOp, p.msn)
		}
		var err error
		if up {
			err = d.wire.send(&p.path, b.pkts)
		} else if aside != nil {
			aside.sendViaSiblings(&p.path, b.pkts)
		}
		b.reset()
		if err != nil {
			d.wireFailed(err)
			return
		}
	}
}

// sendCloseNotice tells the peer that q is closed, and schedules the next
// notice if there is one. The timers call it.
func (q *qp) sendCloseNotice() {
	p := q.closeNotice
	q.dev.sendClosedNAK(p, p.acked.add(-maxUncertain), p.acked)
	if p.notices < closeNotices {
		p.interval = max(firstCloseNotice, 5*p.interval)
		p.notices++
		q.dev.timers.set(q, q.dev.now().add(p.interval))
	}
}
