// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/stats"
)

// ownSample returns a stack in user space whose own counters are all n or more.
func ownSample(n uint64) nltest.State {
	times := stats.Times{Counts: [stats.TimeBuckets]uint64{2: n}, Sum: 1000 * n}
	return nltest.State{
		Stats: nl.Stats{
			SMCR:   stats.Tech{RXBytes: 100 * n},
			Panics: n + 2, Failovers: n + 3, ClientHandshakeErrors: n + 4,
			ClientHandshakeTimes: times, ServerHandshakeTimes: times,
			Engine: stats.Engine{Threads: 2, CPU: n + 5, Rounds: n + 6, Sleeps: n + 7},
		},
		Fallbacks: nl.Fallbacks{
			ClientTotal: 2 * n, Reasons: []nl.Fallback{{Reason: uint32(smc.DiagPeerDeclined), Count: 2 * n}},
			PeerReasons: []nl.Fallback{{Reason: uint32(smc.DiagMem), Count: n}, {Count: n}},
		},
	}
}

// TestOwnCounters: a reset applies to the counters that only stacks in user space have.
func TestOwnCounters(t *testing.T) {
	before, now := ownSample(10), ownSample(13)
	b := newBench(t, before)
	for name, reset := range map[string]func(){
		"smcr": func() {
			if err := Reset(b.env(), "user", before.Stats, before.Fallbacks); err != nil {
				t.Fatal(err)
			}
		},
		"the program of smc-tools": func() { b.run("smcr stats reset") },
	} {
		reset()
		s, f, err := SinceReset(b.env(), "user", now.Stats, now.Fallbacks)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(now.Stats.Sub(before.Stats), s); diff != "" {
			t.Errorf("%s: statistics since the reset (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(now.Fallbacks.Sub(before.Fallbacks), f); diff != "" {
			t.Errorf("%s: fallbacks since the reset (-want +got):\n%s", name, diff)
		}
		b.fake = nltest.NewFake(now)
		if got := b.value("smcr stats", "Panics survived"); got != "3" {
			t.Errorf("%s: %s panics shown", name, got)
		}
		b.fake = nltest.NewFake(before)
	}
}

// TestWithoutOwnCounters: a file without the own counters, such as that of an earlier release,
// is a reset of the others.
func TestWithoutOwnCounters(t *testing.T) {
	before, now := ownSample(10), ownSample(13)
	b := newBench(t, before)
	b.run("smcr stats reset")
	file, err := os.ReadFile(b.cache)
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.IndexByte(file, '{')
	if i < 0 {
		t.Fatalf("no own counters in\n%s", file)
	}
	if err := os.WriteFile(b.cache, file[:i], 0o600); err != nil {
		t.Fatal(err)
	}
	s, f, err := SinceReset(b.env(), "user", now.Stats, now.Fallbacks)
	if err != nil || s.SMCR.RXBytes != 300 || s.Panics != now.Stats.Panics || f.ClientTotal != 6 {
		t.Errorf("%+v, %+v, %v", s, f, err)
	}
}
