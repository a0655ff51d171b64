// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"sync"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// maxLooped is the largest number of bytes of packets that wait in a loop.
const maxLooped = 4 << 20

// loop returns packets that the port sends to itself (RoCE annex, A16.7.2),
// because a network does not return a frame to its sender. It also receives the
// packets that siblings pass on.
type loop struct {
	wake chan struct{} // has an element when in is not empty

	mu   sync.Mutex
	in   looped // filled by senders
	out  looped // used by run
	full uint64 // number of packets for which there was no room
}

// looped is a batch of packets and their memory.
type looped struct {
	buf  []byte
	pkts []loopedPacket
}

type loopedPacket struct {
	typ        rdmaverbs.GIDType
	sgid, dgid smc.GID
	srcPort    uint16
	end        int  // end in buf; a packet begins at the end of the one before
	passed     bool // checked and counted already
}

func newLoop() *loop { return &loop{wake: make(chan struct{}, 1)} }

// send copies packets into the queue. port is their UDP source port, 0 for version 1.
func (l *loop) send(dst *path, port uint16, pkts []packet) {
	l.mu.Lock()
	for i := range pkts {
		p := &pkts[i]
		pad := int(header.BTH(p.hdr).PadCount())
		if len(l.in.buf)+transportLen(p) > maxLooped {
			l.full++
			continue
		}
		b := append(l.in.buf, p.hdr...)
		b = append(b, p.payload[0]...)
		b = append(b, p.payload[1]...)
		b = append(b, 0, 0, 0)
		l.in.buf = b[:len(b)-3+pad]
		l.in.pkts = append(l.in.pkts, loopedPacket{dst.typ, dst.sgid, dst.dgid, port, len(l.in.buf), false})
	}
	l.mu.Unlock()
	l.wakeUp()
}

// pass copies packets that a sibling received and checked into the queue.
func (l *loop) pass(in []inbound) {
	l.mu.Lock()
	for i := range in {
		p := &in[i]
		if len(l.in.buf)+len(p.data) > maxLooped {
			l.full++
			continue
		}
		l.in.buf = append(l.in.buf, p.data...)
		l.in.pkts = append(l.in.pkts, loopedPacket{p.typ, p.sgid, p.dgid, p.srcPort, len(l.in.buf), true})
	}
	l.mu.Unlock()
	l.wakeUp()
}

func (l *loop) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// dropped returns the number of packets for which there was no room.
func (l *loop) dropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full
}

// run gives the packets in the queue to h until quit is closed.
func (l *loop) run(quit <-chan struct{}, h handler, c *wireCounters, self func() *identity) {
	rx := newRxBatch()
	for {
		select {
		case <-quit:
			return
		case <-l.wake:
		}
		l.mu.Lock()
		l.in, l.out = l.out, l.in
		l.mu.Unlock()
		mac, at := self().mac, 0
		for i, p := range l.out.pkts {
			data := l.out.buf[at:p.end:p.end]
			at = p.end
			in := inbound{typ: p.typ, sgid: p.sgid, dgid: p.dgid, srcPort: p.srcPort, smac: mac, data: data}
			if p.passed {
				rx.in = append(rx.in, in)
			} else if drop := c.checkBTH(data); drop != nil {
				drop.Add(1)
			} else {
				rx.in = append(rx.in, in)
				c.rxPackets.Add(1)
				c.rxBytes.Add(uint64(len(data)))
			}
			if len(rx.in) == ioBatch || i == len(l.out.pkts)-1 && len(rx.in) > 0 {
				h(rx.in)
				rx.reset()
			}
		}
		l.out.buf, l.out.pkts = l.out.buf[:0], l.out.pkts[:0]
	}
}
