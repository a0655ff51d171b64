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
//   - fields of structs and variables of packages that are maps, or lists to which something is appended. Lists of bytes are buffers of
//     what is just read or written, and variables that nothing writes are constants;
//   - maps that a function has outside of a loop without end and writes within it;
//   - maps of eBPF programs, in C and in Go.
//
// docs/security.md has a row for each, which says who owns what is in it and what bounds that. The test reads the source without types.

// servingPackages are those of the processes that serve others. What they import counts, too.
var servingPackages = []string{"internal/serve", "internal/runs", "internal/exporter"}

const (
	tablesHeading = "### Every table"
	// bpfSource has the maps of the eBPF programs.
	bpfSource = "userstack/divert/bpf"
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
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		if !serving[path] {
			continue
		}
		fset := token.NewFileSet()
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
		for name, at := range tablesOf(files) {
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

// tablesOf finds the tables of a package.
func tablesOf(files []*ast.File) map[string]token.Pos {
	x := tableFinder{named: map[string]ast.Expr{}, grows: map[string]bool{}, written: map[string]bool{}, found: map[string]token.Pos{}}
	for _, f := range files {
		ast.Inspect(f, x.writes)
	}
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					x.spec(d.Tok, s)
				}
			case *ast.FuncDecl:
				x.locals(d)
			}
		}
	}
	return x.found
}

type tableFinder struct {
	named   map[string]ast.Expr // types
	grows   map[string]bool     // names of fields and variables to which something is appended
	written map[string]bool     // names of those of which an element is written
	found   map[string]token.Pos
}

// last returns the name of a field or variable.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.ParenExpr:
		return last(e.X)
	}
	return ""
}

// writes notes what a node writes.
func (x *tableFinder) writes(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.TypeSpec:
		x.named[n.Name.Name] = n.Type
	case *ast.CallExpr:
		if len(n.Args) == 0 {
			break
		}
		of := n.Args[0]
		if s, ok := of.(*ast.SliceExpr); ok { // append(x[:0], ...)
			of = s.X
		}
		switch called := last(n.Fun); {
		case called == "append", called == "Insert":
			x.grows[last(of)] = true
		case called == "Copy" && len(n.Args) == 2: // maps.Copy
			x.written[last(of)] = true
		}
	case *ast.AssignStmt:
		for _, l := range n.Lhs {
			if i, ok := l.(*ast.IndexExpr); ok {
				x.written[last(i.X)] = true
			}
		}
	case *ast.IncDecStmt:
		if i, ok := n.X.(*ast.IndexExpr); ok {
			x.written[last(i.X)] = true
		}
	}
	return true
}

// isTable reports whether a field or variable of a type is a table.
func (x *tableFinder) isTable(name string, t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.StarExpr:
		return x.isTable(name, t.X)
	case *ast.MapType:
		return true
	case *ast.ArrayType:
		if t.Len != nil {
			return x.isTable(name, t.Elt)
		}
		return x.grows[name] && last(t.Elt) != "byte"
	case *ast.SelectorExpr:
		of := last(t.X) + "." + t.Sel.Name
		return of == "sync.Map" || of == "list.List"
	case *ast.Ident:
		is, ok := x.named[t.Name]
		if _, alias := is.(*ast.Ident); !ok || alias {
			return false
		}
		if _, st := is.(*ast.StructType); st {
			return false // its own fields count
		}
		return x.isTable(name, is)
	case *ast.IndexExpr: // of a generic type, as atomic.Pointer
		return last(t.X) == "Tally" || last(t.X) == "Pointer" && x.isTable(name, t.Index)
	}
	return false
}

func (x *tableFinder) spec(tok token.Token, s ast.Spec) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		ast.Inspect(s.Type, func(n ast.Node) bool {
			st, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					if x.isTable(name.Name, f.Type) {
						x.found[s.Name.Name+"."+name.Name] = name.Pos()
					}
				}
			}
			return true
		})
	case *ast.ValueSpec:
		if tok != token.VAR {
			return
		}
		for i, name := range s.Names {
			t := s.Type
			if t == nil && i < len(s.Values) {
				t = typeOf(s.Values[i])
			}
			if (x.written[name.Name] || x.grows[name.Name]) && x.isTable(name.Name, t) {
				x.found[name.Name] = name.Pos()
			}
		}
	}
}

// typeOf returns the type of a value, if that is written there.
func typeOf(v ast.Expr) ast.Expr {
	switch v := v.(type) {
	case *ast.CompositeLit:
		return v.Type
	case *ast.CallExpr:
		if last(v.Fun) == "make" && len(v.Args) > 0 {
			return v.Args[0]
		}
	}
	return nil
}

// locals finds the maps of a function that are made outside of a loop without end, and written within it; and the maps of eBPF programs that
// it makes.
func (x *tableFinder) locals(f *ast.FuncDecl) {
	if f.Body == nil {
		return
	}
	made := map[string]token.Pos{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if n.Tok != token.DEFINE || len(n.Lhs) != len(n.Rhs) {
					break
				}
				if t, ok := typeOf(n.Rhs[i]).(*ast.MapType); ok {
					made[last(l)] = t.Pos()
				}
			}
		case *ast.CompositeLit:
			if last(n.Type) != "MapSpec" {
				break
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok && last(kv.Key) == "Name" {
					if name, ok := kv.Value.(*ast.BasicLit); ok {
						x.found[strings.Trim(name.Value, `"`)] = name.Pos()
					}
				}
			}
		}
		return true
	})
	ast.Inspect(f.Body, func(n ast.Node) bool {
		loop, ok := n.(*ast.ForStmt)
		if !ok || loop.Cond != nil {
			return true
		}
		within := tableFinder{named: map[string]ast.Expr{}, grows: map[string]bool{}, written: map[string]bool{}}
		ast.Inspect(loop.Body, within.writes)
		for name, at := range made {
			if within.written[name] && (at < loop.Pos() || at > loop.End()) {
				x.found[f.Name.Name+"."+name] = at
			}
		}
		return true
	})
}

// TestTablesFound checks what tablesOf finds.
func TestTablesFound(t *testing.T) {
	const source = `package p
type s struct {
	users   map[int]string
	list    []int
	short   []int          // nothing is appended
	buffer  []byte
	ring    [8]int
	both    [2]map[int]int
	named   named
	inner   struct{ rows []int }
	of      other
	all     sync.Map
	now     atomic.Pointer[named]
	fixed   *fixed
}
type named map[int]int
type fixed [4]int
type other struct{ m map[int]int }
var seen = map[int]bool{}
var constants = map[int]bool{1: true}
var lines []string
func (x *s) f() {
	x.list = append(x.list, 1)
	x.buffer = append(x.buffer[:0], 1)
	x.inner.rows = slices.Insert(x.inner.rows, 0, 1)
	seen[1] = true
	lines = append(lines, "")
	known, short := map[int]int{}, map[int]int{}
	for {
		known[1]++
		within := map[int]int{}
		within[2] = 3
	}
	for short[1] == 0 {
		short[2] = 5
	}
	ebpf.NewMap(&ebpf.MapSpec{Name: "smcr_map"})
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"f.known", "lines", "other.m", "s.all", "s.both", "s.list", "s.named", "s.now", "s.rows", "s.users", "seen", "smcr_map"}
	if got := slices.Sorted(maps.Keys(tablesOf([]*ast.File{f}))); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	const programs = `struct flow_table flows SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); } earlier SEC(".maps"); /* of others */
  struct { __uint(x, 1); } inner SEC(".maps");
`
	var names []string
	for _, m := range bpfMap.FindAllStringSubmatch(programs, -1) {
		names = append(names, m[1])
	}
	if !slices.Equal(names, []string{"flows", "earlier", "inner"}) {
		t.Errorf("maps %v", names)
	}
}
