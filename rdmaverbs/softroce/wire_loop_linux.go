// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"sync"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// maxLooped bounds the bytes of packets that wait to be looped back.
const maxLooped = 4 << 20

// loop brings self-addressed packets back (RoCE annex, A16.7.2): a network
// does not return a frame to the port it came from. It also takes what comes
// from siblings.
type loop struct {
	wake chan struct{} // holds a token when in is not empty

	mu   sync.Mutex
	in   looped // filled by senders
	out  looped // in the hands of run
	full uint64 // packets that found no room
}

// looped is a batch of packets and the memory they lie in.
type looped struct {
	buf  []byte
	pkts []loopedPacket
}

type loopedPacket struct {
	typ        rdmaverbs.GIDType
	sgid, dgid smc.GID
	end        int  // in buf; it begins where the one before ends
	passed     bool // checked and counted already
}

func newLoop() *loop { return &loop{wake: make(chan struct{}, 1)} }

// send copies packets into the queue.
func (l *loop) send(dst *path, pkts []packet) {
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
		l.in.pkts = append(l.in.pkts, loopedPacket{dst.typ, dst.sgid, dst.dgid, len(l.in.buf), false})
	}
	l.mu.Unlock()
	l.wakeUp()
}

// pass copies packets that another netdev received and checked.
func (l *loop) pass(in []inbound) {
	l.mu.Lock()
	for i := range in {
		p := &in[i]
		if len(l.in.buf)+len(p.data) > maxLooped {
			l.full++
			continue
		}
		l.in.buf = append(l.in.buf, p.data...)
		l.in.pkts = append(l.in.pkts, loopedPacket{p.typ, p.sgid, p.dgid, len(l.in.buf), true})
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

// lost returns the packets that found no room.
func (l *loop) lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full
}

// run hands what senders put in to h until quit is closed.
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
			in := inbound{typ: p.typ, sgid: p.sgid, dgid: p.dgid, smac: mac, data: data}
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
