// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Tests run beside each other, and beside the work of others: a command that finds processes by a name, or by a socket or file that they use, finds
// those of others, too. So such a command says which are meant: those of a namespace (--ns) or the children of a process (-P). Or it runs
// where there are no others.

var (
	// byName are commands that find by name, and by what users of a file or a socket are ended.
	byName = regexp.MustCompile(`\b(?:pkill|pgrep|killall5?|pidof|skill|fuser)\b|\bss",? "?-K|\bss -\w*K|\bloginctl (?:kill|terminate)`)
	// bounded is such a command that says which.
	bounded = regexp.MustCompile(`\b(?:pkill|pgrep) [^|;&]*(?:--ns |-P |--parent )`)
)

// byNameParts are parts of all that byName finds. To look for them takes a fraction of the time that an expression takes.
var byNameParts = []string{"pkill", "pgrep", "killall", "pidof", "skill", "fuser", "loginctl ", "ss -", "-K"}

// mayFind reports whether byName may find something in a text.
func mayFind(text string) bool {
	return slices.ContainsFunc(byNameParts, func(part string) bool { return strings.Contains(text, part) })
}

// ownProcesses are the files whose commands run where no others are, and why.
var ownProcesses = map[string]string{
	"internal/archtest/byname_test.go":            "it has the names",
	"internal/testing/doctest/docs_test.go":       "a host of the documents is a PID namespace",
	"internal/testing/doctest/doc.go":             "it says so",
	"docs/how-it-works.md":                        "TestProcesses: a host of the documents is a PID namespace",
	"docs/tracing.md":                             "TestProcesses",
	"internal/testing/e2e/systemd_demand_test.go": "the machine with systemd is a PID namespace",
	"internal/testing/e2e/systemd_units_test.go":  "the machine with systemd is a PID namespace",
	"internal/testing/e2e/systemd_lost_test.go":   "the machine with systemd is a PID namespace",
	"internal/testing/e2e/mainprocess_test.go":    "the name of a program that it requires",
	"internal/testing/guest/guest_test.go":        "a guest",
	"internal/testing/interop/big_test.go":        "a guest",
}

// unbounded returns the numbers of the lines with a command that finds by name and does not say which.
func unbounded(text string) (lines []int) {
	if !mayFind(text) {
		return nil
	}
	n := 0
	for line := range strings.Lines(text) {
		if n++; !mayFind(line) {
			continue
		}
		if left := bounded.ReplaceAllString(line, ""); byName.MatchString(left) {
			lines = append(lines, n)
		}
	}
	return lines
}

// TestByName checks the rule above in all that is source, script or document.
func TestByName(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir(moduleRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(moduleRoot, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if d.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		script := strings.HasPrefix(rel, "scripts/") || strings.HasPrefix(rel, "deploy/") || filepath.Ext(rel) == "" && strings.Contains(rel, "testdata/")
		switch filepath.Ext(rel) {
		case ".go", ".md", ".py", ".sh", ".service":
		default:
			if rel != "Makefile" && !script {
				return nil
			}
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range unbounded(string(b)) {
			if used[rel] = true; ownProcesses[rel] == "" {
				t.Errorf("%s:%d: finds processes of all: say of which namespace (--ns) or parent (-P), or end it by its number", rel, line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for file := range ownProcesses {
		if !used[file] {
			t.Errorf("%s: no such command is there", file)
		}
	}
}

// TestByNameFound checks what unbounded finds.
func TestByNameFound(t *testing.T) {
	for line, want := range map[string]bool{
		"pkill tcpdump": true, "sleep 1; killall nginx": true, `m.must("pgrep", "-f", "x")`: true, "pgrep -x sleep; pgrep -P 1": true,
		"killall5 -9": true, "skill -TERM x": true, "loginctl kill x": true, "loginctl terminate-user x": true,
		"fuser -k 80/tcp": true, "kill $(pidof nginx)": true, "ss -K dst 10.0.0.1": true, `"ss", "-K"`: true, "ss -tK": true,
		"pkill --ns $$ --nslist net tcpdump": false, "kill -TERM $(pgrep -P $!)": false, "kill $!": false, "ss -Hltn": false, `"ethtool", "-K"`: false,
	} {
		if got := len(unbounded(line)) > 0; got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
}
