// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"math"
	"testing"
)

func TestParseProfile(t *testing.T) {
	// This is the output of go tool pprof of Go 1.26.
	const good = `File: load
Type: cpu
Duration: 1.21s, Total samples = 1s (82.6%)
Showing nodes accounting for 1s, 100% of 1s total
      flat  flat%   sum%        cum   cum%
     0.40s 40.00% 40.00%      0.40s 40.00%  internal/runtime/syscall/linux.Syscall6
     0.10s 10.00% 50.00%      0.10s 10.00%  runtime.futex
     200ms 20.00% 70.00%      0.20s 20.00%  runtime.memmove
      50ms  5.00% 75.00%      0.90s 90.00%  smcr/rdmaverbs/softroce.(*Device).deliver (inline)
      50ms  5.00% 80.00%      0.90s 90.00%  smcr/userstack/linkgroup.(*Group).Received
     100ms 10.00% 90.00%      0.90s 90.00%  smcr/userstack.(*Conn).Write
      50ms  5.00% 95.00%      0.05s  5.00%  runtime.findRunnable
      50ms  5.00%   100%      0.05s  5.00%  main.echo
         0     0%   100%      0.90s 90.00%  main.main
`
	got, err := ParseProfile([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{0.40, 0.10, 0.20, 0.05, 0.05, 0.10, 0.05, 0.05} {
		if math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", AreaNames[i], got[i], want)
		}
	}
	for _, bad := range []string{"", "File: load\n", " flat flat% sum% cum cum%\n x 1% 1% 1s 1% main.main\n", " flat flat% sum% cum cum%\n 0 0% 0% 0 0% main.main\n"} {
		if got, err := ParseProfile([]byte(bad)); !errors.Is(err, ErrOutput) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

// TestAreasAreNamed: every area must be in AreaNames, otherwise it would be missing in
// the results.
func TestAreasAreNamed(t *testing.T) {
	used := map[string]bool{areaRest: true}
	for _, a := range areas {
		used[a.area] = true
	}
	for _, name := range AreaNames {
		if !used[name] {
			t.Errorf("nothing is %q", name)
		}
		delete(used, name)
	}
	if len(used) > 0 {
		t.Errorf("no places: %v", used)
	}
}
