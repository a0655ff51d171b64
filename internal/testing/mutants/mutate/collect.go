// SPDX-License-Identifier: Apache-2.0

package mutate

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// A collector finds the sites of one function, or of the initial values of variables.
type collector struct {
	f    *file
	fn   string
	recv string
	sig  *ast.FuncType // the innermost function, nil outside of one
	only ast.Stmt      // the only statement of the function
}

// collect finds all sites of the file.
func (f *file) collect() {
	for _, d := range f.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name, recv := funcName(d)
			c := &collector{f: f, fn: name, recv: recv}
			if d.Body != nil {
				c.body(d.Type, d.Body, true)
			}
		case *ast.GenDecl:
			if d.Tok != token.VAR || f.pkg.set == Bodies {
				continue
			}
			c := &collector{f: f}
			for _, spec := range d.Specs {
				for _, v := range spec.(*ast.ValueSpec).Values {
					c.expr(v)
				}
			}
		}
	}
}

// funcName returns Function or Type.Method, and the type of a method.
func funcName(d *ast.FuncDecl) (name, recv string) {
	if d.Recv == nil {
		return d.Name.Name, ""
	}
	t := d.Recv.List[0].Type
	for {
		switch e := t.(type) {
		case *ast.StarExpr:
			t = e.X
			continue
		case *ast.IndexExpr:
			t = e.X
			continue
		case *ast.IndexListExpr:
			t = e.X
			continue
		case *ast.Ident:
			return e.Name + "." + d.Name.Name, e.Name
		}
		return d.Name.Name, ""
	}
}

func (f *file) offset(p token.Pos) int { return int(p - f.ast.FileStart) }

func (f *file) source(n ast.Node) string { return string(f.text[f.offset(n.Pos()):f.offset(n.End())]) }

// add adds a site for a node.
func (c *collector) add(s *site, n ast.Node) {
	s.at, s.from, s.to, s.fn = n.Pos(), c.f.offset(n.Pos()), c.f.offset(n.End()), c.fn
	c.f.sites = append(c.f.sites, s)
}

// insert adds a site that inserts a statement.
func (c *collector) insert(s *site, at, where token.Pos) {
	s.at, s.from, s.to, s.fn = at, c.f.offset(where), c.f.offset(where), c.fn
	c.f.sites = append(c.f.sites, s)
}

// body collects what is in a function. The body of a named function can be removed.
func (c *collector) body(sig *ast.FuncType, body *ast.BlockStmt, named bool) {
	outer, only := c.sig, c.only
	c.sig, c.only = sig, nil
	if len(body.List) == 1 {
		c.only = body.List[0]
	}
	if len(body.List) > 0 && !c.alreadyZero(body) {
		change := Removed
		if !named {
			change = Removed + " of func literal " + oneLine(c.f.source(sig))
		}
		s := &site{kind: siteBody, zero: c.zero(), alts: []alt{{change: change}}}
		if named && !forPeople(c.fn) {
			s.recv = c.recv
		}
		if named || c.f.pkg.set == All {
			c.insert(s, body.Pos(), body.Lbrace+1)
		}
	}
	if c.f.pkg.set == All {
		c.stmts(body.List)
	}
	c.sig, c.only = outer, only
}

// forPeople reports whether a method makes text of a value for people. It is not what a
// type is there for.
func forPeople(method string) bool {
	_, name, _ := strings.Cut(method, ".")
	return name == "String" || name == "Error" || name == "LogValue"
}

// alreadyZero reports whether a body only returns zero values.
func (c *collector) alreadyZero(body *ast.BlockStmt) bool {
	ret, ok := body.List[0].(*ast.ReturnStmt)
	return ok && c.returnsZero(ret)
}

// zero returns the zero values of the results of the function.
func (c *collector) zero() string {
	if c.sig.Results == nil {
		return ""
	}
	var values []string
	for _, field := range c.sig.Results.List {
		value := "*new(" + c.f.source(field.Type) + ")"
		for range max(len(field.Names), 1) {
			values = append(values, value)
		}
	}
	return strings.Join(values, ", ")
}

// returnsZero reports whether a statement returns zero values, as far as the source shows.
func (c *collector) returnsZero(ret *ast.ReturnStmt) bool {
	for _, e := range ret.Results {
		tv := c.f.pkg.info.Types[e]
		lit, isLit := ast.Unparen(e).(*ast.CompositeLit)
		if !tv.IsNil() && !isZeroConst(tv) && (!isLit || len(lit.Elts) > 0 || isReference(tv.Type)) {
			return false
		}
	}
	return true
}

// isReference reports whether an empty literal of a type is not its zero value.
func isReference(t types.Type) bool {
	switch t.Underlying().(type) {
	case *types.Slice, *types.Map:
		return true
	}
	return false
}

// textOnly reports whether a call only makes text for people: a log, an error or a
// panic. Nothing in it is changed.
func (c *collector) textOnly(call *ast.CallExpr) bool {
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return false
	}
	obj := c.f.pkg.info.Uses[id]
	if b, ok := obj.(*types.Builtin); ok {
		return b.Name() == "panic" || b.Name() == "recover" || b.Name() == "print" || b.Name() == "println"
	}
	if obj == nil || obj.Pkg() == nil {
		return false
	}
	switch obj.Pkg().Path() {
	case "log/slog", "log":
		return true
	case "fmt", "errors":
		return obj.Name() == "Errorf" || obj.Name() == "New"
	}
	return false
}
