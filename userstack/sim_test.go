// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 60, "seeds that TestSimulation tries")
	simFirst = flag.Uint64("sim.first", 1, "the first of them")
	simShow  = flag.Bool("sim.trace", false, "print the trace of each seed")
	simTwice = flag.Bool("sim.twice", false, "run each seed twice and compare what happened")
	simLines = flag.Int("sim.lines", 300, "lines of the trace of a failing seed")
)

func TestSimulation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for seed := *simFirst; seed < *simFirst+*simSeeds; seed++ {
		if seed%4 == 0 {
			runtime.GC()
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { simSeed(t, seed) }) {
			break
		}
	}
}

func simSeed(t *testing.T, seed uint64) {
	res := simulate(t, seed, *simShow)
	if *simTwice {
		again := simulate(t, seed, *simShow)
		for range 4 {
			switch {
			case res.late:
				res = simulate(t, seed, *simShow)
			case again.late:
				again = simulate(t, seed, *simShow)
			}
		}
		if again.hash != res.hash {
			t.Errorf("seed %d ran differently (%v %v):\n%s", seed, res.late, again.late, simDiff(res.trace, again.trace))
		}
	}
	if *simShow || res.failure != "" {
		res.dump(os.Stderr, *simLines)
	}
	if res.failure != "" {
		t.Errorf("seed %d (%s): %s", seed, res.mode, res.failure)
	}
}

// simDiff shows where two runs of a seed part.
func simDiff(a, b *simTracer) string {
	for i := range min(len(a.recs), len(b.recs)) {
		x, y := &a.recs[i], &b.recs[i]
		if x.at == y.at && x.text() == y.text() {
			continue
		}
		out := ""
		for _, r := range a.recs[max(0, i-8):i] {
			out += fmt.Sprintf("  +%s %s\n", r.at, r.text())
		}
		return out + fmt.Sprintf("1 +%s %s\n2 +%s %s", x.at, x.text(), y.at, y.text())
	}
	return "one is longer"
}
