// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"testing"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// TestResponderLimits: requests at the limits of what a packet and a message may have.
func TestResponderLimits(t *testing.T) {
	full := make([]byte, coreMTU)
	for name, tt := range map[string]struct {
		want header.Syndrome
		at   psn
		send func(c *core) []pkt
	}{
		// Not too long, and only the memory is missing.
		"READ of the longest message": {header.NAKRemoteAccess, coreRQPSN, func(c *core) []pkt {
			return []pkt{{op: header.ReadRequest, psn: coreRQPSN, va: c.mr.addr, rkey: c.mr.key, dmaLen: maxMsg}}
		}},
		"WRITE of the longest message": {header.NAKRemoteAccess, coreRQPSN, func(c *core) []pkt {
			return []pkt{c.write(header.WriteFirst, coreRQPSN, 0, maxMsg, full)}
		}},
		"middle longer than the rest": {header.NAKInvalid, 0, func(c *core) []pkt {
			return []pkt{c.write(header.WriteFirst, coreRQPSN, 0, coreMTU+5, full), {op: header.WriteMiddle, psn: 0, payload: full}}
		}},
		"first longer than all": {header.NAKInvalid, coreRQPSN, func(c *core) []pkt {
			return []pkt{c.write(header.WriteFirst, coreRQPSN, 0, 5, full)}
		}},
	} {
		c := newCore(t)
		c.gets(tt.send(c)...)
		got := c.sends()
		if len(got) != 1 || got[0].psn != tt.at || got[0].AETH.Syndrome() != tt.want {
			t.Errorf("%s: sent %+v, want %v for %#x", name, got, tt.want, tt.at)
		}
		if n, want := c.e.stats.wrongKey, map[bool]uint64{true: 1}[tt.want == header.NAKRemoteAccess]; n != want {
			t.Errorf("%s: %d wrong keys counted, want %d", name, n, want)
		}
	}
}

// TestResponderEmptySend: a SEND without payload needs no memory.
func TestResponderEmptySend(t *testing.T) {
	c := newCore(t)
	c.recv(5)
	c.e.rq.ring[c.e.rq.head].bad = true
	c.gets(pkt{op: header.SendOnly, psn: coreRQPSN, ask: true})
	c.wantSent(ack(coreRQPSN))
	c.wantStatus(c.e.recvCQ, rdmaverbs.StatusSuccess)
}

// TestResponderDuplicateRead: the answer to a READ that is repeated does not take back what was
// acknowledged, and keeps no memory region.
func TestResponderDuplicateRead(t *testing.T) {
	c := newCore(t)
	c.recv(0)
	read := pkt{op: header.ReadRequest, psn: coreRQPSN, va: c.mr.addr, rkey: c.mr.key, dmaLen: 4}
	c.gets(read, pkt{op: header.SendOnly, psn: 0, ask: true})
	c.sends()
	c.gets(read)
	c.wantSent(pkt{op: header.ReadRespOnly, psn: coreRQPSN, aeth: header.ACKNoCredits})
	if r := &c.e.rsp; r.acked != 1 {
		t.Errorf("all before %#x is acknowledged, want 1", r.acked)
	}
	for i, j := range c.e.rsp.jobs {
		if j.mr != nil {
			t.Errorf("job %d keeps a memory region", i)
		}
	}
}

// TestResponderOldAnswers: an ACK that only repeats another one is no further answer that the
// peer may have lost.
func TestResponderOldAnswers(t *testing.T) {
	c := newCore(t)
	w := c.write(header.WriteOnly, coreRQPSN, 0, 1, []byte{1})
	for range 5 {
		c.gets(w)
		c.wantSent(ack(coreRQPSN))
	}
	if n := c.e.rsp.past.answers; n != 1 {
		t.Errorf("%d answers, want 1", n)
	}
}

// TestResponderReady: one READ is enough to have something to send.
func TestResponderReady(t *testing.T) {
	c := newCore(t)
	if c.e.ready() {
		t.Error("ready with nothing to send")
	}
	c.gets(pkt{op: header.ReadRequest, psn: coreRQPSN, va: c.mr.addr, rkey: c.mr.key, dmaLen: 4})
	if !c.e.ready() {
		t.Error("not ready to answer a READ")
	}
}

// TestResponderWithoutSendQueue: a queue pair without a send queue answers its peer.
func TestResponderWithoutSendQueue(t *testing.T) {
	c := newCore(t)
	c.e.req.sq.ring = nil
	c.recv(0)
	c.gets(pkt{op: header.SendOnly, psn: coreRQPSN, ask: true})
	c.wantSent(ack(coreRQPSN))
}
