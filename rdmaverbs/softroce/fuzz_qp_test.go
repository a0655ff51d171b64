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

// fuzzRegion is a memory region with what must be in it.
type fuzzRegion struct {
	mr     *mr
	buf    []byte
	must   []byte
	open   bool
	access rdmaverbs.Access
}

// span is a part of a region.
type span struct {
	r        *fuzzRegion
	from, to int // from may be out of the region
}

// fuzzQP is a queue pair between a program and a peer that both do what the fuzzer says.
type fuzzQP struct {
	*core
	q       *qp
	in      *fuzzBytes
	regions []*fuzzRegion
	foreign int // index of the region in another protection domain

	held     *batch // filled and not sent yet
	heldFrom psn    // the first PSN of the requests in held, or end of the queue
	ends     map[uint64]psn
	sends    []uint64
	recvs    []uint64
	reads    map[uint64][]span // READs posted: where the data may go
	wants    map[uint64][]span // receive requests posted
	signaled map[uint64]bool
	target   span // of the last RDMA WRITE that began
	before   fuzzPSNs
}

// fuzzPSNs are the PSNs of an endpoint at a time.
type fuzzPSNs struct{ una, nxt, max, end, expect psn }

const fuzzRegionLen = 4096

func newFuzzQP(t testing.TB, flags byte) *fuzzQP {
	c := newCore(t, func(p *rdmaverbs.PathInfo) {
		if flags&1 != 0 {
			p.RNRRetry = rnrInfinite
		}
		if flags&2 != 0 {
			p.MaxRdAtom, p.MaxDestRd = 0, 0
		}
	})
	f := &fuzzQP{core: c, ends: map[uint64]psn{}, reads: map[uint64][]span{}, wants: map[uint64][]span{}, signaled: map[uint64]bool{}}
	dev := c.e.pd.dev
	f.q = &qp{dev: dev, pd: c.e.pd, ep: *c.e}
	f.e = &f.q.ep
	f.e.writeOnly = flags&4 != 0
	if flags&8 != 0 {
		f.e.access &^= rdmaverbs.AccessRemoteWrite
	}
	if flags&16 != 0 {
		f.e.access &^= rdmaverbs.AccessRemoteRead
	}
	if flags&32 != 0 {
		f.e.state = rdmaverbs.QPSRTR
	}
	const lw, rr, rw = rdmaverbs.AccessLocalWrite, rdmaverbs.AccessRemoteRead, rdmaverbs.AccessRemoteWrite
	for _, access := range []rdmaverbs.Access{lw | rr | rw, lw, rr, lw | rw, lw | rr | rw} {
		f.foreign = len(f.regions)
		of := f.e.pd
		if len(f.regions) == 4 {
			of = &pd{dev: dev}
		}
		buf := make([]byte, fuzzRegionLen)
		if access&rr == 0 || of != f.e.pd {
			for i := range buf {
				buf[i] = secretByte
			}
		}
		m, err := of.RegisterMR(buf, access)
		if err != nil {
			t.Fatal(err)
		}
		f.regions = append(f.regions, &fuzzRegion{m.(*mr), buf, bytes.Clone(buf), true, access})
	}
	f.before = f.psns()
	return f
}

func (f *fuzzQP) psns() fuzzPSNs {
	r := &f.e.req
	return fuzzPSNs{r.una, r.nxt, r.max, r.sq.end, f.e.rsp.expect}
}

// sge chooses memory. Unless it must be usable, it may be out of its region.
func (f *fuzzQP) sge(usable bool) (rdmaverbs.SGE, span) {
	i, off, n := f.in.below(len(f.regions)), f.in.below(256)*17, f.in.below(256)*5
	if usable {
		i, off = []int{0, 1, 3}[i%3], off%2048
	}
	if n == 0 {
		return rdmaverbs.SGE{}, span{}
	}
	r := f.regions[i]
	return rdmaverbs.SGE{MR: r.mr, Off: off, Len: n}, span{r, off, off + n}
}

// sane reports whether the next thing is one that program and peer may do. What they must
// not do mostly ends the queue pair.
func (f *fuzzQP) sane() bool { return f.in.below(12) > 0 }

// step does one thing.
func (f *fuzzQP) step() {
	var may []span // what may change
	switch f.in.below(16) {
	case 0, 1, 2:
		f.postSend()
	case 3, 4:
		f.postRecv()
	case 5, 6, 7:
		may = f.request()
	case 8, 9:
		may = f.answer()
	case 10, 11:
		f.fill()
	case 12:
		f.sent()
	case 13:
		f.later()
	case 14:
		f.rare()
	case 15:
		f.poll()
	}
	f.check(may)
}

func (f *fuzzQP) postSend() {
	f.ids++
	sane := f.sane()
	wr := rdmaverbs.SendWR{
		ID: f.ids, Op: rdmaverbs.Opcode(f.in.below(7)), Flags: rdmaverbs.SendFlags(f.in.byte()) & (rdmaverbs.Signaled | rdmaverbs.Solicited | rdmaverbs.Inline),
		RemoteAddr: uint64(f.in.byte()) << 8, RKey: 7,
	}
	var where []span
	if wr.Flags&rdmaverbs.Inline != 0 {
		wr.InlineData = f.in.payload(f.in.below(256))
	} else {
		for i := range wr.SG {
			var s span
			if wr.SG[i], s = f.sge(sane); s.r != nil {
				where = append(where, s)
			}
		}
	}
	if s := f.e.state; s != rdmaverbs.QPSRTS && s != rdmaverbs.QPSErr {
		return // PostSend refuses it
	}
	full := f.e.req.sq.n == len(f.e.req.sq.ring)
	if err := f.q.postSend(&wr); err != nil {
		return
	}
	if full {
		f.t.Fatal("a request in a queue that is full")
	}
	f.sends = append(f.sends, wr.ID)
	f.ends[wr.ID] = f.e.req.sq.end
	f.signaled[wr.ID] = wr.Flags&rdmaverbs.Signaled != 0
	if wr.Op == rdmaverbs.OpRead {
		f.reads[wr.ID] = where
	}
	f.e.completeReady()
}

func (f *fuzzQP) postRecv() {
	f.ids++
	wr := rdmaverbs.RecvWR{ID: f.ids}
	sane := f.sane()
	var a, b span
	wr.SG, a = f.sge(sane)
	wr.More, b = f.sge(sane)
	if f.q.postRecv(&wr) != nil {
		return
	}
	f.recvs = append(f.recvs, wr.ID)
	for _, s := range []span{a, b} {
		if s.r != nil {
			f.wants[wr.ID] = append(f.wants[wr.ID], s)
		}
	}
	f.e.completeReady()
}

// near returns a PSN that is near at.
func (f *fuzzQP) near(at psn) psn {
	switch d := f.in.below(16); {
	case d < 10:
		return at
	case d == 15:
		return at.add(int(int8(f.in.byte())) * 40000)
	default:
		return at.add(d - 12)
	}
}

// request is a request of the peer.
func (f *fuzzQP) request() []span {
	rsp := &f.e.rsp
	r := f.regions[f.in.below(len(f.regions))]
	p := pkt{op: header.Opcode(f.in.below(int(header.ReadRequest) + 1)), psn: f.near(rsp.expect), ask: f.in.below(2) == 0}
	n := []int{0, 1, 3, 44, coreMTU - 1, coreMTU, coreMTU, coreMTU + 4}[f.in.below(8)]
	off := f.in.below(256)*17 - 32
	p.dmaLen = []int{n, n, n, n + coreMTU, 700, 0, fuzzRegionLen, -1}[f.in.below(8)]
	if f.sane() {
		off, n = max(off, 0)%2048, min(n, coreMTU)
		p.dmaLen = n
		switch rsp.kind {
		case msgSend:
			p.op = []header.Opcode{header.SendMiddle, header.SendLast, header.SendLastImm}[p.op%3]
			n = max(n, 1)
		case msgWrite:
			p.op, n = header.WriteMiddle, coreMTU
			if rsp.remaining <= coreMTU {
				p.op, n = header.WriteLast, rsp.remaining
			}
		default:
			p.op = []header.Opcode{header.SendFirst, header.SendOnly, header.SendOnlyImm, header.WriteFirst, header.WriteOnly, header.WriteOnlyImm, header.ReadRequest}[p.op%7]
			if r = f.regions[0]; f.in.below(32) == 0 {
				r = f.regions[1+f.in.below(4)]
			}
			if p.op == header.WriteFirst {
				p.dmaLen = 1 + int(p.psn+1)*100%1500 + coreMTU
			}
		}
		if p.op == header.SendFirst || p.op == header.SendMiddle || p.op == header.WriteFirst {
			n = coreMTU
		}
	}
	if p.op == header.ReadRequest {
		n = 0
	}
	p.rkey, p.va, p.payload = r.mr.key, r.mr.addr+uint64(off), f.in.payload(n)
	if rsp.kind == msgNone && p.psn == rsp.expect && (p.op == header.WriteFirst || p.op == header.WriteOnly || p.op == header.WriteOnlyImm) {
		f.target = span{r, off, off + max(p.dmaLen, 0)}
	}
	return f.deliver(p.bytes())
}

// answer is an answer of the peer.
func (f *fuzzQP) answer() []span {
	r := &f.e.req
	p := pkt{op: header.Acknowledge, psn: f.near([]psn{r.una, r.nxt, r.max, r.max.add(-1)}[f.in.below(4)]), aeth: header.ACKNoCredits}
	switch f.in.below(16) {
	case 0:
		p.aeth = header.RNR(uint8(f.in.below(32)))
	case 1, 2:
		p.aeth = header.NAKSequence
	case 3:
		p.aeth = header.Syndrome(f.in.byte())
	}
	n := []int{0, 1, 5, 44, coreMTU - 1, coreMTU, coreMTU, coreMTU + 4}[f.in.below(8)]
	switch w := r.sq.oldest(); {
	case r.una != r.max && w.op == rdmaverbs.OpRead && f.sane():
		at := r.una.sub(w.first)
		n = min(w.length-at*coreMTU, coreMTU)
		p.op, p.psn = readOpcode(at == 0, at == w.npkts-1), r.una
	case !f.sane():
		p.op = header.ReadRespFirst + header.Opcode(f.in.below(4))
	}
	if p.op != header.Acknowledge {
		p.payload = f.in.payload(n)
	}
	return f.deliver(p.bytes())
}

// deliver gives the endpoint a packet, and returns which memory it may change.
func (f *fuzzQP) deliver(b []byte) []span {
	var may []span
	if t := f.target.r; t != nil && f.e.access&t.access&rdmaverbs.AccessRemoteWrite != 0 && t != f.regions[f.foreign] {
		may = append(may, f.target)
	}
	if q := &f.e.rq; q.n > 0 {
		may = append(may, f.wants[q.ring[q.head].id]...)
	}
	for _, s := range f.reads {
		may = append(may, s...)
	}
	f.getsRaw(b)
	return may
}

// fill has the endpoint make a batch, which is not sent yet.
func (f *fuzzQP) fill() {
	if f.held != nil {
		return
	}
	b := batches.Get().(*batch)
	f.e.fill(f.now, b)
	if len(b.pkts) == 0 {
		b.reset()
		batches.Put(b)
		f.e.completeReady()
		return
	}
	f.held, f.heldFrom = b, f.e.req.sq.end
	for _, p := range b.pkts {
		h := header.BTH(p.hdr)
		at := psn(h.PSN())
		switch op := h.Opcode(); {
		case len(p.payload[0])+len(p.payload[1]) > coreMTU:
			f.t.Fatalf("sends %v with %d bytes", op, len(p.payload[0])+len(p.payload[1]))
		case !op.IsResponse():
			if r := &f.e.req; at.before(r.una) || !at.before(r.sq.end) {
				f.t.Fatalf("sends %v with PSN %#x, which is not in %#x to %#x", op, at, r.una, r.sq.end)
			}
			if at.before(f.heldFrom) {
				f.heldFrom = at
			}
		case op != header.Acknowledge:
			if bytes.IndexByte(p.payload[0], secretByte) >= 0 || bytes.IndexByte(p.payload[1], secretByte) >= 0 {
				f.t.Fatal("the peer reads memory to which it has no right")
			}
			fallthrough
		default:
			if f.e.rsp.expect.before(at) || at == f.e.rsp.expect && header.AETH(p.hdr[header.BTHLen:]).Syndrome().IsACK() {
				f.t.Fatalf("answers PSN %#x, but expects %#x", at, f.e.rsp.expect)
			}
		}
	}
}

// sent is the end of the system call that sends the batch.
func (f *fuzzQP) sent() {
	if f.held != nil {
		f.held.reset()
		batches.Put(f.held)
		f.held = nil
		f.e.sent()
	}
}

// later lets time pass, often until a timer fires.
func (f *fuzzQP) later() {
	if d := f.e.deadline(); d != never && f.in.below(4) > 0 {
		f.now = max(f.now, d)
	} else {
		f.now = f.now.add(time.Duration(f.in.byte()) * time.Millisecond)
	}
	f.e.expire(f.now)
	f.e.completeReady()
}

// rare does what happens seldom.
func (f *fuzzQP) rare() {
	switch f.in.below(16) {
	case 0:
		f.e.toError()
	case 1, 2, 3, 4:
		f.e.state = max(f.e.state, rdmaverbs.QPSRTS)
	case 5:
		r := f.regions[f.in.below(len(f.regions))]
		if r.open && f.held == nil { // Close waits for a batch that is being sent
			r.open = false
			if err := r.mr.Close(); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

// poll takes completions. Those of each queue come in the order of the requests.
func (f *fuzzQP) poll() {
	for _, wc := range done(f.e.sendCQ) {
		for {
			if len(f.sends) == 0 {
				f.t.Fatalf("completion %+v of no request", wc)
			}
			id := f.sends[0]
			f.sends = f.sends[1:]
			delete(f.reads, id)
			if id == wc.ID {
				if f.held != nil && f.heldFrom.before(f.ends[id]) {
					f.t.Fatalf("completion %+v, but its packets are being sent", wc)
				}
				break
			}
			if f.signaled[id] {
				f.t.Fatalf("completion %+v, but request %d is first", wc, id)
			}
		}
	}
	for _, wc := range done(f.e.recvCQ) {
		if len(f.recvs) == 0 || f.recvs[0] != wc.ID {
			f.t.Fatalf("completion %+v, posted are %v", wc, f.recvs)
		}
		f.recvs = f.recvs[1:]
		delete(f.wants, wc.ID)
	}
}

// check looks whether nothing has changed that must not.
func (f *fuzzQP) check(may []span) {
	for i, r := range f.regions {
		if bytes.Equal(r.buf, r.must) {
			continue
		}
		if !r.open {
			f.t.Fatalf("region %d was closed, and was written to", i)
		}
		for at := range r.buf {
			if r.buf[at] != r.must[at] && !slices.ContainsFunc(may, func(s span) bool { return s.r == r && at >= s.from && at < s.to }) {
				f.t.Fatalf("byte %d of region %d was written to; only %v may be", at, i, may)
			}
		}
		copy(r.must, r.buf)
	}
	was, is := f.before, f.psns()
	f.before = is
	switch {
	case is.una.before(was.una), is.max.before(was.max), is.end.before(was.end), is.expect.before(was.expect):
		f.t.Fatalf("a PSN went back: %+v, then %+v", was, is)
	case is.una.sub(is.nxt) > 0, is.nxt.sub(is.max) > 0, is.max.sub(is.end) > 0:
		f.t.Fatalf("PSNs out of order: %+v", is)
	}
	if r := &f.e.req; r.sq.cur > r.sq.n || r.sq.done > r.sq.n || r.reads < 0 || r.reads > r.maxReads {
		f.t.Fatalf("cur %d, done %d of %d requests, %d READs of %d", r.sq.cur, r.sq.done, r.sq.n, r.reads, r.maxReads)
	}
	if r := &f.e.rsp; r.jobN > len(r.jobs) {
		f.t.Fatalf("%d answers to READs, there is room for %d", r.jobN, len(r.jobs))
	}
	if f.e.state == rdmaverbs.QPSErr && !f.e.sending && (f.e.req.sq.n > 0 || f.e.rq.n > 0) {
		f.t.Fatalf("%d and %d requests are left in the error state", f.e.req.sq.n, f.e.rq.n)
	}
}

// FuzzQueuePair takes a queue pair through calls of its program and packets of its peer, in
// any order: also while a batch is being sent. The peer must not write or read outside of
// what it was given, PSNs must not go back, and requests complete in order, each once.
func FuzzQueuePair(f *testing.F) {
	addSeeds(f, 100)
	f.Fuzz(func(t *testing.T, in []byte) { fuzzOne(t, in) })
}

// fuzzOne takes a queue pair through the steps of the fuzzer.
func fuzzOne(t testing.TB, raw []byte) {
	in := &fuzzBytes{raw}
	q := newFuzzQP(t, in.byte())
	in.steps(func(in *fuzzBytes) {
		q.in = in
		q.step()
	})
	q.sent()
	q.e.toError()
	for q.e.sendCQ.n+q.e.recvCQ.n > 0 {
		q.poll()
	}
	q.check(nil)
	if len(q.recvs) > 0 || slices.ContainsFunc(q.sends, func(id uint64) bool { return q.signaled[id] }) {
		t.Fatalf("requests %v and %v did not complete", q.sends, q.recvs)
	}
}
