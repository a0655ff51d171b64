// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/testkind"
)

var options = Getopt{Program: "getopt", Short: "abI:", Long: []LongOption{
	{Name: "all", Short: 'a'}, {Name: "smcd", Short: 'b'}, {Name: "smcr", Short: 'b'}, {Name: "interface", Value: true, Short: 'I'},
}}

var commandLines = []string{
	"", "-a", "-ab", "-b -a", "x -a y", "-a -- -b", "-I eth0", "-Ieth0", "-aI eth0 x", "-I", "-c", "-acb", "- -a",
	"--all", "--al x", "--interface eth0", "--interface=eth0", "--inter=", "--interface", "--smc", "--smcd", "--all=3", "--none", "-a --none x -d",
}

// TestGetopt compares with the program getopt of util-linux, which uses the C library.
func TestGetopt(t *testing.T) {
	testkind.System(t)
	if _, err := exec.LookPath("getopt"); err != nil {
		t.Skip("needs getopt: run `sudo scripts/setup-test-tools`")
	}
	for _, line := range commandLines {
		args := strings.Fields(line)
		g := options
		var said strings.Builder
		opts, rest, ok := g.All(args, func(message string) { fmt.Fprintln(&said, message) })
		var got strings.Builder
		for _, o := range opts {
			// getopt prints long names where this package has the letters.
			fmt.Fprintf(&got, " -%c", o.Letter)
			if o.Letter == 'I' {
				fmt.Fprintf(&got, " %s", o.Value)
			}
		}
		fmt.Fprintf(&got, " --%s", strings.Join(append([]string{""}, rest...), " "))

		cmd := exec.Command("getopt", append([]string{"-u", "-o", "abI:", "-l", "all,smcd,smcr,interface:", "--"}, args...)...)
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		want := strings.NewReplacer("--all", "-a", "--smcd", "-b", "--smcr", "-b", "--interface", "-I").Replace(strings.TrimRight(string(out), "\n"))
		if strings.Contains(line, "--none") || !ok {
			want = got.String() // after an error, the rest of the line does not matter
		}
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("%q (-getopt +ours):\n%s", line, diff)
		}
		if diff := cmp.Diff(errOut.String(), said.String()); diff != "" {
			t.Errorf("%q: messages (-getopt +ours):\n%s", line, diff)
		}
		if ok != (err == nil) {
			t.Errorf("%q: %v, want %v", line, ok, err)
		}
	}
}

func TestGetoptOrdered(t *testing.T) {
	g := Getopt{Program: "x", Short: "dr:", Ordered: true}
	opts, rest, ok := g.All([]string{"-d", "-r", "5", "ls", "-d", "--", "-r"}, func(m string) { t.Error(m) })
	if diff := cmp.Diff([]Option{{'d', ""}, {'r', "5"}}, opts); diff != "" || !ok {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"ls", "-d", "--", "-r"}, rest); diff != "" {
		t.Error(diff)
	}
}

func FuzzGetopt(f *testing.F) {
	for _, line := range commandLines {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		g := options
		opts, rest, _ := g.All(args, func(string) {})
		if len(opts)+len(rest) > len(line) {
			t.Errorf("%d options and %d words", len(opts), len(rest))
		}
	})
}
