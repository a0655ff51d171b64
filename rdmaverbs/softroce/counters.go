// SPDX-License-Identifier: Apache-2.0

package softroce

import "smcr/rdmaverbs"

// Counters has the counters of a device since it was opened. They include all
// queue pairs, also those that are closed.
type Counters struct {
	TxPackets, TxBytes uint64 // transport packets and their bytes, without ICRC
	TxLost             uint64 // packets that the netdev or its queue did not accept
	RxPackets, RxBytes uint64 // with a valid ICRC, for this port
	Overruns           uint64 // packets lost because the receive buffer was full

	// Received and dropped.
	WrongICRC  uint64
	WrongPort  uint64 // MAC address, GID or partition is not that of this port
	Malformed  uint64 // lengths or header fields are wrong
	UnknownQP  uint64 // no such queue pair, or a special one
	WrongPeer  uint64 // not from the peer that the queue pair is connected to
	Ghosts     uint64 // answers to nothing outstanding
	Duplicates uint64 // requests already executed, answered again
	OutOfOrder uint64 // requests beyond the expected PSN

	// Received and refused: the packet is not from the peer, or the peer has no right to
	// what it asks for.
	WrongSource uint64 // from the address of the peer, not from the UDP port of its queue pair
	WrongPSN    uint64 // requests before all that the peer may send again
	WrongKey    uint64 // requests for memory with a key or an address that the peer must not use

	Retransmits uint64 // request packets sent again
	Timeouts    uint64 // local ACK timeouts
	Probes      uint64 // early retransmissions, before the timeout
	NAKSent     uint64
	NAKReceived uint64
	RNRSent     uint64 // receiver-not-ready NAKs
	RNRReceived uint64
}

// Counters returns the present counters.
func (d *Device) Counters() Counters {
	sum := endpointStats{}
	d.mu.RLock()
	sum.add(&d.closedQPs.stats)
	d.mu.RUnlock()
	for _, q := range d.allQPs() {
		q.mu.Lock()
		sum.add(&q.ep.stats)
		q.mu.Unlock()
	}
	c := Counters{
		Malformed:   d.drops.malformed.Load(),
		UnknownQP:   d.drops.unknownQP.Load(),
		WrongPeer:   d.drops.wrongPeer.Load(),
		WrongSource: d.drops.wrongSource.Load(),
		WrongPSN:    sum.wrongPSN,
		WrongKey:    sum.wrongKey,
		Ghosts:      sum.ghosts,
		Duplicates:  sum.duplicates,
		OutOfOrder:  sum.outOfOrder,
		Retransmits: sum.retransmits,
		Timeouts:    sum.timeouts,
		Probes:      sum.probes,
		NAKSent:     sum.nakSent,
		NAKReceived: sum.nakReceived,
		RNRSent:     sum.rnrSent,
		RNRReceived: sum.rnrReceived,
	}
	if w, ok := d.wire.(interface{ counters() wireStats }); ok {
		s := w.counters()
		c.TxPackets, c.TxBytes, c.TxLost = s.TxPackets, s.TxBytes, s.TxLost
		c.RxPackets, c.RxBytes, c.Overruns = s.RxPackets, s.RxBytes, s.Overruns
		c.WrongICRC = s.DropICRC
		c.WrongPort = s.DropMAC + s.DropGID + s.DropLoopback + s.DropPKey
		c.Malformed += s.DropShort + s.DropFormat + s.DropVersion
		c.UnknownQP += s.DropQP
	}
	return c
}

// Refused implements rdmaverbs.RefusalCounter.
func (d *Device) Refused() rdmaverbs.Refused {
	c := d.Counters()
	return rdmaverbs.Refused{Source: c.WrongSource, PSN: c.WrongPSN, Key: c.WrongKey}
}

// Resent implements rdmaverbs.ResentCounter.
func (d *Device) Resent() rdmaverbs.Resent {
	c := d.Counters()
	return rdmaverbs.Resent{Packets: c.Retransmits, Timeouts: c.Timeouts}
}

// Resent implements rdmaverbs.QPResentCounter.
func (q *qp) Resent() rdmaverbs.Resent {
	q.mu.Lock()
	defer q.mu.Unlock()
	return rdmaverbs.Resent{Packets: q.ep.stats.retransmits, Timeouts: q.ep.stats.timeouts}
}

var (
	_ rdmaverbs.RefusalCounter  = (*Device)(nil)
	_ rdmaverbs.ResentCounter   = (*Device)(nil)
	_ rdmaverbs.QPResentCounter = (*qp)(nil)
)

func (s *endpointStats) add(o *endpointStats) {
	s.retransmits += o.retransmits
	s.timeouts += o.timeouts
	s.probes += o.probes
	s.nakSent += o.nakSent
	s.nakReceived += o.nakReceived
	s.rnrSent += o.rnrSent
	s.rnrReceived += o.rnrReceived
	s.duplicates += o.duplicates
	s.ghosts += o.ghosts
	s.outOfOrder += o.outOfOrder
	s.wrongPSN += o.wrongPSN
	s.wrongKey += o.wrongKey
}
