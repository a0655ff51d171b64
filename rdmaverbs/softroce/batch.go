// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"sync"

	"smcr/rdmaverbs/softroce/header"
)

// batchLen is the number of packets sent at once.
const batchLen = 64

// batch is a train of outgoing packets of one queue pair. It owns their
// headers; payload stays where it is, and refs keeps it there. Batches are
// reused and never grow.
type batch struct {
	pkts []packet
	hdrs [batchLen][header.MaxTransportLen]byte
	refs []*mr
}

var batches = sync.Pool{New: func() any {
	return &batch{pkts: make([]packet, 0, batchLen), refs: make([]*mr, 0, batchLen)}
}}

func (b *batch) full() bool { return len(b.pkts) == batchLen }

// next adds a packet with n bytes of header and returns it.
func (b *batch) next(n int) *packet {
	i := len(b.pkts)
	b.pkts = b.pkts[:i+1]
	p := &b.pkts[i]
	p.hdr = b.hdrs[i][:n]
	p.payload = [2][]byte{}
	return p
}

// hold keeps m's memory valid until reset; it reports false if m is closed.
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

// reset empties the batch and lets go of the memory it refers to.
func (b *batch) reset() {
	for i := range b.pkts {
		b.pkts[i].payload = [2][]byte{}
	}
	b.pkts = b.pkts[:0]
	for i, m := range b.refs {
		m.release()
		b.refs[i] = nil
	}
	b.refs = b.refs[:0]
}
