// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// growingTypes returns the types of a package that are lists and have a method that assigns to what its receiver points to.
func growingTypes(files []*ast.File) (names []string) {
	lists := map[string]bool{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok {
				a, ok := s.Type.(*ast.ArrayType)
				lists[s.Name.Name] = ok && a.Len == nil && last(a.Elt) != "byte"
			}
			return true
		})
	}
	for _, f := range files {
		for _, d := range f.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Body == nil || len(f.Recv.List[0].Names) == 0 {
				continue
			}
			of, ok := f.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			name, receiver := of.X, f.Recv.List[0].Names[0].Name
			if i, ok := name.(*ast.IndexExpr); ok {
				name = i.X
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if a, ok := n.(*ast.AssignStmt); ok {
					for _, l := range a.Lhs {
						if s, ok := l.(*ast.StarExpr); ok && last(s.X) == receiver && lists[last(name)] {
							names = append(names, last(name))
						}
					}
				}
				return true
			})
		}
	}
	return names
}

// tablesOf finds the tables of a package. growing are types of packages, such as "pkg.Queue", that are lists that grow.
func tablesOf(files []*ast.File, growing map[string]bool) map[string]token.Pos {
	x := tableFinder{named: map[string]ast.Expr{}, grows: map[string]bool{}, written: map[string]bool{}, buffered: map[string]token.Pos{}, growing: maps.Clone(growing), found: map[string]token.Pos{}}
	for _, name := range growingTypes(files) {
		x.growing[name] = true
	}
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
	named    map[string]ast.Expr  // types
	grows    map[string]bool      // names of fields and variables to which something is appended
	written  map[string]bool      // names of those of which an element is written
	buffered map[string]token.Pos // names of those that are channels with a large buffer
	growing  map[string]bool      // types that are lists that grow
	found    map[string]token.Pos
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
	case *ast.IndexExpr: // a list of lists, or a generic type
		return last(e.X)
	case *ast.StarExpr:
		return last(e.X)
	case *ast.SliceExpr: // append(x[:0], ...)
		return last(e.X)
	case *ast.UnaryExpr:
		return last(e.X)
	}
	return ""
}

// extending are functions of package slices, beside append, that return a list with more than they get.
var extending = []string{"append", "Insert", "Concat", "AppendSeq", "Replace", "Grow", "Repeat"}

// pointer reports whether an expression is a pointer to a field or a variable: one to an element cannot make a list longer.
func pointer(e ast.Expr) bool {
	u, ok := e.(*ast.UnaryExpr)
	if !ok || u.Op != token.AND {
		return false
	}
	switch u.X.(type) {
	case *ast.Ident, *ast.SelectorExpr:
		return true
	}
	return false
}

// largeBuffer reports whether an expression makes a channel with a large buffer.
func largeBuffer(e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	if !ok || last(c.Fun) != "make" || len(c.Args) != 2 {
		return false
	}
	if _, ok := c.Args[0].(*ast.ChanType); !ok {
		return false
	}
	size, ok := c.Args[1].(*ast.BasicLit)
	if !ok {
		return true
	}
	n, err := strconv.Atoi(size.Value)
	return err != nil || n > smallBuffer
}

// writes notes what a node writes.
func (x *tableFinder) writes(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.TypeSpec:
		x.named[n.Name.Name] = n.Type
	case *ast.CallExpr:
		called := last(n.Fun)
		for i, a := range n.Args {
			// What gets a pointer to a list can add to it.
			if pointer(a) || i == 0 && (called == "append" || called == "Insert") {
				x.grows[last(a)] = true
			}
		}
		if called == "Copy" && len(n.Args) == 2 { // maps.Copy
			x.written[last(n.Args[0])] = true
		}
	case *ast.KeyValueExpr:
		if largeBuffer(n.Value) {
			x.buffered[last(n.Key)] = n.Pos()
		}
	case *ast.ValueSpec:
		for i, v := range n.Values {
			if largeBuffer(v) && i < len(n.Names) {
				x.buffered[n.Names[i].Name] = n.Pos()
			}
		}
	case *ast.AssignStmt:
		for i, l := range n.Lhs {
			if e, ok := l.(*ast.IndexExpr); ok {
				x.written[last(e.X)] = true
			}
			if len(n.Lhs) != len(n.Rhs) {
				continue
			}
			if largeBuffer(n.Rhs[i]) {
				x.buffered[last(l)] = n.Pos()
			}
			// What comes of a list, by a function, may be a longer one.
			c, ok := n.Rhs[i].(*ast.CallExpr)
			if _, field := l.(*ast.SelectorExpr); ok && field && (slices.Contains(extending, last(c.Fun)) || slices.ContainsFunc(c.Args, func(a ast.Expr) bool { return same(a, l) })) {
				x.grows[last(l)] = true
			}
		}
	case *ast.IncDecStmt:
		if i, ok := n.X.(*ast.IndexExpr); ok {
			x.written[last(i.X)] = true
		}
	}
	return true
}

// same reports whether two expressions are the same names.
func same(a, b ast.Expr) bool {
	switch a := a.(type) {
	case *ast.Ident:
		b, ok := b.(*ast.Ident)
		return ok && a.Name == b.Name
	case *ast.SelectorExpr:
		b, ok := b.(*ast.SelectorExpr)
		return ok && a.Sel.Name == b.Sel.Name && same(a.X, b.X)
	}
	return false
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
		return of == "sync.Map" || of == "list.List" || of == "ring.Ring" || x.growing[of]
	case *ast.ChanType:
		return x.buffered[name] != token.NoPos
	case *ast.Ident:
		is, ok := x.named[t.Name]
		if _, alias := is.(*ast.Ident); !ok || alias {
			return false
		}
		switch is.(type) {
		case *ast.StructType:
			return false // its own fields count
		case *ast.ArrayType:
			if x.growing[t.Name] {
				return true
			}
		}
		return x.isTable(name, is)
	case *ast.IndexExpr: // of a generic type, as atomic.Pointer
		if s, ok := t.X.(*ast.SelectorExpr); ok && x.growing[last(s.X)+"."+s.Sel.Name] {
			return true
		}
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
					if x.isTable(name.Name, f.Type) || pointsTo(f.Type, s.Name.Name) {
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

// pointsTo reports whether a type is a pointer to a named one: with a field of it, that is a linked list.
func pointsTo(t ast.Expr, name string) bool {
	p, ok := t.(*ast.StarExpr)
	if !ok {
		return false
	}
	of := p.X
	if i, ok := of.(*ast.IndexExpr); ok { // of a generic type
		of = i.X
	}
	n, ok := of.(*ast.Ident) // and none of another package
	return ok && n.Name == name
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

// locals finds the maps and lists of a function that are made outside of a loop without end, and written or made longer within it; and the maps of eBPF programs that
// it makes.
func (x *tableFinder) locals(f *ast.FuncDecl) {
	if f.Body == nil {
		return
	}
	made, lists := map[string]token.Pos{}, map[string]token.Pos{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if t, ok := n.Type.(*ast.ArrayType); ok && t.Len == nil && last(t.Elt) != "byte" {
				for _, name := range n.Names {
					lists[name.Name] = name.Pos()
				}
			}
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if n.Tok != token.DEFINE || len(n.Lhs) != len(n.Rhs) {
					break
				}
				switch t := typeOf(n.Rhs[i]).(type) {
				case *ast.MapType:
					made[last(l)] = t.Pos()
				case *ast.ArrayType:
					if t.Len == nil && last(t.Elt) != "byte" {
						lists[last(l)] = t.Pos()
					}
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
		within := tableFinder{named: map[string]ast.Expr{}, grows: map[string]bool{}, written: map[string]bool{}, buffered: map[string]token.Pos{}}
		ast.Inspect(loop.Body, within.writes)
		for name, at := range made {
			if within.written[name] && (at < loop.Pos() || at > loop.End()) {
				x.found[f.Name.Name+"."+name] = at
			}
		}
		for name, at := range lists {
			if within.grows[name] && (at < loop.Pos() || at > loop.End()) {
				x.found[f.Name.Name+"."+name] = at
			}
		}
		return true
	})
}
