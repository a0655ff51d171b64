// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"smcr/internal/verbs/rc"
)

// Latency is the result for one size of message: half a round trip for WRITE
// and SEND, a whole one for READ.
type Latency struct {
	Size    int // bytes of a message
	Iters   int
	Min     time.Duration
	Max     time.Duration
	Typical time.Duration // the median
	Average time.Duration
	Stdev   time.Duration
	P99     time.Duration
	P999    time.Duration
}

// latency plays a latency test.
func (r *runner) latency(ctx context.Context) error {
	if r.Verb == Read && !r.client {
		return r.close(&r.keys, false)
	}
	stamps := make([]time.Time, 0, r.o.Iters)
	for _, size := range r.o.sizes() {
		run := [...]func(context.Context, int, []time.Time) ([]time.Time, error){
			Write: r.writes, Send: r.sends, Read: r.reads,
		}[r.Verb]
		r.Hold()
		t, err := run(ctx, size, stamps[:0])
		r.Release()
		if err != nil {
			return fmt.Errorf("messages of %d bytes: %w", size, err)
		}
		r.result.Latency = append(r.result.Latency, summary(size, t, r.Verb != Read))
	}
	if r.Verb == Write { // the programs end without a word
		rc.Linger(ctx)
		return nil
	}
	return r.close(&r.keys, true)
}

// writes sends messages to and fro by RDMA WRITE: each side waits until the last
// byte of its memory is the number of the message. The server begins.
func (r *runner) writes(ctx context.Context, size int, stamps []time.Time) ([]time.Time, error) {
	wr := r.op(size)
	for n := 1; n <= r.o.Iters; n++ {
		if r.client {
			if err := r.see(ctx, size, byte(n)); err != nil {
				return nil, fmt.Errorf("message %d: %w", n, err)
			}
		}
		stamps = append(stamps, time.Now())
		r.Buf[size-1] = byte(n)
		if _, err := r.QP.PostSend(wr); err != nil {
			return nil, err
		}
		if _, err := r.Send.Next(ctx, r.wc[:1]); err != nil {
			return nil, fmt.Errorf("write message %d: %w", n, err)
		}
		if !r.client {
			if err := r.see(ctx, size, byte(n)); err != nil {
				return nil, fmt.Errorf("message %d: %w", n, err)
			}
		}
	}
	return stamps, nil
}

// see waits until the last byte of a message in our memory is b. An RDMA WRITE
// wakes nobody, so there is no way but to look.
func (r *runner) see(ctx context.Context, size int, b byte) error {
	at := r.region + size - 1
	// The word around it, for a load that the compiler does not move.
	word := (*uint32)(unsafe.Pointer(&r.Buf[at&^3]))
	return r.Await(ctx, r.patience, func() bool {
		w := atomic.LoadUint32(word)
		return (*[4]byte)(unsafe.Pointer(&w))[at&3] == b
	})
}

// sends sends messages to and fro. The client begins.
func (r *runner) sends(ctx context.Context, size int, stamps []time.Time) ([]time.Time, error) {
	if err := r.postRecvs(size, r.o.RxDepth); err != nil {
		return nil, err
	}
	posted := r.o.RxDepth
	r.Release()
	err := r.barrier(true)
	r.Hold()
	if err != nil {
		return nil, err
	}
	receive := func(n int) error {
		if _, err := r.Recv.Next(ctx, r.wc[:1]); err != nil {
			return fmt.Errorf("message %d: %w", n, err)
		}
		if l := r.wc[0].Len; l != size {
			return fmt.Errorf("message %d has %d bytes: start both sides with the same size", n, l)
		}
		if posted == r.o.Iters {
			return nil
		}
		posted++
		_, err := r.QP.PostRecv(r.receive)
		return err
	}
	wr := r.op(size)
	outstanding := 0
	for n := 1; n <= r.o.Iters; n++ {
		if !r.client {
			if err := receive(n); err != nil {
				return nil, err
			}
		}
		stamps = append(stamps, time.Now())
		if _, err := r.QP.PostSend(wr); err != nil {
			return nil, err
		}
		// A message is acknowledged before it is answered.
		for outstanding++; outstanding > 0; {
			done, err := r.Send.Next(ctx, r.wc[:1])
			if err != nil {
				return nil, fmt.Errorf("send message %d: %w", n, err)
			}
			outstanding -= done
		}
		if r.client {
			if err := receive(n); err != nil {
				return nil, err
			}
		}
	}
	return stamps, nil
}

// reads reads the peer's memory, one request at a time.
func (r *runner) reads(ctx context.Context, size int, stamps []time.Time) ([]time.Time, error) {
	wr := r.op(size)
	for n := 1; n <= r.o.Iters; n++ {
		stamps = append(stamps, time.Now())
		if _, err := r.QP.PostSend(wr); err != nil {
			return nil, err
		}
		if _, err := r.Send.Next(ctx, r.wc[:1]); err != nil {
			return nil, fmt.Errorf("read %d: %w", n, err)
		}
	}
	return stamps, nil
}

// summary computes the numbers from the moments at which messages were posted.
func summary(size int, stamps []time.Time, half bool) Latency {
	l := Latency{Size: size, Iters: len(stamps)}
	d := make([]time.Duration, 0, len(stamps))
	var sum time.Duration
	for i := 1; i < len(stamps); i++ {
		x := stamps[i].Sub(stamps[i-1])
		if half {
			x /= 2
		}
		d = append(d, x)
		sum += x
	}
	if len(d) == 0 {
		return l
	}
	slices.Sort(d)
	at := func(q float64) time.Duration { return d[min(int(math.Ceil(q*float64(len(d)))), len(d))-1] }
	l.Min, l.Max, l.Typical, l.P99, l.P999 = d[0], d[len(d)-1], at(0.5), at(0.99), at(0.999)
	l.Average = sum / time.Duration(len(d))
	var square float64
	for _, x := range d {
		square += math.Pow(float64(x-l.Average), 2)
	}
	l.Stdev = time.Duration(math.Sqrt(square / float64(len(d))))
	return l
}
