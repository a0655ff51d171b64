// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smcr/internal/plain"
)

const (
	licence = "// SPDX-License-Identifier: Apache-2.0"
	// maxLines is the limit for a file that is not a test. A longer file has more than
	// one subject.
	maxLines = 500
)

// eachFile calls f for each Go file of the module, tests and files for other
// platforms included.
func eachFile(t *testing.T, f func(t *testing.T, p pkg, name string, src []byte)) {
	t.Helper()
	for _, p := range list(t) {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles, p.IgnoredGoFiles) {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			f(t, p, name, src)
		}
	}
}

func TestFiles(t *testing.T) {
	eachFile(t, func(t *testing.T, p pkg, name string, src []byte) {
		where := filepath.Join(p.ImportPath, name)
		if first, _, _ := bytes.Cut(src, []byte("\n")); string(first) != licence {
			t.Errorf("%s: the first line must be %q", where, licence)
		}
		if n := bytes.Count(src, []byte("\n")); n > maxLines && !strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s has %d lines, more than %d", where, n, maxLines)
		}
	})
}

func TestPackageDoc(t *testing.T) {
	for _, p := range list(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		file := filepath.Join(p.Dir, "doc.go")
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Errorf("%s needs a doc.go: %v", p.ImportPath, err)
			continue
		}
		want := "Package " + f.Name.Name + " "
		if f.Name.Name == "main" {
			want = "Command "
			if b := filepath.Base(p.Dir); !strings.HasPrefix(f.Doc.Text(), want) {
				want = strings.ToUpper(b[:1]) + b[1:] + " "
			}
		}
		if !strings.HasPrefix(f.Doc.Text(), want) {
			t.Errorf("%s: the package comment must begin with %q", file, want)
		}
	}
}

// TestDeclarations checks that every exported name has its own comment, and that no package
// has an init function: its order and its side effects are not visible.
func TestDeclarations(t *testing.T) {
	fset := token.NewFileSet()
	eachFile(t, func(t *testing.T, p pkg, name string, src []byte) {
		f, err := parser.ParseFile(fset, filepath.Join(p.ImportPath, name), src, parser.ParseComments)
		if err != nil {
			t.Error(err)
			return
		}
		if ast.IsGenerated(f) {
			return
		}
		test := strings.HasSuffix(name, "_test.go")
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init function", fset.Position(fn.Pos()))
			}
			if !test && f.Name.Name != "main" {
				for _, id := range undocumented(decl) {
					t.Errorf("%s: exported %s has no comment", fset.Position(id.Pos()), id.Name)
				}
			}
		}
	})
}

// undocumented returns the exported names of a declaration that have no comment of their
// own. The comment of a group of constants, variables or types is not enough.
func undocumented(decl ast.Decl) []*ast.Ident {
	var ids []*ast.Ident
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) {
			ids = append(ids, d.Name)
		}
	case *ast.GenDecl:
		only := d.Doc != nil && !d.Lparen.IsValid()
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if !only && s.Doc == nil && s.Name.IsExported() {
					ids = append(ids, s.Name)
				}
			case *ast.ValueSpec:
				if !only && s.Doc == nil && s.Comment == nil {
					for _, id := range s.Names {
						if id.IsExported() {
							ids = append(ids, id)
						}
					}
				}
			}
		}
	}
	return ids
}

// exportedReceiver reports whether a declaration is a function, or a method of an
// exported type. A few methods that only implement a well-known interface do not count.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	if !ast.IsExported(receiver(d)) {
		return false
	}
	switch d.Name.Name {
	case "Error", "String", "Unwrap", "Is", "As", "Timeout", "Temporary":
		return false
	}
	return true
}

// TestPlain checks that [plain.Text] knows all packages whose errors begin with the
// name of the package.
func TestPlain(t *testing.T) {
	for _, p := range list(t) {
		rel, _ := rel(p.ImportPath)
		if strings.HasPrefix(rel, "internal/") || strings.HasPrefix(rel, "cmd/") || strings.HasPrefix(rel, "examples/") || strings.HasPrefix(rel, "tools") || testOnly(rel) {
			continue
		}
		if text := filepath.Base(rel) + ": no such thing"; plain.Text(text) != "no such thing" {
			t.Errorf("%s: plain.Text leaves %q as it is", rel, text)
		}
	}
}

// receiver returns the name of the type of which d is a method, or "" if d is a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
