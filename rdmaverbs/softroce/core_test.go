// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
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
	c.e.req.sq.ring = make([]wqe, 16)
	c.e.rq.ring = make([]recvWQE, 16)
	c.mr, c.buf = c.register(1<<16, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteRead|rdmaverbs.AccessRemoteWrite)
	p := rdmaverbs.PathInfo{
		DQPN: peerQPN, SQPSN: coreSQPSN, RQPSN: coreRQPSN, PathMTU: smc.MTU256,
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

// sends returns all packets that the endpoint sends now.
func (c *core) sends() []sentPacket {
	c.t.Helper()
	var out []sentPacket
	b := batches.Get().(*batch)
	for {
		c.e.fill(c.now, b)
		if len(b.pkts) == 0 {
			b.reset()
			c.e.completeReady()
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
	c.e.completeReady()
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
	c.postPieces(op, piece{mr: c.mr, n: n}, piece{})
}

// postPieces is post for two pieces of memory, of any lengths.
func (c *core) postPieces(op rdmaverbs.Opcode, a, b piece) {
	c.ids++
	r := &c.e.req
	w := r.sq.slot()
	w.id, w.op, w.flags = c.ids, op, rdmaverbs.Signaled
	w.raddr, w.rkey = 0x5000, 0x77
	w.length = a.n + b.n
	for i, g := range []piece{a, b} {
		if g.n > 0 {
			w.sg[i] = g
		}
	}
	r.sq.push(w, c.e.mtu)
	c.e.completeReady()
}

func (c *core) recv(n int) {
	c.ids++
	w := recvWQE{id: c.ids}
	if n > 0 {
		w.sg = piece{mr: c.mr, off: 0x8000, n: n}
	}
	c.e.rq.push(w)
}

// done returns the completions of a queue.
func done(q *cq) []rdmaverbs.WC {
	wcs := make([]rdmaverbs.WC, 64)
	return wcs[:q.Poll(wcs)]
}

// wantSent checks opcodes and PSNs of the packets that are sent next.
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

// TestCompletionWaitsForBatch checks that a request does not complete while
// its memory is being sent, for an acknowledgement that is quicker than the
// system call.
func TestCompletionWaitsForBatch(t *testing.T) {
	testkind.System(t)
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
	// Real time: nothing must happen meanwhile.
	brief := time.After(10 * time.Millisecond)
	select {
	case <-closed:
		t.Fatal("memory region closed while a batch refers to it")
	case <-brief:
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

// FuzzEndpoint sends arbitrary packets from the peer.
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
				// Set valid keys and addresses in some packets: they are
				// different in each run.
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
		if r.una.sub(r.nxt) > 0 || r.nxt.sub(r.max) > 0 || r.max.sub(r.sq.end) > 0 {
			t.Errorf("PSNs out of order: %+v", r)
		}
	})
}
