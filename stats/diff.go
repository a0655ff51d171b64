// SPDX-License-Identifier: Apache-2.0

package stats

import "time"

// Sub returns what happened since the snapshot before: the difference of each
// counter, and the value of each gauge in s. A counter that is smaller than before
// belongs to a stack that was started again: Sub returns all of it.
func (s Stats) Sub(before Stats) Stats { return s.merge(before, since) }

// An operation combines two values of a counter.
type operation func(a, b uint64) uint64

func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// merge returns s with op of each of its counters and that of b.
func (s Stats) merge(b Stats, op operation) Stats {
	s.SMCD, s.SMCR = s.SMCD.merge(b.SMCD, op), s.SMCR.merge(b.SMCR, op)
	op.to(&s.ClientHandshakeErrors, b.ClientHandshakeErrors)
	op.to(&s.ServerHandshakeErrors, b.ServerHandshakeErrors)
	op.to(&s.Panics, b.Panics)
	op.to(&s.Failovers, b.Failovers)
	s.ClientHandshakeTimes = s.ClientHandshakeTimes.merge(b.ClientHandshakeTimes, op)
	s.ServerHandshakeTimes = s.ServerHandshakeTimes.merge(b.ServerHandshakeTimes, op)
	s.Engine = s.Engine.merge(b.Engine, op)
	return s
}

// to changes a counter.
func (op operation) to(counter *uint64, b uint64) { *counter = op(*counter, b) }

// Sub is [Stats.Sub] for one technology.
func (t Tech) Sub(b Tech) Tech { return t.merge(b, since) }

func (t Tech) merge(b Tech, op operation) Tech {
	t.TXBufSizes, t.RXBufSizes = t.TXBufSizes.merge(b.TXBufSizes, op), t.RXBufSizes.merge(b.RXBufSizes, op)
	t.TXSizes, t.RXSizes = t.TXSizes.merge(b.TXSizes, op), t.RXSizes.merge(b.RXSizes, op)
	t.TXBufs, t.RXBufs = t.TXBufs.merge(b.TXBufs, op), t.RXBufs.merge(b.RXBufs, op)
	op.to(&t.ClientV1, b.ClientV1)
	op.to(&t.ClientV2, b.ClientV2)
	op.to(&t.ServerV1, b.ServerV1)
	op.to(&t.ServerV2, b.ServerV2)
	op.to(&t.Sendpage, b.Sendpage)
	op.to(&t.Splice, b.Splice)
	op.to(&t.Cork, b.Cork)
	op.to(&t.NoDelay, b.NoDelay)
	op.to(&t.Urgent, b.Urgent)
	op.to(&t.RXBytes, b.RXBytes)
	op.to(&t.TXBytes, b.TXBytes)
	op.to(&t.RXCalls, b.RXCalls)
	op.to(&t.TXCalls, b.TXCalls)
	return t
}

// Sub is [Stats.Sub] for a histogram.
func (h Histogram) Sub(before Histogram) Histogram { return h.merge(before, since) }

func (h Histogram) merge(b Histogram, op operation) Histogram {
	for i := range h {
		op.to(&h[i], b[i])
	}
	return h
}

// Sub is [Stats.Sub] for the events of buffers.
func (b Buffers) Sub(before Buffers) Buffers { return b.merge(before, since) }

func (b Buffers) merge(other Buffers, op operation) Buffers {
	op.to(&b.SmallPeer, other.SmallPeer)
	op.to(&b.Small, other.Small)
	op.to(&b.FullPeer, other.FullPeer)
	op.to(&b.Full, other.Full)
	op.to(&b.Reuse, other.Reuse)
	op.to(&b.Alloc, other.Alloc)
	op.to(&b.Downgrade, other.Downgrade)
	return b
}

// Sub returns the fallbacks since the snapshot before. It has only the reasons
// that occurred since then.
func (f Fallbacks) Sub(before Fallbacks) Fallbacks {
	return Fallbacks{
		ClientTotal: since(f.ClientTotal, before.ClientTotal),
		ServerTotal: since(f.ServerTotal, before.ServerTotal),
		Reasons:     reasonsSince(f.Reasons, before.Reasons),
		PeerReasons: reasonsSince(f.PeerReasons, before.PeerReasons),
	}
}

func reasonsSince(now, before []Fallback) (d []Fallback) {
	counts := make(map[Fallback]uint64, len(before))
	for _, r := range before {
		counts[Fallback{Side: r.Side, Reason: r.Reason}] = r.Count
	}
	for _, r := range now {
		r.Count = since(r.Count, counts[Fallback{Side: r.Side, Reason: r.Reason}])
		if r.Count > 0 {
			d = append(d, r)
		}
	}
	return d
}

// A Rate is what a technology does in each second.
type Rate struct {
	RXBytes, TXBytes float64 // bytes that programs received and sent
	RXCalls, TXCalls float64 // receive and send calls
	Connections      float64 // new connections
}

// Rate returns the rates of t, the difference of two snapshots of which the second
// was taken elapsed after the first. All are zero if elapsed is not positive.
func (t Tech) Rate(elapsed time.Duration) Rate {
	if elapsed <= 0 {
		return Rate{}
	}
	s := elapsed.Seconds()
	return Rate{
		RXBytes: float64(t.RXBytes) / s, TXBytes: float64(t.TXBytes) / s,
		RXCalls: float64(t.RXCalls) / s, TXCalls: float64(t.TXCalls) / s,
		Connections: float64(t.Connections()) / s,
	}
}
