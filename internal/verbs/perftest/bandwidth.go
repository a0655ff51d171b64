// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"context"
	"fmt"
	"time"
)

// Bandwidth is the result for one size of message.
type Bandwidth struct {
	Size    int     // bytes of a message
	Iters   int     // messages
	Peak    float64 // MiB/s, of the fastest stretch; 0 if not measured
	Average float64 // MiB/s
	Rate    float64 // million messages a second
}

// bandwidth plays a bandwidth test: the client posts, up to Depth requests at a
// time. The server of a test with SENDs receives and measures too; of the others
// it only waits.
func (r *runner) bandwidth(ctx context.Context) error {
	if r.Verb != Send && !r.client {
		if err := r.barrier(false); err != nil {
			return err
		}
		var b Bandwidth
		if err := r.report(&b); err != nil {
			return err
		}
		r.result.Bandwidth = append(r.result.Bandwidth, b)
		return r.close(&r.keys, true)
	}
	for _, size := range r.o.sizes() {
		b, err := r.oneSize(ctx, size)
		if err != nil {
			return fmt.Errorf("messages of %d bytes: %w", size, err)
		}
		r.result.Bandwidth = append(r.result.Bandwidth, b)
	}
	if r.Verb == Send {
		return r.close(&r.keys, true)
	}
	if err := r.barrier(true); err != nil {
		return err
	}
	rows := r.result.Bandwidth
	if err := r.report(&rows[len(rows)-1]); err != nil {
		return err
	}
	return r.close(&r.keys, true)
}

func (r *runner) oneSize(ctx context.Context, size int) (b Bandwidth, err error) {
	if r.Verb != Send {
		r.Hold()
		defer r.Release()
		return r.post(ctx, size)
	}
	if !r.client {
		if err := r.postRecvs(size, r.o.RxDepth); err != nil {
			return b, err
		}
	}
	if err := r.barrier(true); err != nil {
		return b, err
	}
	r.Hold()
	if r.client {
		b, err = r.post(ctx, size)
	} else {
		b, err = r.take(ctx, size)
	}
	r.Release()
	if err == nil && r.o.All {
		err = r.barrier(true)
	}
	return b, err
}

// post posts messages and measures their completions.
func (r *runner) post(ctx context.Context, size int) (Bandwidth, error) {
	wr := r.op(size)
	step := (size + r.line - 1) / r.line * r.line
	var posted, completed []time.Duration // since start, by message
	if r.o.Duration == 0 {
		posted, completed = make([]time.Duration, 0, r.o.Iters), make([]time.Duration, 0, r.o.Iters)
	}
	sent, done := 0, 0
	start := time.Now()
	for going := true; going || done < sent; {
		for going && sent-done < r.o.Depth {
			now := time.Since(start)
			if r.o.Duration > 0 {
				going = now < r.o.Duration
			} else if going = sent < r.o.Iters; going {
				posted = append(posted, now)
			}
			if !going {
				break
			}
			if _, err := r.QP.PostSend(wr); err != nil {
				return Bandwidth{}, err
			}
			sent++
			// Short messages go round in the agreed memory.
			if size <= r.cycle/2 {
				off := sent % (r.cycle / step) * step
				wr.SG[0].Off, wr.RemoteAddr = off, r.peer.VAddr+uint64(off)
			}
		}
		if done == sent {
			continue
		}
		n, err := r.Send.Next(ctx, r.wc[:])
		if err != nil {
			return Bandwidth{}, fmt.Errorf("message %d: %w", done+1, err)
		}
		done += n
		if r.o.Duration == 0 {
			for now := time.Since(start); n > 0; n-- {
				completed = append(completed, now)
			}
		}
	}
	b := result(size, done, time.Since(start))
	b.Peak = peak(size, posted, completed)
	return b, nil
}

// peak returns the bandwidth of the fastest stretch in MiB/s: 1, 2, 4 and so on
// messages, and all, from the posting of the first to the completion of the last.
func peak(size int, posted, completed []time.Duration) float64 {
	var best float64
	for k := 1; ; k = min(2*k, len(posted)) {
		for i := 0; i+k <= len(posted); i++ {
			if d := completed[i+k-1] - posted[i]; d > 0 {
				best = max(best, mib(size)*float64(k)/d.Seconds())
			}
		}
		if k >= len(posted) {
			return best
		}
	}
}

// take receives messages and measures from the first to the last.
func (r *runner) take(ctx context.Context, size int) (Bandwidth, error) {
	var start time.Time
	posted := r.o.RxDepth
	for got := 0; got < r.o.Iters; {
		n, err := r.Recv.Next(ctx, r.wc[:])
		if err != nil {
			return Bandwidth{}, fmt.Errorf("message %d: %w", got+1, err)
		}
		if got == 0 {
			start = time.Now()
		}
		for _, wc := range r.wc[:n] {
			if wc.Len != size {
				return Bandwidth{}, fmt.Errorf("message %d has %d bytes: start both sides with the same size", got+1, wc.Len)
			}
			got++
			if posted < r.o.Iters {
				if _, err := r.QP.PostRecv(r.receive); err != nil {
					return Bandwidth{}, err
				}
				posted++
			}
		}
	}
	return result(size, r.o.Iters, time.Since(start)), nil
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

func result(size, n int, d time.Duration) Bandwidth {
	s := max(d.Seconds(), 1e-9)
	return Bandwidth{Size: size, Iters: n, Average: mib(size) * float64(n) / s, Rate: float64(n) / s / 1e6}
}
