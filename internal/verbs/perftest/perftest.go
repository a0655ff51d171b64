// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"context"
	"fmt"
	"net"
	"time"

	"smcr/internal/verbs/rc"
	"smcr/rdmaverbs"
	"smcr/smc"
)

// A Verb is the operation that a test measures.
type Verb int

// Verbs.
const (
	Write Verb = iota // RDMA WRITE
	Send              // SEND
	Read              // RDMA READ
)

// A Test is one of the programs.
type Test struct {
	Verb    Verb
	Latency bool // else bandwidth
}

// Options of a test. Size, All, Iters and Duration must be the same on both
// sides, as with the programs themselves.
type Options struct {
	Size     int           // bytes of a message
	All      bool          // all powers of two from 2 to MaxSize instead
	Iters    int           // messages
	Duration time.Duration // instead of Iters, for write and read bandwidth; 0 for none
	Depth    int           // work requests outstanding
	RxDepth  int           // receives posted
	MTU      smc.MTU       // at most; 0 is what the netdev carries
	Timeout  uint8         // local ACK timeout, 4.096 µs · 2^Timeout
	Patience time.Duration // with a silent peer
}

// MaxSize is the largest message of a test of all sizes.
const MaxSize = 8 << 20

// minIters is the smallest number of iterations that the programs take.
const minIters = 5

// sizes returns the message sizes of a test.
func (o *Options) sizes() []int {
	if !o.All {
		return []int{o.Size}
	}
	var s []int
	for n := 2; n <= MaxSize; n *= 2 {
		s = append(s, n)
	}
	return s
}

// Check returns what is wrong with the options for a test, or nil.
func (o *Options) Check(t Test) error {
	switch {
	case o.Size < 1 || o.Size > 1<<30:
		return fmt.Errorf("message size of %d bytes: must be 1 to %d", o.Size, 1<<30)
	case o.Iters < minIters:
		return fmt.Errorf("%d iterations: must be at least %d", o.Iters, minIters)
	case o.Depth < 1 || o.RxDepth < 1 || o.Depth > maxDepth || o.RxDepth > maxDepth:
		return fmt.Errorf("queues of %d and %d work requests: must be 1 to %d", o.Depth, o.RxDepth, maxDepth)
	case o.Timeout > 31:
		return fmt.Errorf("local ACK timeout %d: must be 0 to 31", o.Timeout)
	case o.Duration != 0 && (o.All || t.Latency || t.Verb == Send):
		return fmt.Errorf("--duration works only for write and read bandwidth with one size: use a number of iterations")
	case o.Duration < 0:
		return fmt.Errorf("the duration is negative")
	}
	return nil
}

const maxDepth = 1 << 13

// A Result is what a test measured: on the side that measures one row for each
// size, on the serving side of a bandwidth test what the client reported.
type Result struct {
	Local, Remote Keys
	PeerVersion   string
	MTU           smc.MTU
	Bandwidth     []Bandwidth
	Latency       []Latency
}

// Run plays one side of a test over a TCP connection to the other. The
// connection stays the caller's.
func Run(ctx context.Context, tcp net.Conn, client bool, s *rc.Source, t Test, o Options) (*Result, error) {
	if err := o.Check(t); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	port, err := s.Port(1)
	if err != nil {
		return nil, err
	}
	mtu := port.ActiveMTU
	if o.MTU != 0 {
		mtu = min(mtu, o.MTU)
	}
	r := &runner{Test: t, o: o, talk: &talk{Conn: tcp, client: client, patience: o.Patience}}
	if r.agreement, err = r.agree(mtu); err != nil {
		return nil, err
	}
	if err := r.open(s); err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.connect(); err != nil {
		return nil, err
	}
	run := r.bandwidth
	if t.Latency {
		run = r.latency
	}
	if err := run(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return &r.result, nil
}

// A runner is one side of a test.
type runner struct {
	Test
	*rc.Conn
	*talk
	agreement
	o       Options
	region  int // bytes of each half of the memory
	keys    Keys
	peer    Keys
	result  Result
	wc      [16]rdmaverbs.WC
	receive rdmaverbs.RecvWR
}

// Close frees the queue pair and its memory.
func (r *runner) Close() error { return r.Conn.Close() }

// open makes the queue pair. The first half of the memory is what is sent from,
// or read into; the second is the peer's to write or to read.
func (r *runner) open(s *rc.Source) error {
	sizes := r.o.sizes()
	r.region = max(sizes[len(sizes)-1], r.cycle)
	var access rdmaverbs.Access
	switch r.Verb {
	case Write:
		access = rdmaverbs.AccessRemoteWrite
	case Read:
		access = rdmaverbs.AccessRemoteRead
	}
	if r.o.Duration == 0 {
		r.o.Depth, r.o.RxDepth = min(r.o.Depth, r.o.Iters), min(r.o.RxDepth, r.o.Iters)
	}
	c := rc.Config{Bytes: 2 * r.region, MaxSend: r.o.Depth, Access: access, Patience: r.patience}
	if r.Verb == Send {
		c.MaxRecv = r.o.RxDepth
	}
	var err error
	if r.Conn, err = rc.New(s, c); err != nil {
		return err
	}
	out := r.Buf[:r.region]
	if !(r.Latency && r.Verb == Write) {
		for i := range out {
			out[i] = byte(i) ^ byte(i>>8)*31
		}
	}
	reads := 1
	if r.Verb == Read {
		reads = rc.MaxReads
	}
	r.keys = Keys{
		OutReads: uint16(reads), QPN: r.QP.QPN(), PSN: r.PSN, RKey: r.MR.RKey(),
		VAddr: r.MR.Addr() + uint64(r.region), GID: s.GID.GID,
	}
	r.result = Result{Local: r.keys, MTU: r.mtu, PeerVersion: r.version}
	return nil
}

// connect exchanges the queue pairs and connects them. How often they are
// exchanged, and where the barrier is, differs from program to program.
func (r *runner) connect() (err error) {
	before, after := 1, 2
	if r.Latency && r.Verb != Send {
		before = 2
	}
	for range before {
		if r.peer, err = r.talk.keys(&r.keys, true); err != nil {
			return err
		}
	}
	r.result.Remote = r.peer
	p := rc.Peer{GID: r.peer.GID, QPN: r.peer.QPN, PSN: r.peer.PSN}
	if err := r.Connect(p, r.mtu, r.o.Timeout, int(r.peer.OutReads)); err != nil {
		return err
	}
	for range after {
		if err := r.barrier(true); err != nil {
			return err
		}
	}
	return nil
}

// barrier waits until the peer is there too.
func (r *runner) barrier(limited bool) error {
	_, err := r.talk.keys(&r.keys, limited)
	return err
}

// op returns the work request for the next message from the first half of the
// memory.
func (r *runner) op(size int) rdmaverbs.SendWR {
	return rdmaverbs.SendWR{
		Op:         [...]rdmaverbs.Opcode{Write: rdmaverbs.OpWrite, Send: rdmaverbs.OpSend, Read: rdmaverbs.OpRead}[r.Verb],
		Flags:      rdmaverbs.Signaled,
		SG:         [2]rdmaverbs.SGE{{MR: r.MR, Len: size}},
		RemoteAddr: r.peer.VAddr,
		RKey:       r.peer.RKey,
	}
}

// postRecvs posts n receives of one size. All go to the same place.
func (r *runner) postRecvs(size, n int) error {
	r.receive = rdmaverbs.RecvWR{SG: rdmaverbs.SGE{MR: r.MR, Off: r.region, Len: size}}
	for range n {
		if _, err := r.QP.PostRecv(r.receive); err != nil {
			return err
		}
	}
	return nil
}
