// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"smcr/internal/testing/testkind"
)

// pages returns all pages by their names, for example smcr(8).
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for file, b := range generated(t) {
		if filepath.Dir(file) == "man" {
			name, section := cutSection(filepath.Base(file))
			out[name+"("+section+")"] = string(b)
		}
	}
	return out
}

// TestRoff checks the form of all pages: only macros and escapes that both man and mandoc
// know, macros and fonts in pairs, sections in order.
func TestRoff(t *testing.T) {
	known := strings.Fields(`TH SH SS PP TP RS RE EX EE SY YS OP B I RI BR nh ad nr br \"`)
	pairs := map[string]string{"RS": "RE", "EX": "EE", "SY": "YS"}
	escape := regexp.MustCompile(`\\(fB|fI|fP|e|-|&|~|\(ga|\(aq|\(ha|\(ti|\(mc|")`)
	fonts := regexp.MustCompile(`\\f[BIP]`)
	for name, page := range pages(t) {
		var open, titles []string
		for i, line := range strings.Split(page, "\n") {
			fail := func(why string) { t.Errorf("%s:%d: %s: %q", name, i+1, why, line) }
			if rest := escape.ReplaceAllString(line, ""); strings.Contains(rest, `\`) {
				fail("unknown escape")
			}
			font := "P"
			for _, f := range fonts.FindAllString(line, -1) {
				if (f == `\fP`) == (font == "P") {
					fail("fonts are not in pairs")
				}
				font = f[2:]
			}
			if font != "P" {
				fail("the font goes on in the next line")
			}
			if line == "" && i != strings.Count(page, "\n") {
				if !slices.Contains(open, "EX") {
					fail("empty line")
				}
			}
			if !strings.HasPrefix(line, ".") {
				continue
			}
			macro, args, _ := strings.Cut(line[1:], " ")
			if !slices.Contains(known, macro) {
				fail("unknown macro")
			}
			if strings.Count(args, `"`)%2 != 0 && macro != `\"` {
				fail("quotes are not in pairs")
			}
			if macro == "SH" {
				titles = append(titles, strings.Trim(args, `"`))
			}
			if _, ok := pairs[macro]; ok {
				open = append(open, macro)
			}
			for begin, end := range pairs {
				if macro != end {
					continue
				}
				if n := len(open); n == 0 || open[n-1] != begin {
					fail("no " + begin + " before it")
				} else {
					open = open[:n-1]
				}
			}
		}
		if len(open) > 0 {
			t.Errorf("%s: %v not closed", name, open)
		}
		if want := []string{"NAME", "SYNOPSIS", "DESCRIPTION"}; len(titles) < 4 || !slices.Equal(titles[:3], want) || titles[len(titles)-1] != "SEE ALSO" {
			t.Errorf("%s: sections %q", name, titles)
		}
	}
}

// TestReferences checks that pages refer only to pages of smcr that exist.
func TestReferences(t *testing.T) {
	all := pages(t)
	ref := regexp.MustCompile(`\\fB(smc[^\\]*(?:\\-[^\\]*)*)\\fP(\([1-8]\))`)
	for name, page := range all {
		for _, m := range ref.FindAllStringSubmatch(page, -1) {
			to := strings.ReplaceAll(m[1], `\-`, "-") + m[2]
			if _, ok := all[to]; !ok {
				t.Errorf("%s refers to %s, which does not exist", name, to)
			}
		}
	}
}

// TestGroff renders the pages if groff is installed, and checks that there are no
// warnings.
func TestGroff(t *testing.T) {
	testkind.System(t)
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("needs groff: apt install groff; TestRoff checks the form without it")
	}
	for name, page := range pages(t) {
		cmd := exec.CommandContext(t.Context(), groff, "-man", "-Tutf8", "-ww", "-z")
		cmd.Stdin = strings.NewReader(page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestInline(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"plain text", "plain text"},
		{"use *bold words* here", `use \fBbold words\fP here`},
		{"_peer_id_, _a_ and _tx_fin_.", `\fIpeer_id\fP, \fIa\fP and \fItx_fin\fP.`},
		{"with -o json, --all and a-b", `with \fB\-o\fP json, \fB\-\-all\fP and a-b`},
		{"see smcr-run(8), or 'smcr pnet'", `see \fBsmcr\-run\fP(8), or \fBsmcr pnet\fP`},
		{"in /etc/smcr/smcr.yaml.", `in \fI/etc/smcr/smcr.yaml\fP.`},
		{"the peer's *[]*", `the peer's \fB[]\fP`},
		{`a\b ~ ^`, `a\eb \(ti \(ha`},
		{"400µs", "400µs"},
	} {
		if got := inline(test.in); got != test.want {
			t.Errorf("%q: %q, want %q", test.in, got, test.want)
		}
	}
}

func TestExplain(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringP("output", "o", "table", "output `format`: table|wide|json")
	fs.Int("rcvbuf", 0, "kernel: receive buffer in `bytes`")
	fs.String("config", "", "read this `file` (default /x)")
	for name, want := range map[string]string{
		"output": "Output `format`: *table*, *wide* or *json*. The default is *table*.",
		"rcvbuf": "In mode *kernel*: receive buffer in `bytes`.",
		"config": "Read this `file` (default /x).",
	} {
		if got := explain(fs.Lookup(name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestBlocks(t *testing.T) {
	got := parseBlocks("One\nparagraph.\n\n    a    first\n         more\n    bcd  second\n\n= term\ntext\n\n    literal\n      lines\n\n    last\n")
	want := []block{
		{text: "One paragraph."}, {term: "a", text: "First more."}, {term: "bcd", text: "Second."}, {term: "term", text: "text"},
		{literal: []string{"literal", "  lines", "", "last"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(block{})); diff != "" {
		t.Error(diff)
	}
}
