// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"sync"

	"smcr/rdmaverbs/softroce/header"
)

// batchLen is the largest number of packets that are sent at once, without the
// acknowledgement.
const batchLen = 128

// batch is a list of outgoing packets of one queue pair. It owns their headers.
// The payload stays in its memory regions, and refs keeps these open. Batches
// are reused and never grow.
type batch struct {
	pkts []packet
	hdrs [batchLen + 1][header.MaxTransportLen]byte
	refs []*mr
	most int // largest number of packets now
}

var batches = sync.Pool{New: func() any {
	return &batch{pkts: make([]packet, 0, batchLen+1), refs: make([]*mr, 0, batchLen), most: batchLen}
}}

func (b *batch) full() bool { return len(b.pkts) >= b.most }

// wholeTrains limits the batch to a whole number of trains of n packets each.
// If there is no room for one train, the batch takes as many packets as it can.
func (b *batch) wholeTrains(n int) {
	if room := batchLen - len(b.pkts); n > 0 && room >= n {
		b.most = len(b.pkts) + room/n*n
	}
}

// next adds a packet with n bytes of header and returns it.
func (b *batch) next(n int) *packet {
	i := len(b.pkts)
	b.pkts = b.pkts[:i+1]
	p := &b.pkts[i]
	p.hdr = b.hdrs[i][:n]
	p.payload = [2][]byte{}
	return p
}

// hold keeps the memory of m valid until reset. It reports whether m is open.
func (b *batch) hold(m *mr) bool {
	for i := len(b.refs) - 1; i >= 0 && i >= len(b.refs)-4; i-- {
		if b.refs[i] == m {
			return true
		}
	}
	if !m.acquire() {
		return false
	}
	b.refs = append(b.refs, m)
	return true
}

// free empties the batch and lets others use it.
func (b *batch) free() {
	b.reset()
	batches.Put(b)
}

// reset empties the batch and releases its memory regions.
func (b *batch) reset() {
	for i := range b.pkts {
		b.pkts[i].payload = [2][]byte{}
	}
	b.pkts = b.pkts[:0]
	b.most = batchLen
	for i, m := range b.refs {
		m.release()
		b.refs[i] = nil
	}
	b.refs = b.refs[:0]
}
