// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestContributing checks that the files which CONTRIBUTING.md names are there.
// Names in capitals stand for what a contributor chooses.
func TestContributing(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile("`((?:\\w+/)+[\\w./-]+)`").FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	for _, m := range regexp.MustCompile(`(?m)^--- (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	if len(names) < 20 {
		t.Errorf("CONTRIBUTING.md names only %d files", len(names))
	}
	choice := regexp.MustCompile(`NAME|NOUN|OBJECT|fallback`)
	for _, name := range names {
		if choice.MatchString(name) || name == "linux/smc.h" {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(name, "/"))); err != nil {
			t.Errorf("CONTRIBUTING.md: %v", err)
		}
	}
}
