// SPDX-License-Identifier: Apache-2.0

package nl

import "smcr/stats"

// timesAttrs and engineAttrs encode the counters of package stats that only a stack in user
// space has.
type (
	timesAttrs  stats.Times
	engineAttrs stats.Engine
)

func (t *timesAttrs) encode(ae *attrEncoder) {
	ae.Uint64(attrTimesSum, t.Sum)
	for i, n := range t.Counts {
		ae.Uint64(uint16(attrTimesCounts+i), n)
	}
}

func (t *timesAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		if typ := ad.Type(); typ == attrTimesSum {
			t.Sum = number(ad)
		} else if i := int(typ) - attrTimesCounts; i >= 0 && i < len(t.Counts) {
			t.Counts[i] = number(ad)
		}
	}
	return ad.Err()
}

func (e *engineAttrs) encode(ae *attrEncoder) {
	ae.Uint64(attrEngineThreads, e.Threads)
	ae.Uint64(attrEngineCPU, e.CPU)
	ae.Uint64(attrEngineRounds, e.Rounds)
	ae.Uint64(attrEngineSleeps, e.Sleeps)
}

func (e *engineAttrs) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrEngineThreads:
			e.Threads = number(ad)
		case attrEngineCPU:
			e.CPU = number(ad)
		case attrEngineRounds:
			e.Rounds = number(ad)
		case attrEngineSleeps:
			e.Sleeps = number(ad)
		}
	}
	return ad.Err()
}
