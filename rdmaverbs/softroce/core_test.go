// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
)

// core is one endpoint alone: the test plays its peer, packet by packet, and
// its clock.
type core struct {
	t   testing.TB
	e   *endpoint
	now instant
	mr  *mr
	buf []byte
	ids uint64
}

const (
	coreMTU   = 256
	coreQPN   = 0x111111
	peerQPN   = 0x222222
	coreSQPSN = 0xfffffe // wraps after two packets
	coreRQPSN = 0xffffff
	coreReads = 2
)

func newCore(t testing.TB, change ...func(*rdmaverbs.PathInfo)) *core {
	t.Helper()
	dev := new(Device)
	c := &core{t: t}
	c.e = &endpoint{
		qpn: coreQPN, state: rdmaverbs.QPSInit, pd: &pd{dev: dev}, mrs: &dev.mrs,
		access: rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteRead | rdmaverbs.AccessRemoteWrite,
		sendCQ: newCQ(dev, 64, nil), recvCQ: newCQ(dev, 64, nil),
	}
	c.e.req.ring = make([]wqe, 16)
	c.e.rq.ring = make([]recvWQE, 16)
	c.mr, c.buf = c.register(1<<16, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteRead|rdmaverbs.AccessRemoteWrite)
	p := rdmaverbs.PathInfo{
		DQPN: peerQPN, SQPSN: coreSQPSN, RQPSN: coreRQPSN, PathMTU: rdmaverbs.MTU256,
		Timeout: 10, RetryCnt: 3, RNRRetry: 2, MinRNR: 12, MaxRdAtom: coreReads, MaxDestRd: coreReads,
	}
	for _, f := range change {
		f(&p)
	}
	c.e.toRTR(&p)
	c.e.toRTS(&p, windowLimit{packets: 64, bytes: 1 << 20})
	return c
}

func (c *core) register(n int, access rdmaverbs.Access) (*mr, []byte) {
	c.t.Helper()
	buf := make([]byte, n)
	m, err := c.e.pd.RegisterMR(buf, access)
	if err != nil {
		c.t.Fatal(err)
	}
	return m.(*mr), buf
}

// sentPacket is a packet that the endpoint sent, its payload joined.
type sentPacket struct {
	header.Transport
	op  header.Opcode
	psn psn
}

// sends takes all that the endpoint wants to send now.
func (c *core) sends() []sentPacket {
	c.t.Helper()
	var out []sentPacket
	b := batches.Get().(*batch)
	for {
		c.e.fill(c.now, b)
		if len(b.pkts) == 0 {
			b.reset()
			c.e.settle()
			return out
		}
		for _, p := range b.pkts {
			raw := slices.Concat(p.hdr, p.payload[0], p.payload[1], make([]byte, p.hdr[1]>>4&3))
			t, err := header.ParseTransport(raw)
			if err != nil {
				c.t.Fatalf("sent %x: %v", raw, err)
			}
			if t.BTH.DestQP() != peerQPN || t.BTH.PKey() != header.DefaultPKey || t.BTH.TVer() != 0 {
				c.t.Fatalf("sent with wrong base header: %+v", t.BTH.Fields())
			}
			out = append(out, sentPacket{t, t.BTH.Opcode(), psn(t.BTH.PSN())})
		}
		b.reset()
		c.e.sent()
	}
}

// pkt is a packet from the peer.
type pkt struct {
	op      header.Opcode
	psn     psn
	payload []byte
	ask     bool
	imm     uint32
	va      uint64
	rkey    uint32
	dmaLen  int
	aeth    header.Syndrome
}

func (p pkt) bytes() []byte {
	n := p.op.HeaderLen()
	if n == 0 {
		n = header.BTHLen
	}
	b := make([]byte, n)
	header.BTH(b).Encode(&header.BTHFields{
		Opcode: p.op, PKey: header.DefaultPKey, DestQP: coreQPN, PSN: uint32(p.psn), AckReq: p.ask, PadCount: uint8(-len(p.payload) & 3),
	})
	rest := b[header.BTHLen:]
	if p.op.HasRETH() {
		header.RETH(rest).Encode(&header.RETHFields{VA: p.va, RKey: p.rkey, DMALen: uint32(p.dmaLen)})
		rest = rest[header.RETHLen:]
	}
	if p.op.HasAETH() {
		header.AETH(rest).Encode(p.aeth, 0)
		rest = rest[header.AETHLen:]
	}
	if p.op.HasImmDt() {
		header.ImmDt(rest).SetImm(p.imm)
	}
	return append(append(b, p.payload...), make([]byte, -len(p.payload)&3)...)
}

// gets delivers packets from the peer.
func (c *core) gets(ps ...pkt) {
	c.t.Helper()
	for _, p := range ps {
		c.getsRaw(p.bytes())
	}
}

func (c *core) getsRaw(b []byte) {
	t, err := header.ParseTransport(b)
	switch {
	case t.BTH == nil:
	case err != nil:
		c.e.receiveBad(t.BTH)
	default:
		c.e.receive(c.now, &t)
	}
	c.e.settle()
}

// write is a WRITE packet to the core's memory at offset off.
func (c *core) write(op header.Opcode, at psn, off, dmaLen int, payload []byte) pkt {
	return pkt{op: op, psn: at, va: c.mr.addr + uint64(off), rkey: c.mr.key, dmaLen: dmaLen, payload: payload, ask: true}
}

func ack(at psn) pkt { return pkt{op: header.Acknowledge, psn: at, aeth: header.ACKNoCredits} }

func nak(at psn, s header.Syndrome) pkt { return pkt{op: header.Acknowledge, psn: at, aeth: s} }

// post posts a signaled request of n bytes; IDs count from 1.
func (c *core) post(op rdmaverbs.Opcode, n int) {
	c.t.Helper()
	c.ids++
	r := &c.e.req
	w := r.post()
	w.id, w.op, w.flags = c.ids, op, rdmaverbs.Signaled
	w.raddr, w.rkey = 0x5000, 0x77
	w.length = n
	if n > 0 {
		w.sg[0] = piece{mr: c.mr, n: n}
	}
	r.posted(w, c.e.mtu)
	c.e.settle()
}

func (c *core) recv(n int) {
	c.ids++
	w := recvWQE{id: c.ids}
	if n > 0 {
		w.sg = piece{mr: c.mr, off: 0x8000, n: n}
	}
	c.e.rq.push(w)
}

// done takes the completions of a queue.
func done(q *cq) []rdmaverbs.WC {
	wcs := make([]rdmaverbs.WC, 64)
	return wcs[:q.Poll(wcs)]
}

// wantSent checks opcodes and PSNs of what is sent next.
func (c *core) wantSent(want ...pkt) []sentPacket {
	c.t.Helper()
	got := c.sends()
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = got[i].op == want[i].op && got[i].psn == want[i].psn
		if ok && got[i].AETH != nil {
			ok = got[i].AETH.Syndrome() == want[i].aeth || want[i].op != header.Acknowledge
		}
	}
	if !ok {
		for _, p := range got {
			s := ""
			if p.AETH != nil {
				s = p.AETH.Syndrome().String()
			}
			c.t.Logf("sent %v, PSN %#x %s", p.op, p.psn, s)
		}
		for _, p := range want {
			c.t.Logf("want %v, PSN %#x %v", p.op, p.psn, p.aeth)
		}
		c.t.FailNow()
	}
	return got
}

func (c *core) wantStatus(q *cq, want ...rdmaverbs.WCStatus) {
	c.t.Helper()
	var got []rdmaverbs.WCStatus
	for _, wc := range done(q) {
		got = append(got, wc.Status)
	}
	if !slices.Equal(got, want) {
		c.t.Fatalf("completed %v, want %v", got, want)
	}
}

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
	// A gap is told once.
	c.gets(send(3, "e"), send(4, "f"))
	c.wantSent(nak(2, header.NAKSequence))
	c.gets(send(5, "g"))
	c.wantSent()
	// The missing packet ends the gap; then the next gap is told.
	c.gets(send(2, "d"))
	c.wantSent(ack(2))
	c.gets(send(9, "x"))
	c.wantSent(nak(3, header.NAKSequence))
	// A NAK that was not sent yet is dropped if its reason went.
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
	// Not asked for, not acknowledged.
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
	// Again, from the middle, as a requester does that lost the first half.
	c.gets(read(0, 10+coreMTU, 600-coreMTU))
	got = c.wantSent(resp(header.ReadRespFirst, 0), resp(header.ReadRespLast, 1))
	if !bytes.Equal(join(got), c.buf[10+coreMTU:610]) {
		t.Error("data read again differs")
	}
	// A duplicate that claims more than was executed, or a key that ended.
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

// TestRequesterSegments checks opcodes, PSNs and AckReq of a message.
func TestRequesterSegments(t *testing.T) {
	c := newCore(t)
	for i := range c.buf {
		c.buf[i] = byte(i)
	}
	c.post(rdmaverbs.OpWriteImm, 2*coreMTU+5)
	got := c.wantSent(pkt{op: header.WriteFirst, psn: 0xfffffe}, pkt{op: header.WriteMiddle, psn: 0xffffff}, pkt{op: header.WriteLastImm, psn: 0})
	if h := got[0].RETH; h.VA() != 0x5000 || h.RKey() != 0x77 || h.DMALen() != 2*coreMTU+5 {
		t.Errorf("RETH %x", []byte(h))
	}
	if got[0].BTH.AckReq() || got[1].BTH.AckReq() || !got[2].BTH.AckReq() {
		t.Error("AckReq is wanted on the last packet only")
	}
	if got[2].BTH.PadCount() != 3 || len(got[2].Payload) != 5 {
		t.Errorf("last packet: pad %d, %d bytes", got[2].BTH.PadCount(), len(got[2].Payload))
	}
	c.gets(ack(0xffffff))
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	if c.e.deadline() != never {
		t.Error("a timer runs with nothing outstanding")
	}
}

// TestRequesterNAK checks what each NAK does.
func TestRequesterNAK(t *testing.T) {
	for s, want := range map[header.Syndrome]rdmaverbs.WCStatus{
		header.NAKInvalid:      rdmaverbs.StatusRemInvReqErr,
		header.NAKRemoteAccess: rdmaverbs.StatusRemAccessErr,
		header.NAKRemoteOp:     rdmaverbs.StatusRemOpErr,
		0x7f:                   rdmaverbs.StatusBadRespErr,
	} {
		c := newCore(t)
		for range 4 {
			c.post(rdmaverbs.OpSend, 10)
		}
		c.sends()
		c.recv(0)
		c.gets(nak(0, s))
		c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, want, rdmaverbs.StatusFlushErr)
		c.wantStatus(c.e.recvCQ, rdmaverbs.StatusFlushErr)
		if c.e.state != rdmaverbs.QPSErr || !c.e.fatal {
			t.Errorf("%v: state %d", s, c.e.state)
		}
		c.wantSent()
	}
}

// TestRequesterGoBack checks go-back-N: on a NAK once, on ghosts never.
func TestRequesterGoBack(t *testing.T) {
	only := func(at psn) pkt { return pkt{op: header.SendOnly, psn: at} }
	c := newCore(t)
	for range 5 {
		c.post(rdmaverbs.OpSend, 10)
	}
	c.wantSent(only(0xfffffe), only(0xffffff), only(0), only(1), only(2))
	// Ghosts: before the oldest, beyond the newest.
	for _, p := range []pkt{ack(0xfffffd), ack(3), ack(0x7ffff0), nak(0xfffffd, header.NAKSequence), nak(3, header.NAKRemoteOp),
		{op: header.ReadRespOnly, psn: 3, aeth: header.ACKNoCredits}} {
		c.gets(p)
	}
	c.wantSent()
	if c.e.stats.ghosts != 6 {
		t.Errorf("%d ghosts counted, want 6", c.e.stats.ghosts)
	}
	c.gets(nak(0, header.NAKSequence))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	c.wantSent(only(0), only(1), only(2))
	c.gets(nak(0, header.NAKSequence)) // a copy of the same
	c.wantSent()
	c.gets(ack(0), nak(1, header.NAKSequence))
	c.wantSent(only(1), only(2))
	c.gets(ack(2))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	if c.e.req.win.size >= 64 {
		t.Errorf("window is %d after losses", c.e.req.win.size)
	}
}

// TestRequesterTimeout checks the local ACK timer to the nanosecond: the
// retries it makes, and when it gives up.
func TestRequesterTimeout(t *testing.T) {
	c := newCore(t) // timeout 10: 4.194304 ms, 3 retries
	const period = 4194304 * time.Nanosecond
	c.post(rdmaverbs.OpWrite, 10)
	c.wantSent(pkt{op: header.WriteOnly, psn: 0xfffffe})
	for retry := range 3 {
		c.now = c.now.add(period - 1)
		c.e.expire(c.now)
		c.wantSent()
		c.now = c.now.add(1)
		if d := c.e.deadline(); d != c.now {
			t.Fatalf("retry %d: deadline %v, want %v", retry, d, c.now)
		}
		c.e.expire(c.now)
		c.wantSent(pkt{op: header.WriteOnly, psn: 0xfffffe})
	}
	c.now = c.now.add(period - 1)
	c.e.expire(c.now)
	c.wantStatus(c.e.sendCQ)
	c.now = c.now.add(1)
	c.e.expire(c.now)
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusRetryExcErr)
	if c.e.state != rdmaverbs.QPSErr || c.e.deadline() != never {
		t.Errorf("state %d, deadline %d", c.e.state, c.e.deadline())
	}
	if c.e.stats.timeouts != 4 {
		t.Errorf("%d timeouts counted, want 4", c.e.stats.timeouts)
	}
}

// TestRequesterNoTimeout checks that a timeout code of 0 means none.
func TestRequesterNoTimeout(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 0 })
	c.post(rdmaverbs.OpWrite, 10)
	c.sends()
	for range 100 {
		c.now = c.now.add(time.Second)
		c.e.expire(c.now)
		c.sends()
	}
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0xfffffe))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
}

// TestRequesterProbe checks that a lost tail is repaired before the local ACK
// timeout, and that this takes none of the retries.
func TestRequesterProbe(t *testing.T) {
	c := newCore(t, func(p *rdmaverbs.PathInfo) { p.Timeout = 15 })
	for range 3 {
		c.post(rdmaverbs.OpSend, 10)
	}
	c.sends()
	c.now = c.now.add(time.Millisecond)
	c.gets(ack(0xfffffe)) // asked for each: the round-trip time is known
	at := c.e.deadline()
	if d := at.since(c.now); d < probeMin || d >= 134*time.Millisecond {
		t.Fatalf("probe after %v", d)
	}
	c.now = at
	c.e.expire(c.now)
	c.wantSent(pkt{op: header.SendOnly, psn: 0xffffff}, pkt{op: header.SendOnly, psn: 0})
	if c.e.req.retries != 3 || c.e.stats.probes != 1 {
		t.Errorf("%d retries left, %d probes", c.e.req.retries, c.e.stats.probes)
	}
	if d2 := c.e.deadline(); d2.since(c.now) <= at.since(0)/2 {
		t.Errorf("second probe after %v, want it to back off", d2.since(c.now))
	}
	c.gets(ack(0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
}

// TestRequesterRNR checks the delay an RNR NAK asks for, and the retries.
func TestRequesterRNR(t *testing.T) {
	const delay = 640 * time.Microsecond // timer code 12
	only := func(at psn) pkt { return pkt{op: header.SendOnly, psn: at} }
	c := newCore(t)
	c.post(rdmaverbs.OpSend, 10)
	c.post(rdmaverbs.OpSend, 10)
	c.wantSent(only(0xfffffe), only(0xffffff))
	for range 2 {
		c.gets(nak(0xfffffe, header.RNR(12)), nak(0xfffffe, header.RNR(12)))
		if d := c.e.deadline().since(c.now); d != delay {
			t.Fatalf("waits %v, want %v", d, delay)
		}
		c.now = c.now.add(delay - 1)
		c.e.expire(c.now)
		c.wantSent()
		c.now = c.now.add(1)
		c.e.expire(c.now)
		c.wantSent(only(0xfffffe), only(0xffffff))
	}
	// Progress renews the retries.
	c.gets(nak(0xffffff, header.RNR(12)))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	c.now = c.now.add(delay)
	for range 2 {
		c.e.expire(c.now)
		c.wantSent(only(0xffffff))
		c.gets(nak(0xffffff, header.RNR(12)))
		c.wantStatus(c.e.sendCQ)
		c.now = c.now.add(delay)
		if c.e.req.rnrs == 0 {
			break
		}
	}
	c.e.expire(c.now)
	c.wantSent(only(0xffffff))
	c.gets(nak(0xffffff, header.RNR(12)))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusRNRRetryExcErr)
	if c.e.state != rdmaverbs.QPSErr {
		t.Errorf("state %d", c.e.state)
	}

	// Seven is without end.
	c = newCore(t, func(p *rdmaverbs.PathInfo) { p.RNRRetry = 7 })
	c.post(rdmaverbs.OpSend, 10)
	for range 100 {
		c.wantSent(only(0xfffffe))
		c.gets(nak(0xfffffe, header.RNR(1)))
		c.now = c.e.deadline()
		c.e.expire(c.now)
	}
	c.wantStatus(c.e.sendCQ)
}

// TestRequesterRead checks READs: implied acknowledgement, lost responses,
// wrong responses, the number outstanding.
func TestRequesterRead(t *testing.T) {
	resp := func(op header.Opcode, at psn, n int) pkt {
		return pkt{op: op, psn: at, payload: bytes.Repeat([]byte{byte(at) + 1}, n), aeth: header.ACKNoCredits}
	}
	request := func(at psn) pkt { return pkt{op: header.ReadRequest, psn: at} }
	c := newCore(t)
	c.post(rdmaverbs.OpWrite, 10)         // fffffe
	c.post(rdmaverbs.OpRead, 3*coreMTU-6) // ffffff to 1
	c.post(rdmaverbs.OpRead, 1)           // 2
	c.post(rdmaverbs.OpRead, 0)           // 3: one too many outstanding
	c.wantSent(pkt{op: header.WriteOnly, psn: 0xfffffe}, request(0xffffff), request(2))
	// The response acknowledges the WRITE before it.
	c.gets(resp(header.ReadRespFirst, 0xffffff, coreMTU))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	// The second response is lost: ask again for it and what follows.
	c.gets(resp(header.ReadRespLast, 1, coreMTU-6), resp(header.ReadRespOnly, 2, 1))
	got := c.wantSent(request(0), request(2))
	if h := got[0].RETH; h.VA() != 0x5000+coreMTU || h.DMALen() != 2*coreMTU-6 {
		t.Errorf("asked again for %d bytes at %#x", h.DMALen(), h.VA())
	}
	// An ACK alone beyond it says the same, but that was seen already.
	c.gets(ack(2))
	c.wantSent()
	c.gets(resp(header.ReadRespFirst, 0, coreMTU), resp(header.ReadRespLast, 1, coreMTU-6))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
	c.wantSent(request(3))
	c.gets(resp(header.ReadRespOnly, 2, 1), resp(header.ReadRespOnly, 3, 0))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusSuccess)
	if c.e.req.reads != 0 {
		t.Errorf("%d READs counted as outstanding", c.e.req.reads)
	}

	for name, p := range map[string]pkt{
		"too short": resp(header.ReadRespFirst, 0xfffffe, coreMTU-4),
		"too long":  resp(header.ReadRespOnly, 0xfffffe, coreMTU),
		"ends":      resp(header.ReadRespLast, 0xfffffe, coreMTU),
	} {
		c := newCore(t)
		c.post(rdmaverbs.OpRead, 2*coreMTU)
		c.sends()
		c.gets(p)
		t.Log(name)
		c.wantStatus(c.e.sendCQ, rdmaverbs.StatusBadRespErr)
	}

	// A response of nobody's READ changes nothing.
	c = newCore(t)
	c.post(rdmaverbs.OpSend, 4)
	c.sends()
	c.gets(resp(header.ReadRespOnly, 0xfffffe, 0))
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0xfffffe))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess)
}

// TestRequesterWindow checks that no more than the window is outstanding and
// that its last packet asks for an acknowledgement.
func TestRequesterWindow(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpWrite, 100*coreMTU)
	got := c.sends()
	if len(got) != 64 || !got[63].BTH.AckReq() {
		t.Fatalf("%d packets sent, want the window of 64", len(got))
	}
	asked := 0
	for _, p := range got {
		if p.BTH.AckReq() {
			asked++
		}
	}
	if asked < 4 || asked > 8 {
		t.Errorf("%d of 64 packets ask for an acknowledgement", asked)
	}
	c.gets(ack(got[9].psn))
	if n := len(c.sends()); n != 10 {
		t.Errorf("%d packets sent after 10 were acknowledged", n)
	}
}

// TestCompletionWaitsForBatch checks that a request does not complete while
// its memory is being sent, for an acknowledgement that is quicker than the
// system call.
func TestCompletionWaitsForBatch(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpWrite, 10)
	b := batches.Get().(*batch)
	c.e.fill(c.now, b)
	c.gets(ack(0xfffffe))
	c.wantStatus(c.e.sendCQ)
	c.post(rdmaverbs.OpWrite, 10)
	c.e.toError()
	c.wantStatus(c.e.sendCQ)
	closed := make(chan error)
	go func() { closed <- c.mr.Close() }()
	select {
	case <-closed:
		t.Fatal("memory region closed while a batch refers to it")
	case <-time.After(10 * time.Millisecond):
	}
	b.reset()
	c.e.sent()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusFlushErr)
}

// TestMemoryClosedBeforeSend checks a request whose region is closed before
// it is sent.
func TestMemoryClosedBeforeSend(t *testing.T) {
	c := newCore(t)
	c.post(rdmaverbs.OpSend, 0)
	c.sends()
	c.post(rdmaverbs.OpWrite, 10)
	if err := c.mr.Close(); err != nil {
		t.Fatal(err)
	}
	c.wantSent()
	c.wantStatus(c.e.sendCQ)
	c.gets(ack(0xfffffe))
	c.wantStatus(c.e.sendCQ, rdmaverbs.StatusSuccess, rdmaverbs.StatusLocProtErr)
}

// TestOverrun checks that a consumer that does not poll stops its queue pair
// and loses nothing.
func TestOverrun(t *testing.T) {
	c := newCore(t)
	c.e.sendCQ = newCQ(new(Device), 4, nil)
	if err := c.e.sendCQ.attach(2); err != nil {
		t.Fatal(err)
	}
	at := psn(coreSQPSN)
	for range 5 {
		c.post(rdmaverbs.OpSend, 0)
		c.sends()
		c.gets(ack(at))
		at = at.add(1)
	}
	if c.e.state != rdmaverbs.QPSErr || !c.e.fatal {
		t.Errorf("state %d after an overrun", c.e.state)
	}
	c.post(rdmaverbs.OpSend, 0)
	ok := rdmaverbs.StatusSuccess
	c.wantStatus(c.e.sendCQ, ok, ok, ok, ok, ok, rdmaverbs.StatusFlushErr)
}

// TestNoAllocation runs the whole path of a message through both halves.
func TestNoAllocation(t *testing.T) {
	c := newCore(t)
	b := batches.Get().(*batch)
	at, in := psn(coreSQPSN), psn(coreRQPSN)
	wcs := make([]rdmaverbs.WC, 4)
	ackBytes, sendBytes := ack(0).bytes(), pkt{op: header.SendOnly, payload: make([]byte, 44), ask: true}.bytes()
	round := func() {
		c.post(rdmaverbs.OpWrite, 3*coreMTU)
		c.recv(64)
		header.BTH(sendBytes).SetPSN(uint32(in))
		c.getsRaw(sendBytes)
		c.e.fill(c.now, b)
		b.reset()
		c.e.sent()
		header.BTH(ackBytes).SetPSN(uint32(at.add(2)))
		c.getsRaw(ackBytes)
		at, in = at.add(3), in.add(1)
		if c.e.sendCQ.Poll(wcs) != 1 || c.e.recvCQ.Poll(wcs) != 1 {
			t.Fatal("not completed")
		}
	}
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// FuzzEndpoint has the peer send anything at all.
func FuzzEndpoint(f *testing.F) {
	c := newCore(f)
	var seed []byte
	add := func(ps ...pkt) {
		seed = seed[:0]
		for _, p := range ps {
			b := p.bytes()
			seed = append(append(seed, byte(len(b)>>8), byte(len(b))), b...)
		}
		f.Add(bytes.Clone(seed))
	}
	add(pkt{op: header.SendFirst, psn: coreRQPSN, payload: make([]byte, coreMTU)}, pkt{op: header.SendLast, psn: 0, payload: []byte("x")})
	add(c.write(header.WriteOnly, coreRQPSN, 0, 3, []byte("abc")), ack(0xfffffe), nak(0, header.NAKSequence))
	add(pkt{op: header.ReadRequest, psn: coreRQPSN, va: c.mr.addr, rkey: c.mr.key, dmaLen: 600})
	add(pkt{op: header.ReadRespOnly, psn: 0, payload: make([]byte, 9), aeth: header.ACKNoCredits}, nak(0xffffff, header.RNR(3)))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := newCore(t)
		guard := bytes.Repeat([]byte{0x5a}, 4096)
		// A region the peer has no right to.
		if _, err := c.e.pd.RegisterMR(guard, rdmaverbs.AccessLocalWrite); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			c.recv(300)
		}
		c.post(rdmaverbs.OpSend, 300)
		c.post(rdmaverbs.OpRead, 300)
		c.post(rdmaverbs.OpWrite, 0)
		for len(in) >= 2 {
			n := min(int(in[0])<<8|int(in[1]), len(in)-2)
			p := bytes.Clone(in[2 : 2+n])
			in = in[2+n:]
			if len(p) >= header.BTHLen+header.RETHLen && header.Opcode(p[0]).HasRETH() && p[1]&1 == 0 {
				// Reach further: keys and addresses are different each run.
				h := header.RETH(p[header.BTHLen:])
				h.Encode(&header.RETHFields{VA: c.mr.addr + h.VA()&0x1ffff, RKey: c.mr.key, DMALen: h.DMALen()})
			}
			if len(p) > 1 {
				p[1] &^= 1
			}
			c.sends()
			c.getsRaw(p)
			if d := c.e.deadline(); d != never && d < c.now.add(10*time.Second) {
				c.now = c.now.add(time.Millisecond)
				c.e.expire(c.now)
			}
		}
		if len(c.sends()) > 1000 {
			t.Error("sends without end")
		}
		if !bytes.Equal(guard, bytes.Repeat([]byte{0x5a}, 4096)) {
			t.Error("wrote where it had no right to")
		}
		r := &c.e.req
		if r.una.sub(r.nxt) > 0 || r.nxt.sub(r.max) > 0 || r.max.sub(r.end) > 0 {
			t.Errorf("PSNs out of order: %+v", r)
		}
	})
}
