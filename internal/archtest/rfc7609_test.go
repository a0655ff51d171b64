// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// rfcTable has one row for each requirement of RFC 7609:
//
//	| section | requirement | code | test |
//
// Code and tests are named in backquotes by package and declaration:
// `linkgroup.Group.Connect`, `e2e.TestFlap`. A part of a table test may follow:
// `linkgroup.TestStates/overlay`.
const rfcTable = "../../docs/rfc7609.md"

// notApplicable begins the code cell of a row for a requirement that is not implemented.
// The reason must follow.
const notApplicable = "Not applicable: "

// rfcPackages are the directories of the packages that the table names.
var rfcPackages = map[string]string{
	"conn": "userstack/conn", "divert": "userstack/divert", "driver": "userstack/driver", "e2e": "internal/testing/e2e", "interop": "internal/testing/interop",
	"linkgroup": "userstack/linkgroup", "service": "userstack/service",
	"inside": "userstack/internal/inside", "network": "userstack/network", "devices": "userstack/devices", "stacktest": "userstack/stacktest", "softroce": "rdmaverbs/softroce", "tcpopt": "userstack/tcpopt",
	"smc": "smc", "userstack": "userstack", "relay": "userstack/relay", "wire": "userstack/wire", "rendezvous": "userstack/rendezvous",
}

// rfcSections are the sections and appendices with requirements for an implementation.
// Each needs at least one row, which may be about a subsection.
var rfcSections = strings.Fields(`
	2.1 2.2 2.2.1 2.2.2 2.2.3 2.2.4 2.3
	3.1 3.2 3.3 3.4 3.5.1.1 3.5.1.2 3.5.1.3 3.5.1.4 3.5.1.5 3.5.1.6.1 3.5.1.6.2 3.5.1.6.3 3.5.1.6.4
	3.5.2.1 3.5.2.2 3.5.2.3 3.5.2.4 3.5.3 3.5.4
	3.5.5.1.1 3.5.5.1.2 3.5.5.1.3 3.5.5.1.4 3.5.5.2.1 3.5.5.2.2 3.5.5.2.3 3.5.5.3 3.5.5.3.1 3.5.5.3.2 3.5.5.3.3
	4.1 4.2 4.3 4.4 4.4.1 4.4.2 4.5.1 4.5.2 4.5.3 4.6 4.6.1 4.6.2
	4.7.1 4.7.2 4.7.3 4.7.4 4.7.5 4.7.6 4.8 4.8.1 4.8.2 4.8.3
	5 5.1 5.2 5.3 5.4 5.5 5.6
	A.1 A.2 A.2.1 A.2.2 A.2.3 A.2.4 A.2.5
	A.3 A.3.1 A.3.2 A.3.3 A.3.4 A.3.5 A.3.6 A.3.7 A.3.8 A.4
	B B.1 C.1 C.2 C.3 C.4 C.5 C.6 C.7 C.7.1 C.8`)

var (
	backquoted = regexp.MustCompile("`([^`]+)`")
	section    = regexp.MustCompile(`^([2-5]|[ABC])(\.\d+)*$`)
	testName   = regexp.MustCompile(`^(Test|Fuzz|Example)[A-Z_]`)
)

// rfcRow is a row of the table about something that is implemented.
type rfcRow struct {
	line        int
	section     string
	code, tests []string
}

// TestRFC7609 fails for a row of the table that names no code or test, or one that does
// not exist, and for a section without a row. In its long form, it also fails for a row
// whose tests pass without its code: see testWithoutCode.
func TestRFC7609(t *testing.T) {
	text, err := os.ReadFile(rfcTable)
	if err != nil {
		t.Fatal(err)
	}
	tree := declarations{}
	seen := map[string]bool{}
	var rows []rfcRow
	notRows := 0
	for i, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "|") || !section.MatchString(cells[0]) {
			continue
		}
		for s := cells[0]; ; s = s[:strings.LastIndexByte(s, '.')] {
			seen[s] = true
			if !strings.Contains(s, ".") {
				break
			}
		}
		fail := func(format string, args ...any) {
			t.Helper()
			t.Errorf("%s:%d: section %s: "+format, append([]any{rfcTable, i + 1, cells[0]}, args...)...)
		}
		if len(cells) > 2 && strings.HasPrefix(cells[2], notApplicable) {
			if len(cells[2]) < len(notApplicable)+10 {
				fail("does not say why it is not applicable")
			}
			notRows++
			continue
		}
		if len(cells) != 4 || strings.TrimSpace(cells[1]) == "" {
			fail("%d cells, want section, requirement, code, test", len(cells))
			continue
		}
		code, tests := backquoted.FindAllStringSubmatch(cells[2], -1), backquoted.FindAllStringSubmatch(cells[3], -1)
		if len(code) == 0 || len(tests) == 0 {
			fail("names no code or no test")
		}
		row := rfcRow{line: i + 1, section: cells[0]}
		for _, m := range code {
			row.code = append(row.code, m[1])
			if err := tree.find(m[1], false); err != "" {
				fail("code %s: %s", m[0], err)
			}
		}
		for _, m := range tests {
			row.tests = append(row.tests, m[1])
			if err := tree.find(m[1], true); err != "" {
				fail("test %s: %s", m[0], err)
			}
		}
		rows = append(rows, row)
	}
	for _, s := range rfcSections {
		if !seen[s] {
			t.Errorf("%s: no row for section %s", rfcTable, s)
		}
	}
	t.Logf("%d rows, %d more not applicable", len(rows), notRows)
	if !testing.Short() && !t.Failed() { // takes a minute of processor time
		testWithoutCode(t, rows)
	}
}

// declarations holds what the packages of the module declare, by directory.
type declarations map[string]*pkgNames

// pkgNames are the names that a package declares and the strings in its tests.
type pkgNames struct {
	code, tests, literals map[string]bool
}

// find returns why name (package.Declaration[/part]) does not exist, or "".
func (d declarations) find(name string, test bool) string {
	name, part, hasPart := strings.Cut(name, "/")
	short, decl, _ := strings.Cut(name, ".")
	p := d.load(rfcPackages[short])
	if p == nil {
		return "no package of this name in rfcPackages"
	}
	if !test {
		if !p.code[decl] {
			return "not declared"
		}
		return ""
	}
	if !testName.MatchString(decl) || !p.tests[decl] {
		return "no such test"
	}
	if hasPart && !p.literals[part] {
		return "no part of this name"
	}
	return ""
}

// load parses the package in a directory of the module, once.
func (d declarations) load(dir string) *pkgNames {
	if p, ok := d[dir]; ok {
		return p
	}
	d[dir] = nil
	files, _ := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if len(files) == 0 {
		return nil
	}
	p := &pkgNames{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			continue // the compiler reports it
		}
		names := p.code
		if strings.HasSuffix(name, "_test.go") {
			names = p.tests
			ast.Inspect(f, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					s, _ := strconv.Unquote(l.Value)
					p.literals[s] = true
				}
				return true
			})
		}
		for _, decl := range f.Decls {
			addNames(names, decl)
		}
	}
	d[dir] = p
	return p
}

// addNames adds the names of a declaration. The names of fields and methods begin with
// their type.
func addNames(names map[string]bool, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		name := decl.Name.Name
		if decl.Recv != nil {
			recv := decl.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if generic, ok := recv.(*ast.IndexExpr); ok {
				recv = generic.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		names[name] = true
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names[spec.Name.Name] = true
				var members *ast.FieldList
				switch t := spec.Type.(type) {
				case *ast.StructType:
					members = t.Fields
				case *ast.InterfaceType:
					members = t.Methods
				default:
					continue
				}
				for _, field := range members.List {
					for _, id := range field.Names {
						names[spec.Name.Name+"."+id.Name] = true
					}
				}
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names[id.Name] = true
				}
			}
		}
	}
}
