// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 60, "seeds that TestSimulation tries")
	simFirst = flag.Uint64("sim.first", 1, "the first of them")
	simShow  = flag.Bool("sim.trace", false, "print the trace of each seed")
	simTwice = flag.Bool("sim.twice", false, "run each seed twice and compare what happened")
	simLines = flag.Int("sim.lines", 300, "lines of the trace of a failing seed")
)

// raceDetector reports whether the test runs with the race detector, which changes the
// order of goroutines.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestSimulation connects whole stacks over a simulated fabric. Each seed is a different
// history: newSimulation chooses the hosts, plan chooses what happens, and check tests
// the invariants after each step. plantedBugs are faults that this test finds.
//
// A seed that fails prints its history. The history is the same in each run of the seed:
//
//	go test ./userstack/stacktest -run 'TestSimulation$' -sim.seeds 1 -sim.first 4711 -sim.trace
func TestSimulation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	seeds := *simSeeds
	if testing.Short() {
		seeds = min(seeds, 12) // `make test` runs more of them without the race detector
	}
	for seed := *simFirst; seed < *simFirst+seeds; seed++ {
		if seed%4 == 0 {
			runtime.GC()
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { simSeed(t, seed) }) {
			break
		}
	}
}

// TestSimulationRepeats checks that a seed always has the same history.
func TestSimulationRepeats(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector shuffles goroutines: go test -run TestSimulationRepeats ./userstack/stacktest")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for seed := range uint64(24) {
		simRepeat(t, 1_000_000+seed)
		runtime.GC()
	}
}

// simRepeat runs a seed twice and compares the histories. If the machine has delayed one
// run, the histories may differ, and simRepeat tries again. A short delay is not always noticed, so
// it takes three pairs that differ: what is random in the stack differs nearly always.
func simRepeat(t *testing.T, seed uint64) simResult {
	a, b := simulate(t, seed, *simShow), simulate(t, seed, *simShow)
	different := 0
	for range 20 {
		switch {
		case a.hash == b.hash:
			return a
		case a.late:
			a = simulate(t, seed, *simShow)
		case b.late:
			b = simulate(t, seed, *simShow)
		case different < 2:
			different++
			t.Logf("seed %d ran differently", seed)
			a, b = simulate(t, seed, *simShow), simulate(t, seed, *simShow)
		default:
			t.Errorf("seed %d ran differently:\n%s", seed, simDiff(a.trace, b.trace))
			return a
		}
	}
	t.Logf("seed %d: the machine is too busy to compare two runs", seed)
	return a
}

func simSeed(t *testing.T, seed uint64) {
	var res simResult
	if *simTwice {
		res = simRepeat(t, seed)
	} else {
		res = simulate(t, seed, *simShow)
	}
	if *simShow || res.failure != "" {
		res.dump(os.Stderr, *simLines)
	}
	if res.failure != "" {
		t.Errorf("seed %d (%s): %s\nagain: make soak SEEDS=1 FIRST=%d", seed, res.mode, res.failure, seed)
	}
}

// simDiff returns the first difference between two runs of a seed.
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
