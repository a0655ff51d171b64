// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"smcr/rdmaverbs"
)

// StressConfig has the parameters of Stress.
type StressConfig struct {
	Seed    uint64
	Ops     int // work requests of each side
	MaxSize int // bytes of a message, at most
}

// Stress makes both sides of a connection post random work requests of every
// operation and size at the same time. It checks every byte and every
// completion: order, length, immediate data.
func Stress(t testing.TB, a, b *Conn, c StressConfig) {
	t.Helper()
	sa := newStresser(a, c, 1)
	sb := newStresser(b, c, 2)
	sa.peer, sb.peer = sb, sa
	sa.supply()
	sb.supply()
	for !sa.finished() || !sb.finished() {
		for _, s := range []*stresser{sa, sb} {
			s.postSome()
			s.reap()
			s.reapRecv()
		}
		if !sa.idle() || !sb.idle() {
			continue
		}
		sa.await()
		sb.await()
	}
	for _, s := range []*stresser{sa, sb} {
		s.reapRecv()
		if len(s.incoming) != 0 {
			t.Fatalf("%d messages did not arrive", len(s.incoming))
		}
		if !bytes.Equal(s.target, s.image) {
			t.Fatalf("memory written by the peer differs, first at %d of %d", firstDiff(s.target, s.image), len(s.image))
		}
	}
}

const (
	stressRecv  = 32
	stressOps   = 32 // outstanding
	stressReads = stressOps + 1
	stressArena = 1 << 20
)

// stresser is one side. Both sides read source, the peer writes to target, and
// image has the bytes that target must have afterwards.
type stresser struct {
	*Conn
	cfg  StressConfig
	rng  *rand.Rand
	peer *stresser

	sourceMR, targetMR, recvMR, readMR rdmaverbs.MR
	source, target, image, recv, read  []byte

	posted   int
	ops      []stressOp // outstanding, in order
	recvNext uint64     // ID of the next receive request to post
	recvDone uint64     // ID of the next to complete
	incoming []stressMsg
	budget   int // receive requests that the peer posted and this side has not used
}

type stressOp struct {
	id     uint64
	signal bool
	read   []byte // local memory of a READ
	want   []byte // expected result of the READ
	op     rdmaverbs.WCOp
}

// stressMsg is an expected completion in the receive queue.
type stressMsg struct {
	data   []byte // of a SEND
	n      int
	op     rdmaverbs.WCOp
	imm    uint32
	hasImm bool
}

func newStresser(x *Conn, c StressConfig, stream uint64) *stresser {
	s := &stresser{Conn: x, cfg: c, rng: rand.New(rand.NewPCG(c.Seed, stream))}
	s.sourceMR, s.source = x.MR(stressArena, rdmaverbs.AccessRemoteRead)
	s.targetMR, s.target = x.MR(stressArena, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteWrite)
	s.readMR, s.read = x.MR(stressReads*c.MaxSize, rdmaverbs.AccessLocalWrite)
	s.recvMR, s.recv = x.MR(stressRecv*c.MaxSize, rdmaverbs.AccessLocalWrite)
	s.image = make([]byte, stressArena)
	for i := range s.source {
		s.source[i] = byte(s.rng.Uint32())
	}
	return s
}

func (s *stresser) finished() bool { return s.posted == s.cfg.Ops && len(s.ops) == 0 }

// idle reports whether nothing can be posted before something completes.
func (s *stresser) idle() bool {
	return s.posted == s.cfg.Ops || len(s.ops) >= stressOps || s.budget == 0
}

// supply posts receive requests until stressRecv are outstanding.
func (s *stresser) supply() {
	for s.recvNext < s.recvDone+stressRecv {
		slot := int(s.recvNext % stressRecv)
		s.Recv(rdmaverbs.RecvWR{ID: s.recvNext, SG: rdmaverbs.SGE{MR: s.recvMR, Off: slot * s.cfg.MaxSize, Len: s.cfg.MaxSize}})
		s.recvNext++
		s.peer.budget++
	}
}

// size returns a random message size. Many are small and some are 0.
func (s *stresser) size() int {
	switch s.rng.IntN(8) {
	case 0:
		return 0
	case 1, 2, 3:
		return s.rng.IntN(min(64, s.cfg.MaxSize))
	}
	return s.rng.IntN(s.cfg.MaxSize)
}

func (s *stresser) postSome() {
	for range s.rng.IntN(8) {
		if s.idle() {
			return
		}
		s.postOne()
	}
}

func (s *stresser) postOne() {
	n := s.size()
	src := s.rng.IntN(stressArena - n)
	dst := s.rng.IntN(stressArena - n)
	wr := rdmaverbs.SendWR{ID: uint64(s.posted), Op: rdmaverbs.Opcode(1 + s.rng.IntN(5)), Imm: s.rng.Uint32()}
	op := stressOp{id: wr.ID, signal: s.rng.IntN(3) > 0 || s.posted == s.cfg.Ops-1 || len(s.ops) >= 16 || s.budget == 1}
	if op.signal {
		wr.Flags |= rdmaverbs.Signaled
	}
	if s.rng.IntN(4) == 0 {
		wr.Flags |= rdmaverbs.Solicited
	}
	data := s.source[src : src+n]
	if wr.Op == rdmaverbs.OpRead {
		// Each outstanding READ has separate memory, so that they do not
		// overlap.
		off := int(wr.ID) % stressReads * s.cfg.MaxSize
		op.read, op.want = s.read[off:off+n], s.peer.source[src:src+n]
		op.op = rdmaverbs.WCRead
		wr.SG[0] = rdmaverbs.SGE{MR: s.readMR, Off: off, Len: n}
		wr.RemoteAddr, wr.RKey = s.peer.sourceMR.Addr()+uint64(src), s.peer.sourceMR.RKey()
	} else if n <= 256 && s.rng.IntN(2) == 0 {
		wr.Flags |= rdmaverbs.Inline
		wr.InlineData = data
	} else {
		cut := s.rng.IntN(n + 1)
		wr.SG = [2]rdmaverbs.SGE{{MR: s.sourceMR, Off: src, Len: cut}, {MR: s.sourceMR, Off: src + cut, Len: n - cut}}
	}
	switch wr.Op {
	case rdmaverbs.OpSend, rdmaverbs.OpSendImm:
		op.op = rdmaverbs.WCSend
		s.expect(stressMsg{data: data, n: n, op: rdmaverbs.WCRecv, imm: wr.Imm, hasImm: wr.Op == rdmaverbs.OpSendImm})
	case rdmaverbs.OpWrite, rdmaverbs.OpWriteImm:
		op.op = rdmaverbs.WCWrite
		wr.RemoteAddr, wr.RKey = s.peer.targetMR.Addr()+uint64(dst), s.peer.targetMR.RKey()
		copy(s.peer.image[dst:], data)
		if wr.Op == rdmaverbs.OpWriteImm {
			s.expect(stressMsg{n: n, op: rdmaverbs.WCRecvWriteImm, imm: wr.Imm, hasImm: true})
		}
	}
	s.ops = append(s.ops, op)
	s.posted++
	s.Send(wr)
}

// expect records a completion that the peer must get. It is called before the
// request is posted.
func (s *stresser) expect(m stressMsg) {
	s.peer.incoming = append(s.peer.incoming, m)
	s.budget--
}

// await waits for a completion if requests are outstanding. The last request
// before a side becomes idle is always signaled.
func (s *stresser) await() {
	if len(s.ops) == 0 {
		return
	}
	var wc [1]rdmaverbs.WC
	if _, err := s.wait(s.SendCQ, wc[:]); err != nil {
		s.T.Fatalf("request %d: %v", s.ops[0].id, err)
	}
	s.take(wc[0])
}

func (s *stresser) reap() int {
	var wcs [16]rdmaverbs.WC
	n := s.SendCQ.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		s.take(wc)
	}
	return n
}

// take checks a completion. It also completes the unsignaled requests before
// it.
func (s *stresser) take(wc rdmaverbs.WC) {
	s.T.Helper()
	if wc.Status != rdmaverbs.StatusSuccess {
		s.T.Fatalf("request %d: %v", wc.ID, wc.Status)
	}
	for {
		if len(s.ops) == 0 {
			s.T.Fatalf("completion of nothing: %+v", wc)
		}
		op := s.ops[0]
		s.ops = s.ops[1:]
		if op.read != nil && !bytes.Equal(op.read, op.want) {
			s.T.Fatalf("request %d read wrong data, first at %d of %d", op.id, firstDiff(op.read, op.want), len(op.want))
		}
		if !op.signal {
			continue
		}
		if wc.ID != op.id || wc.Status != rdmaverbs.StatusSuccess || wc.Op != op.op {
			s.T.Fatalf("completion %+v (%v), want request %d, operation %d", wc, wc.Status, op.id, op.op)
		}
		return
	}
}

func (s *stresser) reapRecv() int {
	var wcs [16]rdmaverbs.WC
	n := s.RecvCQ.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		if len(s.incoming) == 0 {
			s.T.Fatalf("unexpected message: %+v (%v)", wc, wc.Status)
		}
		m := s.incoming[0]
		s.incoming = s.incoming[1:]
		if wc.Status != rdmaverbs.StatusSuccess || wc.ID != s.recvDone || wc.Op != m.op || wc.Len != m.n ||
			wc.HasImm != m.hasImm || m.hasImm && wc.Imm != m.imm {
			s.T.Fatalf("receive completion %+v (%v), want ID %d, %d bytes, operation %d, immediate %v %#x",
				wc, wc.Status, s.recvDone, m.n, m.op, m.hasImm, m.imm)
		}
		off := int(wc.ID%stressRecv) * s.cfg.MaxSize
		if got := s.recv[off : off+m.n]; m.data != nil && !bytes.Equal(got, m.data) {
			s.T.Fatalf("message %d of %d bytes differs, first at %d", wc.ID, m.n, firstDiff(got, m.data))
		}
		s.recvDone++
	}
	s.supply()
	return n
}

func firstDiff(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
