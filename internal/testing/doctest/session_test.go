// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = "Text.\n" +
	"\n" +
	"    hostA# serve -p 80 &\n" +
	"    hostB$ get \\\n" +
	"             hostA\n" +
	"    3 bytes from …:80\n" +
	"\n" +
	"    done\n" +
	"\n" +
	"A list:\n" +
	"- item\n" +
	"    hostA# not a block\n" +
	"\n" +
	"```console\n" +
	"hostB# false\n" +
	"(exit status 1)\n" +
	"```\n" +
	"\n" +
	"    smcr info    # for nobody\n"

func TestParse(t *testing.T) {
	want := []Command{
		{Line: 3, Host: "hostA", Root: true, Text: "serve -p 80", Background: true},
		{Line: 4, Host: "hostB", Text: "get \\\n         hostA", Output: []string{"3 bytes from …:80", "done"}},
		{Line: 15, Host: "hostB", Root: true, Text: "false", Exit: 1},
	}
	if diff := cmp.Diff(want, Parse(page)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"smcr info    # for nobody"}, Loose(page, "smcr", "get")); diff != "" {
		t.Error(diff)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		want   string
		output string
		status int
		ok     bool
	}{
		{"", "anything", 0, true},
		{"", "", 1, false},
		{"(exit status 3)", "", 3, true},
		{"(exit status 3)", "", 0, false},
		{"a  b", "x\na b\ny", 0, true},
		{"a b", "ab", 0, false},
		{"a b", "a b c", 0, false},
		{"a …", "a b c", 0, true},
		{"… c", "a b c", 0, true},
		{"id=…;", "id=12;", 0, true},
		{"id=…;", "id=12", 0, false},
		{"1\n2", "1\n2", 0, true},
		{"1\n2", "2\n1", 0, false},
		{"1\n1", "1", 0, false},
		{"a.c", "abc", 0, false},
	} {
		list := Parse("    hostA# x\n    " + strings.ReplaceAll(c.want, "\n", "\n    ") + "\n")
		if len(list) != 1 {
			t.Fatalf("%q: %d commands", c.want, len(list))
		}
		if err := list[0].Check(c.output, c.status); (err == nil) != c.ok {
			t.Errorf("page %q, output %q, status %d: %v", c.want, c.output, c.status, err)
		}
	}
}

// FuzzParse: no document makes the parser or the comparison fail.
func FuzzParse(f *testing.F) {
	f.Add(page)
	f.Fuzz(func(t *testing.T, document string) {
		for _, c := range Parse(document) {
			if c.Text == "" || c.Line < 1 {
				t.Errorf("%+v", c)
			}
			_ = c.Check(document, c.Exit)
		}
	})
}
