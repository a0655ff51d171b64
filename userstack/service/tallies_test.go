// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	"smcr/smc"
	"smcr/stats"
	"smcr/userstack"
)

func TestTallies(t *testing.T) {
	ts := tallies{of: map[uint64]*tally{}}
	ts.add(7)
	ts.add(7) // keeps what there is
	ts.count(7, smc.Client, nil)
	ts.add(7)
	for range 3 {
		ts.count(7, smc.Server, &userstack.DeclineError{Code: smc.DiagNoSMCRDev})
	}
	ts.count(8, smc.Client, nil) // is not attached
	if got := ts.get(8); got.SMCR != 0 || got.TCP != nil || len(ts.of) != 1 {
		t.Errorf("%+v, %d", got, len(ts.of))
	}
	want := stats.Fallback{Side: smc.Server, Reason: uint32(smc.DiagNoSMCRDev), Count: 3}
	if got := ts.get(7); got.SMCR != 1 || len(got.TCP) != 1 || got.TCP[0] != want {
		t.Errorf("%+v", got)
	}
	// A peer chooses reasons: their number is bounded, that of connections is right.
	for i := range 2 * maxReasons {
		ts.count(7, smc.Client, &userstack.DeclineError{Code: smc.Diagnosis(i + 1), Remote: true})
	}
	var n uint64
	got := ts.get(7)
	for _, r := range got.TCP {
		n += r.Count
	}
	if len(got.TCP) > maxReasons+1 || n != 3+2*maxReasons {
		t.Errorf("%d reasons, %d connections", len(got.TCP), n)
	}
	ts.drop(7)
	if got := ts.get(7); got.SMCR != 0 || len(ts.of) != 0 {
		t.Errorf("%+v, %d", got, len(ts.of))
	}
}
