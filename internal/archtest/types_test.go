// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"testing"
)

// A type with more fields or methods than this has more than one subject.
const (
	maxFields  = 24
	maxMethods = 39
)

// A typeSize is how many fields a struct has, embedded ones included, and how many methods
// are declared for a type.
type typeSize struct{ fields, methods int }

// addSizes adds the fields and methods that a file declares to the sizes of its types.
func addSizes(sizes map[string]typeSize, f *ast.File) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if name := receiver(d); name != "" {
				s := sizes[name]
				s.methods++
				sizes[name] = s
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				spec, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if st, ok := spec.Type.(*ast.StructType); ok {
					s := sizes[spec.Name.Name]
					s.fields += st.Fields.NumFields()
					sizes[spec.Name.Name] = s
				}
			}
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

// TestTypes checks that no type outside of tests has grown beyond maxFields and maxMethods.
func TestTypes(t *testing.T) {
	for _, p := range list(t) {
		sizes := make(map[string]typeSize)
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			addSizes(sizes, f)
		}
		for _, name := range slices.Sorted(maps.Keys(sizes)) {
			if s := sizes[name]; s.fields > maxFields || s.methods > maxMethods {
				t.Errorf("%s.%s has %d fields and %d methods, want at most %d and %d: cut it into parts",
					p.ImportPath, name, s.fields, s.methods, maxFields, maxMethods)
			}
		}
	}
}

// TestTypeSizes checks that TestTypes counts embedded fields, fields that share a type and
// methods of generic types.
func TestTypeSizes(t *testing.T) {
	const source = `package p
type a struct { x, y int; b; *c; z struct{ inner int } }
func (a) one() {}
func (x *a) two() {}
type pair[K, V any] struct { k K; v V }
func (*pair[K, V]) one() {}
type list[T any] []T
func (list[T]) one() {}
type name string
func function() {}
`
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]typeSize)
	addSizes(got, f)
	if want := (map[string]typeSize{"a": {5, 2}, "pair": {2, 1}, "list": {0, 1}}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
