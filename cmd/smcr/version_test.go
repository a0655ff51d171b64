// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

func TestVersion(t *testing.T) {
	vcs := func(dirty string) *debug.BuildInfo {
		return &debug.BuildInfo{Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: dirty},
		}}
	}
	defer func(r string) { revision = r }(revision)
	for _, test := range []struct {
		revision string
		info     *debug.BuildInfo
		want     string
	}{
		{"", nil, release},
		{"", &debug.BuildInfo{}, release},
		{"", vcs("false"), release + " (0123456789ab)"},
		{"", vcs("true"), release + " (0123456789ab-dirty)"},
		{"v0.1.0-3-gabc", vcs("true"), release + " (v0.1.0-3-gabc)"},
	} {
		revision = test.revision
		if got := version(test.info); got != test.want {
			t.Errorf("%q: %q, want %q", test.revision, got, test.want)
		}
	}
}

// TestVersionWithoutGit builds the program like a source archive without git.
func TestVersionWithoutGit(t *testing.T) {
	testkind.System(t)
	bin := filepath.Join(t.TempDir(), "smcr")
	// These are the flags of make if git does not know the tree.
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags", "-X main.revision=", "-o", bin, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), bin, "--version").CombinedOutput()
	if want := "smcr " + release + "\n"; err != nil || string(out) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
	help, err := exec.CommandContext(t.Context(), bin, "--help").CombinedOutput()
	if err != nil || strings.Contains(string(help), "-v, --version") || !strings.Contains(string(help), "--version") {
		t.Errorf("%v, help:\n%s", err, help)
	}
	// -v is an option of smc-tools, and the help says so.
	out, _ = exec.CommandContext(t.Context(), bin, "-v").CombinedOutput()
	if want := "smcr utility, smc-tools-1.8.5\n"; string(out) != want {
		t.Errorf("-v: %q, want %q", out, want)
	}
}
