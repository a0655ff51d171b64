// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// ErrNoAnswer is matched by the error of a wait in which the peer did nothing for
// Config.Patience.
var ErrNoAnswer = errors.New("the peer does not answer")

// A Config is the size and the rights of a connection's end.
type Config struct {
	Bytes    int // of memory, registered as one region
	MaxSend  int // work requests outstanding
	MaxRecv  int
	Access   rdmaverbs.Access // of the peer
	Patience time.Duration
}

// A Conn is one end of a reliable connection. It is not safe for concurrent
// use.
type Conn struct {
	*Source
	QP   rdmaverbs.QP
	MR   rdmaverbs.MR
	Buf  []byte // the memory of MR
	PSN  uint32 // first PSN that this end sends, 24 bits
	Send *Queue
	Recv *Queue

	pd rdmaverbs.PD
}

// New makes an end in state Init. The source stays the caller's.
func New(s *Source, c Config) (_ *Conn, err error) {
	x := &Conn{Source: s, PSN: rand.Uint32N(1 << 24)}
	defer func() {
		if err != nil {
			x.Close()
		}
	}()
	if x.Buf, err = rdmaverbs.AllocBuffer(max(c.Bytes, 1)); err != nil {
		return nil, err
	}
	if x.pd, err = s.AllocPD(); err != nil {
		return nil, err
	}
	if x.MR, err = x.pd.RegisterMR(x.Buf, c.Access|rdmaverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if x.Send, err = newQueue(s, c.MaxSend, c.Patience); err != nil {
		return nil, err
	}
	if x.Recv, err = newQueue(s, c.MaxRecv, c.Patience); err != nil {
		return nil, err
	}
	x.QP, err = x.pd.CreateQP(rdmaverbs.QPInit{
		SendCQ: x.Send.cq, RecvCQ: x.Recv.cq, MaxSend: c.MaxSend, MaxRecv: c.MaxRecv,
		Port: 1, SGIDIndex: s.Index, Access: c.Access,
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// A Peer is what the other end said about its queue pair.
type Peer struct {
	GID      smc.GID
	QPN, PSN uint32 // 24 bits
}

// Timers of a connection that nobody asked for: those of the test programs, but
// for the local ACK timeout, which a peer in user space needs longer.
const (
	Timeout  = 17 // 4.096 µs · 2¹⁷ = 537 ms
	retries  = 7
	minRNR   = 12 // 0.64 ms
	maxReads = 16 // RDMA READs outstanding, each way
)

// MaxReads is how many RDMA READs an end takes and has outstanding at most.
const MaxReads = maxReads

// Connect moves the queue pair to ready-to-send toward a peer. timeout is the
// local ACK timeout, 4.096 µs · 2^timeout; reads is how many RDMA READs the
// peer takes at once.
func (x *Conn) Connect(p Peer, mtu smc.MTU, timeout uint8, reads int) error {
	path := rdmaverbs.PathInfo{
		DGID: p.GID, DQPN: p.QPN, RQPSN: p.PSN, SQPSN: x.PSN,
		PathMTU: mtu, Timeout: timeout, RetryCnt: retries, RNRRetry: 7, MinRNR: minRNR,
		MaxRdAtom: uint8(min(max(reads, 0), maxReads)), MaxDestRd: maxReads,
	}
	if (p.GID.Addr().Is4()) != x.GID.GID.Addr().Is4() {
		return fmt.Errorf("the peer's GID %v and ours, %v, are of different IP versions: choose another GID on one side", p.GID, x.GID.GID)
	}
	if err := x.QP.ToRTR(path); err != nil {
		return err
	}
	return x.QP.ToRTS(path)
}

// linger is four local ACK timeouts of a peer that uses 14, as the test programs
// do.
const linger = 4 * (4096 << 14) * time.Nanosecond

// Linger keeps the ends of this process answering for a while, for a peer whose
// last message has been received but whose acknowledgement may be lost. For
// protocols that end without a word.
func Linger(ctx context.Context) {
	select {
	case <-time.After(linger):
	case <-ctx.Done():
	}
}

// Close frees the end, but not its source. It can be called more than once.
func (x *Conn) Close() error {
	var errs []error
	if x.QP != nil {
		errs = append(errs, x.QP.Close())
	}
	for _, q := range []*Queue{x.Send, x.Recv} {
		if q != nil {
			errs = append(errs, q.cq.Close())
		}
	}
	if x.MR != nil {
		errs = append(errs, x.MR.Close())
	}
	if x.pd != nil {
		errs = append(errs, x.pd.Close())
	}
	if x.Buf != nil {
		errs = append(errs, rdmaverbs.FreeBuffer(x.Buf))
	}
	*x = Conn{Source: x.Source}
	return errors.Join(errs...)
}

// A Queue is a completion queue that can be waited on.
type Queue struct {
	cq       rdmaverbs.CQ
	source   *Source
	patience time.Duration
}

func newQueue(s *Source, depth int, patience time.Duration) (*Queue, error) {
	q := &Queue{source: s, patience: patience}
	var err error
	q.cq, err = s.CreateCQ(max(depth, 1), nil)
	return q, err
}

// Next waits for completions and returns how many there are, at least one. A completion
// that is not a success is an error. The caller holds the device.
func (q *Queue) Next(ctx context.Context, wc []rdmaverbs.WC) (n int, err error) {
	if n, err = q.Poll(wc); n > 0 {
		return n, err
	}
	werr := q.source.Await(ctx, q.patience, func() bool {
		n, err = q.Poll(wc)
		return n > 0
	})
	if werr != nil {
		return 0, werr
	}
	return n, err
}

// Poll does what Next does, but does not wait. It may return 0.
func (q *Queue) Poll(wc []rdmaverbs.WC) (int, error) {
	n := q.cq.Poll(wc)
	for _, c := range wc[:n] {
		if err := c.Status.Err(); err != nil {
			return n, err
		}
	}
	return n, nil
}
