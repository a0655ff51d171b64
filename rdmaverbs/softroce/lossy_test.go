// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
)

// pair opens two devices on f for the verbs suite.
func (f *simFabric) pair(t testing.TB, opts ...Option) verbstest.Pair {
	a, b := f.simPair(t, opts...)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return verbstest.Pair{A: verbstest.End{Dev: a}, B: verbstest.End{Dev: b}}
}

// TestStressLossy runs random work requests over fabrics with every kind of
// fault; the seed decides everything but the order of goroutines.
func TestStressLossy(t *testing.T) {
	faults := map[string]simFaults{
		"clean":   {delay: 5 * time.Microsecond},
		"loss":    {delay: 10 * time.Microsecond, loss: 0.02},
		"heavy":   {delay: 10 * time.Microsecond, loss: 0.15},
		"dup":     {delay: 10 * time.Microsecond, dup: 0.1},
		"reorder": {delay: 10 * time.Microsecond, reorder: 0.05, jitter: 100 * time.Microsecond},
		"all":     {delay: 50 * time.Microsecond, loss: 0.03, dup: 0.03, reorder: 0.03, jitter: time.Millisecond},
	}
	ops, seeds := 250, uint64(2)
	if testing.Short() {
		ops, seeds = 60, 1
	}
	for name, ft := range faults {
		for mtu := rdmaverbs.MTU256; mtu <= rdmaverbs.MTU4096; mtu++ {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%s/%d/%d", name, mtu.Bytes(), seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newSimFabric(seed, ft)
						a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{
							MTU: mtu, PSN: 0xffffff - uint32(seed)*50, Reads: 1 + uint8(seed)*3, RNRRetry: 7, Timeout: 12,
						})
						verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: seed, Ops: ops, MaxSize: 20000})
						st := a.QP.(*qp).ep.stats
						t.Logf("%+v %+v", f.count, st)
					})
				})
			}
		}
	}
}
