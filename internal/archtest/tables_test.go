// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What others do must not make a process that serves them keep more and more. So TestTables finds all tables: in the packages of these
// processes,
//
//   - fields of structs and variables of packages that are maps, or lists that grow: to which something is appended, directly, by a function
//     that gets them or a pointer to them, or by a method of their type. Lists of bytes are buffers of
//     what is just read or written, and variables that nothing writes are constants;
//   - fields that make a linked list: pointers to their own type;
//   - fields, variables and channels of functions that are made with a buffer of more than smallBuffer, or of a size that is no number;
//   - maps and lists that a function has outside of a loop without end, and writes within it or adds to;
//   - maps of eBPF programs, in C and in Go.
//
// docs/security.md has a row for each, which says who owns what is in it and what bounds that. The test reads the source without types.

// servingPackages are those of the processes that serve others. What they import counts, too.
var servingPackages = []string{"internal/serve", "internal/runs", "internal/exporter"}

const (
	tablesHeading = "### Every table"
	// bpfSource has the maps of the eBPF programs.
	bpfSource = "userstack/divert/bpf"
	// smallBuffer is the size of a channel for signals, and for what one call hands to another.
	smallBuffer = 16
)

var (
	bpfMap     = regexp.MustCompile(`(?m)^\s*(?:struct\b.*\s)?(\w+) SEC\("\.maps"\)`)
	tableNames = regexp.MustCompile("`([a-z0-9/]+)`: ((?:`[A-Za-z0-9_.]+`(?:, )?)+)")
	tableName  = regexp.MustCompile("`([A-Za-z0-9_.]+)`")
	boundName  = regexp.MustCompile("`([A-Za-z]+)`")
)

// TestTables checks that docs/security.md has all tables, once, and no other.
func TestTables(t *testing.T) {
	section := securitySection(t, tablesHeading, "## ")
	found, consts := allTables(t)
	listed := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "whose" {
			continue
		}
		if len(strings.TrimSpace(cells[1])) < 3 || len(strings.TrimSpace(cells[2])) < 8 {
			t.Errorf("no owner, or no bound: %s", line)
		}
		for _, m := range boundName.FindAllStringSubmatch(cells[2], -1) {
			if !consts[m[1]] {
				t.Errorf("no constant %s: %s", m[1], line)
			}
		}
		names := tableNames.FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("no table in this row: %s", line)
		}
		for _, m := range names {
			for _, n := range tableName.FindAllStringSubmatch(m[2], -1) {
				name := m[1] + " " + n[1]
				if listed[name] {
					t.Errorf("%s is there twice", name)
				}
				listed[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !listed[name] {
			t.Errorf("%s: the table %s is not in docs/security.md, %q: say whose its entries are, and what bounds them", found[name], name, tablesHeading)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if found[name] == "" {
			t.Errorf("docs/security.md has the table %s, which is not in the code", name)
		}
	}
	if len(found) < 100 {
		t.Errorf("found only %d tables", len(found))
	}
}

// allTables returns where each table is, and the names of the constants of these packages.
func allTables(t *testing.T) (found map[string]string, consts map[string]bool) {
	found, consts = map[string]string{}, map[string]bool{}
	serving := importedBy(t, servingPackages)
	fset := token.NewFileSet()
	parsed := map[string][]*ast.File{}
	growing := map[string]bool{}
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		if !serving[path] {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
			ast.Inspect(f, func(n ast.Node) bool {
				if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
					for _, s := range d.Specs {
						for _, name := range s.(*ast.ValueSpec).Names {
							consts[name.Name] = true
						}
					}
				}
				return true
			})
		}
		parsed[path] = files
		for _, name := range growingTypes(files) {
			growing[filepath.Base(path)+"."+name] = true
		}
	}
	for path, files := range parsed {
		for name, at := range tablesOf(files, growing) {
			found[path+" "+name] = fset.Position(at).String()
		}
	}
	names, err := filepath.Glob(filepath.Join(moduleRoot, bpfSource, "*.[ch]"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no eBPF programs: %v", err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range bpfMap.FindAllStringSubmatch(string(b), -1) {
			found[bpfSource+" "+m[1]] = name
		}
	}
	return found, consts
}

// importedBy returns packages and all that they import of the module.
func importedBy(t *testing.T, roots []string) map[string]bool {
	imports := map[string][]string{}
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		imports[path] = p.Imports
	}
	all := map[string]bool{}
	for next := slices.Clone(roots); len(next) > 0; next = next[1:] {
		if all[next[0]] {
			continue
		}
		all[next[0]] = true
		for _, i := range imports[next[0]] {
			if path, ok := rel(i); ok {
				next = append(next, path)
			}
		}
	}
	return all
}
