// SPDX-License-Identifier: Apache-2.0

package stats

import "slices"

// Add returns the sum of each counter of s and other, and the gauges of s. It is the
// inverse of [Stats.Sub].
func (s Stats) Add(other Stats) Stats {
	s.SMCD, s.SMCR = s.SMCD.Add(other.SMCD), s.SMCR.Add(other.SMCR)
	s.ClientHandshakeErrors += other.ClientHandshakeErrors
	s.ServerHandshakeErrors += other.ServerHandshakeErrors
	s.ClientLocal += other.ClientLocal
	s.ServerLocal += other.ServerLocal
	s.Panics += other.Panics
	return s
}

// Add is [Stats.Add] for one technology.
func (t Tech) Add(b Tech) Tech {
	t.TXBufSizes, t.RXBufSizes = t.TXBufSizes.Add(b.TXBufSizes), t.RXBufSizes.Add(b.RXBufSizes)
	t.TXSizes, t.RXSizes = t.TXSizes.Add(b.TXSizes), t.RXSizes.Add(b.RXSizes)
	t.TXBufs, t.RXBufs = t.TXBufs.Add(b.TXBufs), t.RXBufs.Add(b.RXBufs)
	t.ClientV1 += b.ClientV1
	t.ClientV2 += b.ClientV2
	t.ServerV1 += b.ServerV1
	t.ServerV2 += b.ServerV2
	t.Sendpage += b.Sendpage
	t.Splice += b.Splice
	t.Cork += b.Cork
	t.NoDelay += b.NoDelay
	t.Urgent += b.Urgent
	t.RXBytes += b.RXBytes
	t.TXBytes += b.TXBytes
	t.RXCalls += b.RXCalls
	t.TXCalls += b.TXCalls
	return t
}

// Add is [Stats.Add] for a histogram.
func (h Histogram) Add(other Histogram) Histogram {
	for i := range h {
		h[i] += other[i]
	}
	return h
}

// Add is [Stats.Add] for the events of buffers.
func (b Buffers) Add(other Buffers) Buffers {
	b.SmallPeer += other.SmallPeer
	b.Small += other.Small
	b.FullPeer += other.FullPeer
	b.Full += other.Full
	b.Reuse += other.Reuse
	b.Alloc += other.Alloc
	b.Downgrade += other.Downgrade
	return b
}

// Add returns the fallbacks of f and other together. It is the inverse of
// [Fallbacks.Sub].
func (f Fallbacks) Add(other Fallbacks) Fallbacks {
	f.ClientTotal += other.ClientTotal
	f.ServerTotal += other.ServerTotal
	f.Reasons = slices.Clone(f.Reasons)
	for _, r := range other.Reasons {
		i := slices.IndexFunc(f.Reasons, func(x Fallback) bool { return x.Side == r.Side && x.Reason == r.Reason })
		if i < 0 {
			f.Reasons = append(f.Reasons, r)
		} else {
			f.Reasons[i].Count += r.Count
		}
	}
	return f
}
