// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// pair opens two devices on f for the verbs suite.
func (f *simNetwork) pair(t testing.TB, opts ...Option) verbstest.Pair {
	a, b := f.simPair(t, opts...)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return verbstest.Pair{A: verbstest.End{Dev: a}, B: verbstest.End{Dev: b}}
}

// TestStressLossy runs random work requests over networks with every kind of
// fault; the seed decides everything but the order of goroutines.
func TestStressLossy(t *testing.T) {
	faults := map[string]simFaults{
		"clean": {delay: 5 * time.Microsecond},
		"loss":  {delay: 10 * time.Microsecond, loss: 0.02},
		// With more loss, eight attempts in a row fail in one of some hundred runs.
		"heavy":   {delay: 10 * time.Microsecond, loss: 0.06},
		"dup":     {delay: 10 * time.Microsecond, dup: 0.1},
		"reorder": {delay: 10 * time.Microsecond, reorder: 0.05, jitter: 100 * time.Microsecond},
		"all":     {delay: 50 * time.Microsecond, loss: 0.03, dup: 0.03, reorder: 0.03, jitter: time.Millisecond},
	}
	ops, seeds := 250, uint64(2)
	if testing.Short() {
		ops, seeds = 60, 1
	}
	for name, ft := range faults {
		for mtu := smc.MTU256; mtu <= smc.MTU4096; mtu++ {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%s/%d/%d", name, mtu.Bytes(), seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newSimNetwork(seed, ft)
						a, b := verbstest.Connect(t, f.pair(t), verbstest.Config{
							MTU: mtu, PSN: 0xffffff - uint32(seed)*50, Reads: 1 + uint8(seed)*3, RNRRetry: 7, Timeout: 12,
						})
						verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: seed, Ops: ops, MaxSize: 20000})
						if f.count.lost > 20 && a.Dev.(*Device).Counters().Retransmits == 0 {
							t.Errorf("packets were lost (%+v) and none sent again", f.count)
						}
					})
				})
			}
		}
	}
}

// TestStressRandom draws the faults, the path and the sizes as well.
// SMCR_SOAK_SEEDS sets how many networks it tries.
func TestStressRandom(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 5
	}
	if n, err := strconv.ParseUint(os.Getenv("SMCR_SOAK_SEEDS"), 10, 32); err == nil {
		seeds = n
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 99))
				f := newSimNetwork(seed, simFaults{
					delay: time.Duration(r.IntN(200_000)), jitter: time.Duration(1 + r.IntN(3_000_000)),
					loss: r.Float64() * 0.1, dup: r.Float64() * 0.1, reorder: r.Float64() * 0.2,
				})
				a, b := verbstest.Connect(t, f.pair(t, WithWindow(windowMin+r.IntN(300), 0)), verbstest.Config{
					MTU: smc.MTU(1 + r.IntN(5)), PSN: r.Uint32() & psnMask, Reads: uint8(1 + r.IntN(8)), Timeout: uint8(10 + r.IntN(6)),
				})
				verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: seed, Ops: 200, MaxSize: 1 + r.IntN(40_000)})
			})
		})
	}
}
