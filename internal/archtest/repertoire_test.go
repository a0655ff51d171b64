// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	repertoireHeading = "## An adversary's repertoire"
	// repertoirePackage has the tests of which the table names no package.
	repertoirePackage = "internal/testing/e2e"
)

// borders are those from whom the page protects, and how many attacks of each there are at least.
var borders = map[string]int{"program": 4, "other user": 8, "container": 4, "LAN host": 8, "peer": 4, "root": 1}

// namedTests is a list of tests, with their package or without.
var namedTests = regexp.MustCompile("((?:`Test[A-Za-z0-9]+`(?: \\([a-z -]+\\))?(?:, | and )?)+)(?: in `([a-z/0-9]+)`)?")

// TestRepertoire walks the table of docs/security.md with the attacks that were tried: each has a border, a result and tests that exist, and no
// border is without attacks.
func TestRepertoire(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(moduleRoot, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), repertoireHeading)
	if !ok {
		t.Fatalf("no section %q", repertoireHeading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	attacks, seen := map[string]int{}, map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) == 1 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "by" {
			continue
		}
		if len(cells) != 6 {
			t.Errorf("%d columns: %s", len(cells)-2, line)
			continue
		}
		by, what, result := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		if borders[by] == 0 || result == "" || seen[what] {
			t.Errorf("no such border, no result, or twice: %s", line)
		}
		attacks[by]++
		seen[what] = true
		tests := 0
		for _, m := range namedTests.FindAllStringSubmatch(cells[4], -1) {
			dir := m[2]
			if dir == "" {
				dir = repertoirePackage
			}
			for _, name := range keptTestName.FindAllString(m[1], -1) {
				tests++
				if !hasTest(t, dir, name) {
					t.Errorf("%s: no test %s in %s", what, name, dir)
				}
			}
		}
		if tests == 0 {
			t.Errorf("no test: %s", line)
		}
	}
	for by, least := range borders {
		if attacks[by] < least {
			t.Errorf("%d attacks of %s, want %d", attacks[by], by, least)
		}
	}
}
