// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/bench"
	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
)

// TestBench runs a few rows of the benchmarks for a very short time: they fail if
// connections that are measured as SMC-R are not SMC-R. The values mean nothing.
func TestBench(t *testing.T) {
	netnstest.Require(t, "nsenter", "iperf3")
	dir := t.TempDir()
	program, results := filepath.Join(dir, "smcrbench"), filepath.Join(dir, "results")
	if err := built.Programs(t.Context(), dir, "smcr/internal/testing/bench/smcrbench"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	// The program removes its namespaces at its end. If it is killed, the next run
	// removes them.
	cmd := exec.CommandContext(ctx, program, "-smcr", bin("smcr"), "-force", "-rounds", "1", "-time", "100ms",
		"-rows", "iperf3-v1,cpu-1500,connect,goapi,memory", "-serve-flags", "--spin 0s", "-out", results)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r, _, err := bench.Newest(results)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), r.Commit) || r.ServeFlags != "--spin 0s" || r.Machine.Cores == 0 {
		t.Errorf("result %+v of\n%s", r, out)
	}
	if len(r.Rows) != 6 {
		t.Errorf("%d rows", len(r.Rows))
	}
	for _, row := range r.Rows {
		if len(row.TCP) != 1 || len(row.SMC) != 1 || row.SMC[0] <= 0 || row.TCP[0] < 0 || !row.Absolute && row.Value <= 0 {
			t.Errorf("row %+v", row)
		}
	}
}
