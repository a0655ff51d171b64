// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"sync/atomic"
	"time"
)

// Times counts how long something took, in steps of 9 percent: element i has what took less than [bound](i).
type Times []int64

// perOctave is how many steps there are until a time has doubled, and steps how many of them: up to 30 minutes.
const (
	perOctave = 8
	steps     = 41 * perOctave
)

// bound returns the longest time of a step.
func bound(step int) time.Duration {
	return time.Duration(math.Exp2(float64(step+1) / perOctave))
}

// Count returns of how many there is a time.
func (t Times) Count() (n int64) {
	for _, k := range t {
		n += k
	}
	return n
}

// Within returns in what time a share of them was over, from 0 to 1, with up to 9 percent more; 0 if there was none. With 1, it is the longest time.
func (t Times) Within(share float64) time.Duration {
	rest := int64(math.Ceil(float64(t.Count()) * share))
	for step, k := range t {
		if rest -= k; rest <= 0 && k > 0 {
			return bound(step)
		}
	}
	return 0
}

// Above returns how many took longer than a time, but for those in the step of that time.
func (t Times) Above(limit time.Duration) (n int64) {
	for step, k := range t {
		if step > stepOf(limit) {
			n += k
		}
	}
	return n
}

// Since returns those that came after an earlier count.
func (t Times) Since(earlier Times) Times {
	out := append(Times(nil), t...)
	for i, k := range earlier {
		out[i] -= k
	}
	return out
}

// add adds another count.
func (t *Times) add(o Times) {
	for len(*t) < len(o) {
		*t = append(*t, 0)
	}
	for i, k := range o {
		(*t)[i] += k
	}
}

func stepOf(d time.Duration) int {
	return min(max(0, int(math.Log2(float64(max(d, 1)))*perOctave)), steps-1)
}

// times are Times that many goroutines count in.
type times [steps]atomic.Int64

func (t *times) took(d time.Duration) { t[stepOf(d)].Add(1) }

// load returns them without the zeros at the end.
func (t *times) load() Times {
	n := len(t)
	for n > 0 && t[n-1].Load() == 0 {
		n--
	}
	out := make(Times, n)
	for i := range out {
		out[i] = t[i].Load()
	}
	return out
}
