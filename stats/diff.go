// SPDX-License-Identifier: Apache-2.0

package stats

import "time"

// Sub returns what happened since the snapshot before: the difference of each
// counter, and the value of each gauge in s. A counter that is smaller than before
// belongs to a stack that was started again: Sub returns all of it.
func (s Stats) Sub(before Stats) Stats {
	return Stats{
		SMCD:                  s.SMCD.Sub(before.SMCD),
		SMCR:                  s.SMCR.Sub(before.SMCR),
		ClientHandshakeErrors: since(s.ClientHandshakeErrors, before.ClientHandshakeErrors),
		ServerHandshakeErrors: since(s.ServerHandshakeErrors, before.ServerHandshakeErrors),
		ClientLocal:           since(s.ClientLocal, before.ClientLocal),
		ServerLocal:           since(s.ServerLocal, before.ServerLocal),
		Panics:                since(s.Panics, before.Panics),
	}
}

func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// Sub is [Stats.Sub] for one technology.
func (t Tech) Sub(b Tech) Tech {
	return Tech{
		TXBufSizes: t.TXBufSizes.Sub(b.TXBufSizes), RXBufSizes: t.RXBufSizes.Sub(b.RXBufSizes),
		TXSizes: t.TXSizes.Sub(b.TXSizes), RXSizes: t.RXSizes.Sub(b.RXSizes),
		TXBufs: t.TXBufs.Sub(b.TXBufs), RXBufs: t.RXBufs.Sub(b.RXBufs),
		ClientV1: since(t.ClientV1, b.ClientV1), ClientV2: since(t.ClientV2, b.ClientV2),
		ServerV1: since(t.ServerV1, b.ServerV1), ServerV2: since(t.ServerV2, b.ServerV2),
		Sendpage: since(t.Sendpage, b.Sendpage), Splice: since(t.Splice, b.Splice), Cork: since(t.Cork, b.Cork),
		NoDelay: since(t.NoDelay, b.NoDelay), Urgent: since(t.Urgent, b.Urgent),
		RXBytes: since(t.RXBytes, b.RXBytes), TXBytes: since(t.TXBytes, b.TXBytes),
		RXCalls: since(t.RXCalls, b.RXCalls), TXCalls: since(t.TXCalls, b.TXCalls),
		RXUsage: t.RXUsage, TXUsage: t.TXUsage,
		NotCounted: t.NotCounted,
	}
}

// Sub is [Stats.Sub] for a histogram.
func (h Histogram) Sub(before Histogram) Histogram {
	for i := range h {
		h[i] = since(h[i], before[i])
	}
	return h
}

// Sub is [Stats.Sub] for the events of buffers.
func (b Buffers) Sub(before Buffers) Buffers {
	return Buffers{
		SmallPeer: since(b.SmallPeer, before.SmallPeer),
		Small:     since(b.Small, before.Small),
		FullPeer:  since(b.FullPeer, before.FullPeer),
		Full:      since(b.Full, before.Full),
		Reuse:     since(b.Reuse, before.Reuse),
		Alloc:     since(b.Alloc, before.Alloc),
		Downgrade: since(b.Downgrade, before.Downgrade),
	}
}

// Sub returns the fallbacks since the snapshot before. It has only the reasons
// that occurred since then.
func (f Fallbacks) Sub(before Fallbacks) Fallbacks {
	counts := make(map[Fallback]uint64, len(before.Reasons))
	for _, r := range before.Reasons {
		counts[Fallback{Side: r.Side, Reason: r.Reason}] = r.Count
	}
	d := Fallbacks{
		ClientTotal: since(f.ClientTotal, before.ClientTotal),
		ServerTotal: since(f.ServerTotal, before.ServerTotal),
	}
	for _, r := range f.Reasons {
		r.Count = since(r.Count, counts[Fallback{Side: r.Side, Reason: r.Reason}])
		if r.Count > 0 {
			d.Reasons = append(d.Reasons, r)
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
