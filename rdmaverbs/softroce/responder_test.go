// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"testing"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// TestResponderRefuses sends each kind of request that must be refused, and
// checks the NAK, that the endpoint fails, and that no memory changed.
func TestResponderRefuses(t *testing.T) {
	full, part := bytes.Repeat([]byte{0xaa}, coreMTU), []byte("abc")
	const p0, p1 = psn(coreRQPSN), psn(0)
	inv, acc, op := header.NAKInvalid, header.NAKRemoteAccess, header.NAKRemoteOp
	tests := []struct {
		name string
		want header.Syndrome
		at   psn
		recv rdmaverbs.WCStatus // of a receive request posted before
		send func(c *core) []pkt
	}{
		{"MiddleFirst", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{{op: header.SendMiddle, psn: p0, payload: full}} }},
		{"LastFirst", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{{op: header.SendLast, psn: p0, payload: part}} }},
		{"WriteMiddleFirst", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{{op: header.WriteMiddle, psn: p0, payload: full}} }},
		{"FirstTwice", inv, p1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{{op: header.SendFirst, psn: p0, payload: full}, {op: header.SendFirst, psn: p1, payload: full}}
		}},
		{"OnlyInMessage", inv, p1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{{op: header.SendFirst, psn: p0, payload: full}, {op: header.SendOnly, psn: p1, payload: part}}
		}},
		{"WriteInSend", inv, p1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{{op: header.SendFirst, psn: p0, payload: full}, {op: header.WriteLast, psn: p1, payload: part}}
		}},
		{"ReadInWrite", inv, p1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{c.write(header.WriteFirst, p0, 0, 300, make([]byte, coreMTU)), {op: header.ReadRequest, psn: p1, va: c.mr.addr, rkey: c.mr.key, dmaLen: 4}}
		}},
		{"FirstTooShort", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{{op: header.SendFirst, psn: p0, payload: full[:252]}} }},
		{"OnlyTooLong", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{{op: header.SendOnly, psn: p0, payload: append(full, 1, 2, 3, 4)}}
		}},
		{"LastEmpty", inv, p1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{{op: header.SendFirst, psn: p0, payload: full}, {op: header.SendLast, psn: p1}}
		}},
		{"WriteLongerThanSaid", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{c.write(header.WriteOnly, p0, 0, 2, part)} }},
		{"WriteShorterThanSaid", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{c.write(header.WriteOnly, p0, 0, 4, part)} }},
		{"WriteFirstIsAll", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{c.write(header.WriteFirst, p0, 0, coreMTU, full)} }},
		{"WriteTooLong", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{c.write(header.WriteFirst, p0, 0, maxMsg+1, full)} }},
		{"ReadTooLong", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			return []pkt{{op: header.ReadRequest, psn: p0, va: c.mr.addr, rkey: c.mr.key, dmaLen: maxMsg + 1}}
		}},
		{"TooManyReads", inv, 1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			r := pkt{op: header.ReadRequest, va: c.mr.addr, rkey: c.mr.key}
			r1, r2, r3 := r, r, r
			r1.psn, r2.psn, r3.psn = p0, p1, 1
			return []pkt{r1, r2, r3}
		}},
		{"UnknownOpcode", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{{op: 0x14, psn: p0, payload: full}} }},
		{"NoWriteAccess", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			c.e.access = rdmaverbs.AccessRemoteRead
			return []pkt{c.write(header.WriteOnly, p0, 0, 3, part)}
		}},
		{"NoReadAccess", inv, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			c.e.access = rdmaverbs.AccessRemoteWrite
			return []pkt{{op: header.ReadRequest, psn: p0, va: c.mr.addr, rkey: c.mr.key, dmaLen: 4}}
		}},
		{"NoSuchKey", acc, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			w := c.write(header.WriteOnly, p0, 0, 3, part)
			w.rkey ^= 0x10000
			return []pkt{w}
		}},
		{"KeyZero", acc, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			w := c.write(header.WriteOnly, p0, 0, 3, part)
			w.rkey = 0
			return []pkt{w}
		}},
		{"BeyondEnd", acc, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{c.write(header.WriteOnly, p0, 1<<16-2, 3, part)} }},
		{"BeforeStart", acc, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt { return []pkt{c.write(header.WriteOnly, p0, -1, 3, part)} }},
		{"ClosedDuringMessage", acc, p1, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			c.gets(c.write(header.WriteFirst, p0, 0, 300, make([]byte, coreMTU)))
			c.mr.Close()
			return []pkt{{op: header.WriteLast, psn: p1, payload: full[:44]}}
		}},
		{"ClosedBeforeResponse", acc, p0, rdmaverbs.StatusFlushErr, func(c *core) []pkt {
			c.gets(pkt{op: header.ReadRequest, psn: p0, va: c.mr.addr, rkey: c.mr.key, dmaLen: 4})
			c.mr.Close()
			return nil
		}},
		{"ReceiveTooSmall", inv, p0, rdmaverbs.StatusLocLenErr, func(c *core) []pkt { return []pkt{{op: header.SendOnly, psn: p0, payload: append(part, part...)}} }},
		{"ReceiveTooSmallLater", inv, p1, rdmaverbs.StatusLocLenErr, func(c *core) []pkt {
			c.e.rq.pop()
			c.recv(coreMTU)
			return []pkt{{op: header.SendFirst, psn: p0, payload: make([]byte, coreMTU)}, {op: header.SendLast, psn: p1, payload: part}}
		}},
		{"ReceiveMemoryClosed", op, p0, rdmaverbs.StatusLocProtErr, func(c *core) []pkt {
			c.mr.Close()
			return []pkt{{op: header.SendOnly, psn: p0, payload: part}}
		}},
		{"ReceiveMemoryReadOnly", op, p0, rdmaverbs.StatusLocProtErr, func(c *core) []pkt {
			c.e.rq.ring[c.e.rq.head].bad = true
			return []pkt{{op: header.SendOnly, psn: p0, payload: part}}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCore(t)
			c.recv(5)
			if tt.name == "FirstTwice" || tt.name == "OnlyInMessage" || tt.name == "WriteInSend" || tt.name == "LastEmpty" {
				c.e.rq.pop()
				c.recv(1000)
			}
			ps := tt.send(c)
			c.gets(ps...)
			got := c.sends()
			if len(got) == 0 {
				t.Fatal("nothing sent")
			}
			n := got[len(got)-1]
			if n.op != header.Acknowledge || n.psn != tt.at || n.AETH.Syndrome() != tt.want {
				t.Fatalf("sent %v for PSN %#x, syndrome %v; want %v for %#x", n.op, n.psn, n.AETH.Syndrome(), tt.want, tt.at)
			}
			if c.e.state != rdmaverbs.QPSErr || !c.e.fatal {
				t.Errorf("state %d, fatal %v", c.e.state, c.e.fatal)
			}
			c.wantStatus(c.e.recvCQ, tt.recv)
			// In the error state nothing is answered or executed.
			c.gets(ps...)
			c.wantSent()
			for i, b := range c.buf {
				if b != 0 && (i < 0x8000 || i >= 0x8000+coreMTU) {
					t.Fatalf("byte %d was written", i)
				}
			}
		})
	}
}

// TestResponderSequence checks the answers to requests out of order and
// duplicate.
func TestResponderSequence(t *testing.T) {
	c := newCore(t)
	send := func(at psn, text string) pkt {
		return pkt{op: header.SendOnly, psn: at, payload: []byte(text), ask: true}
	}
	for range 8 {
		c.recv(100)
	}
	// A batch is acknowledged once, by its last.
	c.gets(send(0xffffff, "a"), send(0, "b"), send(1, "c"))
	got := c.wantSent(ack(1))
	if got[0].AETH.MSN() != 3 {
		t.Errorf("MSN %d, want 3", got[0].AETH.MSN())
	}
	// One NAK for each gap.
	c.gets(send(3, "e"), send(4, "f"))
	c.wantSent(nak(2, header.NAKSequence))
	c.gets(send(5, "g"))
	c.wantSent()
	// The missing packet ends the gap. The next gap gets a NAK again.
	c.gets(send(2, "d"))
	c.wantSent(ack(2))
	c.gets(send(9, "x"))
	c.wantSent(nak(3, header.NAKSequence))
	// A NAK that was not sent yet is dropped if its reason is gone.
	c.gets(send(3, "e"), send(5, "g"), send(4, "f"))
	c.wantSent(ack(4))
	// Duplicates are acknowledged and not executed.
	n := c.e.rq.n
	c.gets(send(0xffffff, "a"), send(2, "d"))
	c.wantSent(ack(4))
	if c.e.rq.n != n {
		t.Error("a duplicate used up a receive request")
	}
	if c.e.stats.duplicates != 2 {
		t.Errorf("%d duplicates counted, want 2", c.e.stats.duplicates)
	}
	for i, wc := range done(c.e.recvCQ) {
		if wc.ID != uint64(i+1) || wc.Len != 1 {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
	// Other services: a congestion notification, a datagram.
	c.gets(pkt{op: 0x81, psn: 5, payload: make([]byte, 16)}, pkt{op: 0x64, psn: 5, payload: make([]byte, 8)})
	c.wantSent()
	// Without AckReq there is no ACK.
	p := send(5, "g")
	p.ask = false
	c.gets(p)
	c.wantSent()
}

// TestResponderNotReady checks RNR NAKs: once until the request comes again.
func TestResponderNotReady(t *testing.T) {
	for _, op := range []header.Opcode{header.SendOnly, header.SendOnlyImm, header.WriteOnlyImm} {
		c := newCore(t)
		p := c.write(op, coreRQPSN, 0, 1, []byte("a"))
		q := p
		q.psn = 0
		c.gets(p, q)
		c.wantSent(nak(coreRQPSN, header.RNR(12)))
		if c.buf[0] != 0 {
			t.Errorf("%v was executed before it was refused", op)
		}
		c.gets(p)
		c.wantSent(nak(coreRQPSN, header.RNR(12)))
		c.recv(10)
		c.recv(10)
		c.gets(p, q)
		c.wantSent(ack(0))
		if n := len(done(c.e.recvCQ)); n != 2 || c.e.state != rdmaverbs.QPSRTS {
			t.Errorf("%v: %d completions, state %d", op, n, c.e.state)
		}
	}
}

// TestResponderRead checks READ responses: order, segmentation, AETH, and
// execution of duplicates.
func TestResponderRead(t *testing.T) {
	c := newCore(t)
	for i := range c.buf {
		c.buf[i] = byte(i * 7)
	}
	c.recv(0)
	read := func(at psn, off, n int) pkt {
		return pkt{op: header.ReadRequest, psn: at, va: c.mr.addr + uint64(off), rkey: c.mr.key, dmaLen: n}
	}
	resp := func(op header.Opcode, at psn) pkt { return pkt{op: op, psn: at, aeth: header.ACKNoCredits} }
	join := func(ps []sentPacket) (b []byte) {
		for _, p := range ps {
			b = append(b, p.Payload...)
		}
		return b
	}
	c.gets(read(0xffffff, 10, 600), pkt{op: header.SendOnly, psn: 2, ask: true})
	got := c.wantSent(resp(header.ReadRespFirst, 0xffffff), resp(header.ReadRespMid, 0), resp(header.ReadRespLast, 1), ack(2))
	if !bytes.Equal(join(got), c.buf[10:610]) {
		t.Error("read data differs")
	}
	if m := got[0].AETH.MSN(); m != 1 {
		t.Errorf("MSN of the response is %d, want 1", m)
	}
	// Again, from the middle, as by a requester that lost the first half of the
	// response.
	c.gets(read(0, 10+coreMTU, 600-coreMTU))
	got = c.wantSent(resp(header.ReadRespFirst, 0), resp(header.ReadRespLast, 1))
	if !bytes.Equal(join(got), c.buf[10+coreMTU:610]) {
		t.Error("data read again differs")
	}
	// A duplicate with more bytes than were executed, or with the key of a
	// closed region.
	c.gets(read(0, 10, 5*coreMTU))
	bad := read(0, 10, 8)
	bad.rkey ^= 0x10000
	c.gets(bad)
	c.wantSent()
	c.gets(read(3, 0, 0), read(4, 5, 1))
	c.wantSent(resp(header.ReadRespOnly, 3), resp(header.ReadRespOnly, 4))
	if c.e.state != rdmaverbs.QPSRTS {
		t.Errorf("state %d", c.e.state)
	}
	// Two new READs fit although duplicates wait.
	c.gets(read(3, 0, 0), read(4, 5, 1), read(5, 0, 1), read(6, 0, 1))
	c.wantSent(resp(header.ReadRespOnly, 5), resp(header.ReadRespOnly, 6))
}

// TestAcknowledgementLast: the acknowledgement that is due comes after requests,
// in the same batch, also where these fill it.
func TestAcknowledgementLast(t *testing.T) {
	c := newCore(t)
	c.e.toRTS(&rdmaverbs.PathInfo{SQPSN: coreSQPSN, MaxRdAtom: coreReads}, windowLimit{packets: 2 * batchLen, bytes: 1 << 20})
	const n = batchLen + 1 // packets
	c.gets(c.write(header.WriteOnly, coreRQPSN, 0, 3, []byte("abc")))
	c.post(rdmaverbs.OpWrite, n*coreMTU)
	got := c.sends()
	if len(got) != n+1 {
		t.Fatalf("%d packets sent, want %d", len(got), n+1)
	}
	for i := range got {
		if ack := got[i].op == header.Acknowledge; ack != (i == batchLen) {
			t.Errorf("packet %d is a %v", i, got[i].op)
		}
	}
}
