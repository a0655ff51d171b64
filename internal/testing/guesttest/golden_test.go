// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/guest"

	"github.com/google/go-cmp/cmp"
)

// A printed has the output and the exit status of a program.
type printed struct {
	out, err string
	status   int
}

// recorded has the output of smc-tools 1.8.5 on a similar guest, by command line: a
// server named guest with three connections of one link group.
type recorded map[string]printed

// readRecorded reads a phase of the recordings of package smctools, which the README
// there describes. If a command line occurs more than once, the first one counts.
func readRecorded(t *testing.T, phase string) recorded {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "smctools", "testdata", "golden", phase+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := recorded{}
	for _, block := range strings.Split(string(data), "\n### ") {
		var p printed
		var argv []string
		for line := range strings.Lines(block) {
			word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			switch {
			case strings.HasPrefix(line, "out|"):
				p.out += line[len("out|"):]
			case strings.HasPrefix(line, "err|"):
				p.err += line[len("err|"):]
			case word == "rc":
				if p.status, err = strconv.Atoi(rest); err != nil {
					t.Fatalf("%s: %v", phase, err)
				}
			case word == "argv":
				for rest != "" {
					quoted, err := strconv.QuotedPrefix(rest)
					if err != nil {
						t.Fatalf("%s: %v in %s", phase, err, rest)
					}
					arg, _ := strconv.Unquote(quoted)
					argv = append(argv, arg)
					rest = strings.TrimLeft(rest[len(quoted):], " ")
				}
			}
		}
		if command := strings.Join(argv, " "); command != "" {
			if _, ok := all[command]; !ok {
				all[command] = p
			}
		}
	}
	if len(all) < 50 {
		t.Fatalf("%s: only %d recordings", phase, len(all))
	}
	return all
}

// of returns the output of a command.
func (r recorded) of(t *testing.T, command string) printed {
	t.Helper()
	p, ok := r[command]
	if !ok {
		t.Fatalf("there is no recording of %q", command)
	}
	return p
}

// A tools is a host with the program under the names of smc-tools, and with the recorded
// output of smc-tools.
type tools struct {
	*host
	t         *testing.T
	dir       string   // directory of the names
	live      recorded // recorded with connections
	edit      recorded // recorded for changes
	env       []string
	linkGroup linkGroup
	link      link
}

// newTools makes the names of smc-tools on a host.
func newTools(t *testing.T, h *host) *tools {
	t.Helper()
	x := &tools{host: h, t: t, dir: path.Dir(h.smcr), live: readRecorded(t, "p3live"), edit: readRecorded(t, "p2edit")}
	h.run(t, "sh", "-c", `cd $0 && for name; do ln -sf smcr $name || exit; done`, x.dir,
		"smcd", "smcss", "smc_pnet", "smc_run", "smc_rnics", "smc_chk", "smc_dbg")
	return x
}

// prints runs a program by its name and returns its output.
func (x *tools) prints(argv ...string) printed {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), commandLimit)
	defer cancel()
	c := x.Command(append([]string{path.Join(x.dir, argv[0])}, argv[1:]...)...)
	c.Env = x.env
	r, err := c.Run(ctx)
	p := printed{out: r.Stdout, err: r.Stderr}
	var exit *guest.ExitError
	switch {
	case errors.As(err, &exit):
		p.status = exit.Status
	case err != nil:
		x.t.Fatalf("%s: %q: %v", x.Name(), argv, err)
	}
	return p
}

// same runs a command line and checks that its output is p.
func (x *tools) same(p printed, command string) {
	x.t.Helper()
	got := x.prints(strings.Fields(command)...)
	if diff := cmp.Diff(p, got, cmp.AllowUnexported(printed{})); diff != "" {
		x.t.Errorf("%s: %q (-want +got):\n%s", x.Name(), command, diff)
	}
}

// asRecorded runs a command line and checks that its output is the recorded one. values
// are pairs of old and new: they replace values of the recorded machine.
func (x *tools) asRecorded(in recorded, command string, values ...string) {
	x.t.Helper()
	p := in.of(x.t, command)
	for i := 0; i < len(values); i += 2 {
		if p.out == "" || !strings.Contains(p.out, values[i]) {
			x.t.Fatalf("%q: there is no %q in what was recorded:\n%s", command, values[i], p.out)
		}
	}
	p.out = strings.NewReplacer(values...).Replace(p.out)
	x.same(p, command)
}

// numbers match the numbers in statistics: right-aligned in columns of fixed width, or in
// parentheses of any width.
var (
	bracketed = regexp.MustCompile(`\((client )?[0-9.]+[%KMGTP]?(, server )?[0-9]*\)`)
	aligned   = regexp.MustCompile(` *\b[0-9]+(\.[0-9]+)?[KMGTP]?( |$)`)
	reasons   = regexp.MustCompile(`(?m)^(     [A-Z_]+ +\d+|    (Server|Client))\n`)
)

// shape returns the text of statistics without the reasons of fallbacks, and with equal
// numbers where they may differ.
func shape(text string) string {
	var b strings.Builder
	for line := range strings.Lines(reasons.ReplaceAllString(text, "")) {
		line = strings.TrimSuffix(line, "\n")
		line = bracketed.ReplaceAllString(line, "(${1}#$2)")
		line = aligned.ReplaceAllStringFunc(line, func(s string) string {
			end := len(strings.TrimRight(s, " ")) // right end of the column
			return strings.Repeat(" ", end-1) + "#" + s[end:]
		})
		b.WriteString(line + "\n")
	}
	return b.String()
}
