// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestRounds repeats all system tests of a module: the first round has all tests, the others those
// that have said that they are system tests and are not skipped.
func TestRounds(t *testing.T) {
	testkind.System(t)
	out := t.TempDir()
	const system = "\tt.Attr(\"kind\", \"system\")\n"
	plant(t, "system", "func TestWell(t *testing.T) {\n"+system+"}\n\nfunc TestOnce(t *testing.T) {\n"+system+"\tfailsOnce(t)\n}\n\n"+
		"func TestNever(t *testing.T) {\n"+system+"\tt.Skip()\n}\n\nfunc TestPureFails(t *testing.T) { t.Error(\"as always\") }\n")
	var stdout, stderr bytes.Buffer
	status := command(t.Context(), []string{"repeat", "-gate", "-count", "3", "-load", "1", "-out", out}, &stdout, &stderr)
	if status != 1 || stderr.Len() > 0 {
		t.Errorf("exit status %d: %s", status, &stderr)
	}
	for _, want := range []string{
		"3 rounds of 2 packages", "beside 1 busy loops\n",
		"round 1: 3 passed, 2 failed, ", " s system TestOnce, system TestPureFails\n",
		"round 2: 2 passed, 0 failed, ", "round 3: 2 passed, 0 failed, ",
		"   1 of 3 failed  system TestOnce\n   1 of 3 failed  system TestPureFails\n",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, &stdout)
		}
	}
	if b, err := os.ReadFile(filepath.Join(out, "system-TestOnce-1.log")); err != nil || !strings.Contains(string(b), "unlucky") {
		t.Errorf("what the failed test printed: %q, %v", b, err)
	}
}
