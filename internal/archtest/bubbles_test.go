// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSignals finds packages with tests in bubbles whose code, or that of a package which they import, uses os/signal:
// they have to call testkind.Signals, which says why.
func TestSignals(t *testing.T) {
	pkgs := map[string]pkg{}
	for _, p := range list(t) {
		pkgs[p.ImportPath] = p
	}
	uses := map[string]bool{} // known packages
	var reaches func(path string) bool
	reaches = func(path string) bool {
		if path == "os/signal" {
			return true
		}
		p, ok := pkgs[path]
		if !ok {
			return false
		}
		is, known := uses[path]
		if !known {
			uses[path] = false // packages do not import each other in circles
			is = slices.ContainsFunc(p.Imports, reaches)
			uses[path] = is
		}
		return is
	}
	found := 0
	for _, p := range pkgs {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || !reaches(p.ImportPath) {
			continue
		}
		bubble, begun := false, false
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			bubble = bubble || strings.Contains(string(text), "synctest.Test(") || strings.Contains(string(text), "bedtest.Bubble(")
			begun = begun || strings.Contains(string(text), "var _ = testkind.Signals()") || strings.Contains(string(text), "var _ = Signals()")
		}
		if bubble && !begun {
			t.Errorf("%s: tests in bubbles may use os/signal: add var _ = testkind.Signals()", p.ImportPath)
		}
		if bubble {
			found++
		}
	}
	if found == 0 {
		t.Error("no such package: the test does not find what it looks for")
	}
}
