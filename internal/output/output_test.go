// SPDX-License-Identifier: Apache-2.0

package output

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	tb := NewTable("NAME", ">#N", "LAST")
	var b strings.Builder
	if err := tb.Print(&b); err != nil || b.String() != "NAME  #N  LAST\n" {
		t.Errorf("empty table: %q, %v", b.String(), err)
	}
	b.Reset()
	tb.Add("a", 5, "x")
	tb.Add("größer", 12345, "")
	tb.Add("e\x1b[31m\n", -1, "\xff")
	want := "" +
		"NAME        #N  LAST\n" +
		"a            5  x\n" +
		"größer   12345\n" +
		"e?[31m?     -1  ?\n"
	if err := tb.Print(&b); err != nil || b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestJSON(t *testing.T) {
	var b strings.Builder
	if err := JSON[int](&b, nil); err != nil || b.String() != "[]\n" {
		t.Errorf("nil: %q, %v", b.String(), err)
	}
	b.Reset()
	if err := JSON(&b, []map[string]string{{"a": "<&>"}}); err != nil || !strings.Contains(b.String(), `"a": "<&>"`) {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, test := range []struct{ first, text, rest, want string }{
		{"A: ", "", "   ", "A: "},
		{"A: ", "one two", "   ", "A: one two"},
		{"A: ", strings.Repeat("word ", 18), "   ", "A: " + strings.TrimSpace(strings.Repeat("word ", 17)) + "\n   word"},
		{"", "a " + long + " b", "", "a\n" + long + "\nb"},
	} {
		if got := Wrap(test.first, test.text, test.rest); got != test.want {
			t.Errorf("%q: %q, want %q", test.text, got, test.want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 65536: "64KiB", 1<<20 - 1: "1MiB", 1<<20 - 100: "1023.9KiB",
		1 << 20: "1MiB", 5 << 30: "5GiB", 1<<64 - 1: "16EiB",
	} {
		if got := Size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
