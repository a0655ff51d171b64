// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"sync"
	"testing"
	"time"

	"smcr/rdmaverbs"
)

// streamDepth is the largest number of messages that a Stream has outstanding.
const streamDepth = 4

// streamSend is the length in bytes of the SEND of a message, the same as of a
// CDC message.
const streamSend = 44

// A Stream carries messages as SMC-R does: each is an RDMA WRITE and a SEND
// that announces it. The notify functions post the next messages, so no
// goroutine is woken between two messages.
type Stream struct {
	a, b  *Conn
	recv  []rdmaverbs.RecvWR
	send  []rdmaverbs.SendWR
	idle  chan struct{} // receives an element when all messages of a Run are complete and received
	clock *time.Timer
	took  [2 * streamDepth]rdmaverbs.WC // of the receive queue

	mu   sync.Mutex
	wcs  [2 * streamDepth]rdmaverbs.WC
	left int // messages to be posted
	out  int // messages posted and not complete
	due  int // messages to be received
	bad  rdmaverbs.WCStatus
}

// NewStream connects a pair for messages of n bytes from B to A.
func NewStream(t testing.TB, open Open, n int) *Stream {
	t.Helper()
	s := &Stream{idle: make(chan struct{}, 1), clock: time.NewTimer(Patience)}
	p := open(t)
	s.a, s.b = Connect(t, p, Config{NotifySend: s.sent, NotifyA: s.received})
	src, _ := s.b.MR(n, 0)
	dst, _ := s.a.MR(n, All)
	in, _ := s.a.MR(streamSend, rdmaverbs.AccessLocalWrite)
	s.recv = []rdmaverbs.RecvWR{{SG: sge(in)}}
	s.send = []rdmaverbs.SendWR{
		{Op: rdmaverbs.OpWrite, SG: [2]rdmaverbs.SGE{sge(src)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
		{Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled | rdmaverbs.Inline, InlineData: make([]byte, streamSend)},
	}
	for range 2 * streamDepth {
		s.a.Recv(s.recv...)
	}
	return s
}

// Run sends n messages and waits until they have arrived.
func (s *Stream) Run(n int) {
	s.clock.Reset(Patience)
	s.mu.Lock()
	s.left, s.due = n, n
	s.post()
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-s.clock.C:
		s.b.T.Fatalf("%d of %d messages did not arrive", s.due, n)
	}
	if s.bad != rdmaverbs.StatusSuccess {
		s.b.T.Fatal(s.bad)
	}
}

// post posts messages as long as there is room. s.mu is held.
func (s *Stream) post() {
	for s.left > 0 && s.out < streamDepth && s.bad == rdmaverbs.StatusSuccess {
		if _, err := s.b.QP.PostSend(s.send...); err != nil {
			s.bad = rdmaverbs.StatusLocQPOpErr
			break
		}
		s.left--
		s.out++
	}
	if s.bad != rdmaverbs.StatusSuccess || s.left+s.out+s.due == 0 {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// sent is the notify function of the send queue.
func (s *Stream) sent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := s.b.SendCQ.Poll(s.wcs[:])
		if n == 0 {
			break
		}
		s.out -= n
		s.fail(s.wcs[:n])
	}
	s.post()
}

// received is the notify function of the receive queue.
func (s *Stream) received() {
	for {
		n := s.a.RecvCQ.Poll(s.took[:])
		if n == 0 {
			return
		}
		for range n {
			_, _ = s.a.QP.PostRecv(s.recv...)
		}
		s.mu.Lock()
		s.due -= n
		s.fail(s.took[:n])
		s.post()
		s.mu.Unlock()
	}
}

// fail records the status of completions without success. s.mu is held.
func (s *Stream) fail(wcs []rdmaverbs.WC) {
	for _, wc := range wcs {
		if wc.Status != rdmaverbs.StatusSuccess {
			s.bad = wc.Status
		}
	}
}

// BenchStream measures messages of n bytes.
func BenchStream(b *testing.B, open Open, n int) {
	s := NewStream(b, open, n)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	b.ResetTimer()
	s.Run(b.N)
}
