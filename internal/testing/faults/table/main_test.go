// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun: the table replaces the old one, and the rest of the document stays.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	results, document := filepath.Join(dir, "rows"), filepath.Join(dir, "page.md")
	write := func(name, s string) {
		if err := os.WriteFile(name, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(results, `{"fault":"EMFILE","traffic":"x","runs":3,"connections":12,"bytes":5}`+"\n")
	write(document, "before\n"+begin+"old\n"+end+"after\n")
	if err := run([]string{results, document}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	if !strings.HasPrefix(s, "before\n"+begin) || !strings.HasSuffix(s, end+"after\n") || strings.Contains(s, "old") || !strings.Contains(s, "| EMFILE | x | 3 | 12 |") {
		t.Errorf("%s", s)
	}
	write(document, "no table\n")
	if err := run([]string{results, document}); !errors.Is(err, errNoMarks) {
		t.Errorf("a document without marks: %v", err)
	}
}
