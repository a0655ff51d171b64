// SPDX-License-Identifier: Apache-2.0

package field

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTable: each script has its line, and each line its script, with variants that exist.
func TestTable(t *testing.T) {
	files, err := filepath.Glob("testdata/*.py")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range Cases {
		names = append(names, c.Name)
		if c.Rule == "" || len(c.Variants) == 0 || len(c.Quick) == 0 {
			t.Errorf("%s: no rule, no variants or no short form", c.Name)
		}
		for _, q := range c.Quick {
			if !slices.Contains(c.Variants, q) {
				t.Errorf("%s: the short form has %q, which is no variant", c.Name, q)
			}
		}
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".py")
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if name != "side" && !slices.Contains(names, name) {
			t.Errorf("%s is in no line of Cases", f)
		}
		if !strings.Contains(string(b), "\n\"\"\"") {
			t.Errorf("%s does not say which rule it is about", f)
		}
	}
	if len(files) != len(names)+1 {
		t.Errorf("%d scripts for %d cases", len(files)-1, len(names))
	}
}

// TestDifferences: an answer is right if TCP has given it once; a missing one, one too many
// and another one are differences; so is a side that does not end.
func TestDifferences(t *testing.T) {
	tcp := []answers{{"server/a": {"1"}, "client/b": {"2", "3"}}, {"server/a": {"7"}, "client/b": {"2", "3"}}}
	for _, tt := range []struct {
		got  answers
		want []string
	}{
		{answers{"server/a": {"1"}, "client/b": {"2", "3"}}, nil},
		{answers{"server/a": {"7"}, "client/b": {"2", "3"}}, nil},
		{answers{"server/a": {"8"}, "client/b": {"2", "3"}}, []string{"server/a: 8; TCP: 1"}},
		{answers{"server/a": {"1"}, "client/b": {"2"}}, []string{"client/b: 2; TCP: 2, 3"}},
		{answers{"server/a": {"1"}}, []string{"client/b: nothing; TCP: 2, 3"}},
		{answers{"server/a": {"1"}, "client/b": {"2", "3"}, "client/c": {"x"}}, []string{"client/c: x; TCP: nothing"}},
	} {
		r := &Result{Case: &Case{Name: "case"}, Variant: "v", Mode: Mode{Name: "smc"}, Answers: tt.got}
		if got := differences(tcp, r); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %q, want %q", tt.got, got, tt.want)
		}
	}
}
