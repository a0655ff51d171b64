// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// fuzzEnd is one of two connected queue pairs. What its program does is right; what becomes
// of its packets is the fuzzer's choice.
type fuzzEnd struct {
	*core
	q    *qp
	peer *fuzzEnd
	way  [][]byte // packets on the way to the peer

	target  *fuzzRegion // only the peer writes here, and nobody reads
	source  *fuzzRegion // only the peer reads here, and nobody writes
	posted  []fuzzRead  // send requests that are not complete, in order
	number  uint32      // of the last SEND
	arrived uint32      // of the last SEND of the peer
	failed  bool
}

// fuzzRead is a send request. For a READ, it has what it must get, and where.
type fuzzRead struct {
	id         uint64
	want, into []byte
}

// newFuzzPair connects two queue pairs.
func newFuzzPair(t testing.TB, flags byte) (ends [2]*fuzzEnd) {
	const all = rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteRead | rdmaverbs.AccessRemoteWrite
	for i := range ends {
		c := newCore(t)
		e := &fuzzEnd{core: c, q: &qp{dev: c.e.pd.dev, pd: c.e.pd, ep: *c.e}}
		e.e = &e.q.ep
		e.e.writeOnly = flags&1 != 0
		region := func() *fuzzRegion {
			m, buf := c.register(fuzzRegionLen, all)
			return &fuzzRegion{mr: m, buf: buf, must: make([]byte, fuzzRegionLen), open: true, access: all}
		}
		e.target, e.source = region(), region()
		for at := range e.source.buf {
			e.source.buf[at] = byte(at * 7)
		}
		ends[i] = e
	}
	ends[0].peer, ends[1].peer = ends[1], ends[0]
	path := rdmaverbs.PathInfo{
		DQPN: peerQPN, PathMTU: smc.MTU256, SQPSN: coreSQPSN, RQPSN: coreSQPSN,
		Timeout: 14, RetryCnt: 7, RNRRetry: rnrInfinite, MinRNR: 1, MaxRdAtom: coreReads, MaxDestRd: coreReads,
	}
	for _, e := range ends {
		e.e.toRTR(&path)
		e.e.toRTS(&path, windowLimit{packets: 4 + int(flags>>1)%32, bytes: 1 << 20})
	}
	return ends
}

// post posts a request: a SEND with its number, a WRITE or a READ.
func (e *fuzzEnd) post(in *fuzzBytes) {
	if e.e.state != rdmaverbs.QPSRTS || e.e.req.sq.n == len(e.e.req.sq.ring) {
		return
	}
	e.ids++
	wr := rdmaverbs.SendWR{ID: e.ids, Flags: rdmaverbs.Signaled, Op: rdmaverbs.OpSendImm}
	r := fuzzRead{id: e.ids}
	n, off := 1+in.below(256)*6, in.below(256)*8
	switch in.below(3) {
	case 0:
		e.number++
		wr.Imm = e.number
	case 1:
		m, buf := e.register(n, 0)
		for i := range buf {
			buf[i] = byte(e.ids) + byte(i)
		}
		t := e.peer.target
		wr.Op, wr.RemoteAddr, wr.RKey, wr.SG[0] = rdmaverbs.OpWrite, t.mr.addr+uint64(off), t.mr.key, rdmaverbs.SGE{MR: m, Len: n}
		copy(t.must[off:], buf)
	case 2:
		m, buf := e.register(n, rdmaverbs.AccessLocalWrite)
		s := e.peer.source
		wr.Op, wr.RemoteAddr, wr.RKey, wr.SG[0] = rdmaverbs.OpRead, s.mr.addr+uint64(off), s.mr.key, rdmaverbs.SGE{MR: m, Len: n}
		r.want, r.into = s.buf[off:off+n], buf
	}
	if err := e.q.postSend(&wr); err != nil {
		e.t.Fatal(err)
	}
	e.posted = append(e.posted, r)
	e.e.completeReady()
}

// recv posts a receive request.
func (e *fuzzEnd) recv() {
	if e.e.rq.n < len(e.e.rq.ring) && e.e.state != rdmaverbs.QPSErr {
		if err := e.q.postRecv(&rdmaverbs.RecvWR{}); err != nil {
			e.t.Fatal(err)
		}
	}
}

// send puts a batch on the way to the peer. It reports whether there was one.
func (e *fuzzEnd) send(now instant) bool {
	b := batches.Get().(*batch)
	defer batches.Put(b)
	e.e.fill(now, b)
	for _, p := range b.pkts {
		e.way = append(e.way, slices.Concat(p.hdr, p.payload[0], p.payload[1], make([]byte, p.hdr[1]>>4&3)))
	}
	any := len(b.pkts) > 0
	b.reset()
	e.e.sent()
	return any
}

// arrive hands the peer the packet at index i of those that are on the way.
func (e *fuzzEnd) arrive(i int, now instant) {
	p := e.way[i]
	e.way = slices.Delete(e.way, i, i+1)
	e.peer.now = now
	e.peer.getsRaw(p)
}

// poll checks the completions.
func (e *fuzzEnd) poll() {
	for _, wc := range done(e.e.sendCQ) {
		if len(e.posted) == 0 || e.posted[0].id != wc.ID {
			e.t.Fatalf("completion %+v; posted are %v", wc, e.posted)
		}
		r := e.posted[0]
		e.posted = e.posted[1:]
		switch wc.Status {
		case rdmaverbs.StatusSuccess:
			if !bytes.Equal(r.want, r.into) {
				e.t.Fatalf("READ %d got other data", wc.ID)
			}
		case rdmaverbs.StatusRetryExcErr, rdmaverbs.StatusFlushErr:
			e.failed = true
		default:
			e.t.Fatalf("request %d: %v", wc.ID, wc.Status)
		}
	}
	for _, wc := range done(e.e.recvCQ) {
		switch {
		case wc.Status == rdmaverbs.StatusFlushErr:
		case wc.Status != rdmaverbs.StatusSuccess, wc.Imm != e.arrived+1:
			e.t.Fatalf("received %+v after message %d", wc, e.arrived)
		default:
			e.arrived++
		}
	}
}

// FuzzTwoQueuePairs connects two queue pairs by a network that loses, doubles and delays
// packets as the fuzzer says, and then does not any more. Every request must complete. If it
// succeeds, its data are where they must be, once and in order.
func FuzzTwoQueuePairs(f *testing.F) {
	addSeeds(f, 100)
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := &fuzzBytes{raw}
		ends := newFuzzPair(t, in.byte())
		now := instant(0)
		pass := func(d time.Duration) {
			now = now.add(d)
			for _, e := range ends {
				e.e.expire(now)
			}
		}
		in.steps(func(in *fuzzBytes) {
			for range 4 {
				e := ends[in.below(2)]
				switch in.below(8) {
				case 0, 1:
					e.post(in)
				case 2:
					e.recv()
				case 3, 4:
					e.send(now)
				case 5, 6:
					if n := min(len(e.way), 1+in.below(8)); n > 0 {
						if c := in.below(4); c == 0 {
							e.way = slices.Insert(e.way, n, e.way[n-1])
						} else if c == 1 {
							e.way = slices.Delete(e.way, n-1, n)
							break
						}
						e.arrive(n-1, now)
					}
				case 7:
					pass(time.Duration(in.byte()) * time.Millisecond)
				}
				e.poll()
			}
		})
		for round := 0; ; round++ {
			idle := true
			for _, e := range ends {
				e.recv()
				for e.send(now) {
				}
				for len(e.way) > 0 {
					e.arrive(0, now)
					idle = false
				}
				e.poll()
			}
			if !idle {
				continue
			}
			at := min(ends[0].e.deadline(), ends[1].e.deadline())
			if at == never {
				break
			}
			if round > 10_000 {
				t.Fatalf("does not come to an end: %d and %d requests are left", len(ends[0].posted), len(ends[1].posted))
			}
			pass(max(0, at.since(now)))
		}
		for i, e := range ends {
			switch {
			case len(e.posted) > 0:
				t.Fatalf("end %d: %d requests are left, and nothing happens", i, len(e.posted))
			case e.failed || e.peer.failed:
			case e.peer.arrived != e.number:
				t.Fatalf("end %d: sent %d messages, and %d were received", i, e.number, e.peer.arrived)
			case !bytes.Equal(e.target.buf, e.target.must):
				t.Fatalf("end %d: the peer has written something else", i)
			}
		}
	})
}
