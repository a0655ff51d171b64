// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAnnexTable checks that the tests which docs/roce-annex.md names exist,
// and that it leaves no compliance statement out.
func TestAnnexTable(t *testing.T) {
	doc, err := os.ReadFile("../../docs/roce-annex.md")
	if err != nil {
		t.Fatal(err)
	}
	var src strings.Builder
	for _, pattern := range []string{"*_test.go", "header/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			src.Write(b)
		}
	}
	names := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(string(doc), -1)
	if len(names) < 20 {
		t.Errorf("only %d tests named", len(names))
	}
	for _, m := range names {
		if !strings.Contains(src.String(), "func "+m[1]+"(") {
			t.Errorf("no test %s", m[1])
		}
	}
	for _, s := range strings.Fields("5 6 7 8 9 10 11 12 13 14 15 15.1.1 16 17 18 19 20 21 22 23") {
		if !strings.Contains(string(doc), "\n| CA16-"+s+" |") {
			t.Errorf("no row for CA16-%s", s)
		}
	}
}
