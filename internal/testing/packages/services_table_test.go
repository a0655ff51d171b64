// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/tasks.md (TestServices)")

// The table of docs/tasks.md says what was tried with each unit, and what its connections used then.
const (
	tableFile  = "docs/tasks.md"
	tableBegin = "<!-- begin: make services SERVICEFLAGS=-update -->\n"
	tableEnd   = "<!-- end: make services SERVICEFLAGS=-update -->\n"
)

// events are the columns: what happens to a unit, in the order of the test.
var events = []string{"enable", "restart", "stop, start", "reload", "crash", "stack killed", "disable", "boot"}

// A tableRow is what was seen of a unit.
type tableRow struct {
	unit, kind, sandbox string
	used                map[string]string // by event: SMC-R, TCP, or what else
}

func (r *tableRow) cells() []string {
	all := []string{"`" + r.unit + "`", r.kind, r.sandbox}
	for _, e := range events {
		all = append(all, cmp.Or(r.used[e], "not tried"))
	}
	return all
}

// rowOf returns the row of a unit, or one that nobody sees if only a part of the test runs.
func rowOf(rows []*tableRow, unit string) *tableRow {
	for _, r := range rows {
		if r.unit == unit {
			return r
		}
	}
	return &tableRow{unit: unit, used: map[string]string{}}
}

// sandboxSettings forbid a program something. Units have more, but these are what smcr could need.
var sandboxSettings = []string{
	"NoNewPrivileges", "PrivateDevices", "PrivateTmp", "PrivateUsers", "ProtectHome", "ProtectSystem", "ProtectControlGroups", "ProtectKernelTunables",
	"ProtectKernelModules", "MemoryDenyWriteExecute", "RestrictNamespaces", "RestrictRealtime", "RestrictAddressFamilies", "SystemCallFilter", "LockPersonality",
}

// row begins the row of a unit.
func (h host) row(unit string) *tableRow {
	h.t.Helper()
	r := &tableRow{unit: unit, kind: h.must("systemctl show --value --property=Type " + unit), used: map[string]string{}}
	n := 0
	for line := range strings.Lines(h.must("systemctl show --property=" + strings.Join(sandboxSettings, ",") + " " + unit)) {
		if _, value, _ := strings.Cut(strings.TrimSpace(line), "="); !slices.Contains([]string{"", "no", "~"}, value) {
			n++
		}
	}
	r.sandbox = fmt.Sprint(n)
	return r
}

// saw notes that a unit has answered after an event, over SMC-R or not.
func (r *tableRow) saw(event string, right, smc bool) {
	switch {
	case !right:
		r.used[event] = "fails"
	case smc:
		r.used[event] = "SMC-R"
	default:
		r.used[event] = "TCP"
	}
}

// line is a line of a table of Markdown.
func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// table returns the text with the rows in place of those of the same units, or behind the others. It is not ok without the marks.
func table(text string, rows []*tableRow) (_ string, ok bool) {
	before, rest, ok1 := strings.Cut(text, tableBegin)
	old, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		return text, false
	}
	head := append([]string{"unit", "type", "sandbox"}, events...)
	out := line(head) + "|" + strings.Repeat("---|", len(head)) + "\n"
	left := slices.Clone(rows)
	for l := range strings.Lines(old) {
		unit, _, _ := strings.Cut(strings.TrimPrefix(l, "| "), " |")
		if !strings.HasPrefix(unit, "`") {
			continue // the head
		}
		i := slices.IndexFunc(left, func(r *tableRow) bool { return "`"+r.unit+"`" == unit })
		if i >= 0 {
			l, left = line(left[i].cells()), slices.Delete(left, i, i+1)
		}
		out += l
	}
	for _, r := range left {
		out += line(r.cells())
	}
	return before + tableBegin + out + tableEnd + after, true
}

// wantTable compares what was seen with the document, or writes it. The settings of a unit are Debian's, and may change.
func wantTable(t *testing.T, rows []*tableRow) {
	t.Helper()
	file := filepath.Join(root, tableFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := table(string(b), rows)
	if !ok {
		t.Fatalf("%s has no place for the table: %s", tableFile, tableBegin)
	}
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	for _, r := range rows {
		results := line(r.cells()[3:])
		if !strings.Contains(string(b), "| `"+r.unit+"` |") || !slices.ContainsFunc(strings.SplitAfter(string(b), "\n"), func(l string) bool {
			return strings.HasPrefix(l, "| `"+r.unit+"` |") && strings.HasSuffix(l, results)
		}) {
			t.Errorf("%s does not say of %s: %s: 'make services SERVICEFLAGS=-update' writes it", tableFile, r.unit, results)
		}
	}
}

// TestTable: rows take the place of those before them, and others stay.
func TestTable(t *testing.T) {
	of := func(unit, used string) *tableRow {
		r := &tableRow{unit: unit, kind: "notify", sandbox: "2", used: map[string]string{}}
		for _, e := range events {
			r.used[e] = used
		}
		return r
	}
	const document = "before\n" + tableBegin + tableEnd + "after\n"
	first, ok := table(document, []*tableRow{of("a", "SMC-R"), of("b", "fails")})
	if !ok || strings.Count(first, "\n") != 8 {
		t.Errorf("%t\n%s", ok, first)
	}
	got, _ := table(first, []*tableRow{of("c", "TCP"), of("b", "SMC-R")})
	want, _ := table(document, []*tableRow{of("a", "SMC-R"), of("b", "SMC-R"), of("c", "TCP")})
	if got != want || !strings.HasPrefix(got, "before\n") || !strings.HasSuffix(got, "after\n") || strings.Contains(got, "fails") {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if again, _ := table(got, nil); again != got {
		t.Errorf("%s\nwant\n%s", again, got)
	}
	if _, ok := table("nothing", nil); ok {
		t.Error("a document without the marks")
	}
}
