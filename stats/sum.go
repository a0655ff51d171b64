// SPDX-License-Identifier: Apache-2.0

package stats

import "slices"

// Add returns the sum of each counter of s and other, and the gauges of s. It is the
// inverse of [Stats.Sub].
func (s Stats) Add(other Stats) Stats { return s.merge(other, sum) }

func sum(a, b uint64) uint64 { return a + b }

// Add is [Stats.Add] for one technology.
func (t Tech) Add(b Tech) Tech { return t.merge(b, sum) }

// Add is [Stats.Add] for a histogram.
func (h Histogram) Add(other Histogram) Histogram { return h.merge(other, sum) }

// Add is [Stats.Add] for the events of buffers.
func (b Buffers) Add(other Buffers) Buffers { return b.merge(other, sum) }

// Add returns the fallbacks of f and other together. It is the inverse of
// [Fallbacks.Sub].
func (f Fallbacks) Add(other Fallbacks) Fallbacks {
	f.ClientTotal += other.ClientTotal
	f.ServerTotal += other.ServerTotal
	f.Reasons = addReasons(f.Reasons, other.Reasons)
	f.PeerReasons = addReasons(f.PeerReasons, other.PeerReasons)
	return f
}

func addReasons(list, other []Fallback) []Fallback {
	list = slices.Clone(list)
	for _, r := range other {
		i := slices.IndexFunc(list, func(x Fallback) bool { return x.Side == r.Side && x.Reason == r.Reason })
		if i < 0 {
			list = append(list, r)
		} else {
			list[i].Count += r.Count
		}
	}
	return list
}
