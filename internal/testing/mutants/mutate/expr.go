// SPDX-License-Identifier: Apache-2.0

package mutate

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
)

// wants says which values a condition is forced to have.
type wants int

const (
	wantBoth wants = iota
	wantFalse
	wantTrue
)

func (c *collector) exprs(list ...ast.Expr) {
	for _, e := range list {
		if e != nil {
			c.expr(e)
		}
	}
}

// values collects what is in expressions whose values are kept or returned. Those that
// are true or false are conditions.
func (c *collector) values(list []ast.Expr) {
	for _, e := range list {
		if c.besideError(list, e) {
			continue
		}
		if tv := c.f.pkg.info.Types[e]; tv.Type != nil && tv.Value == nil && isBool(tv.Type) {
			c.condition(e, wantBoth)
		} else {
			c.expr(e)
		}
	}
}

// besideError reports whether an expression is a zero value beside an error, at which
// nobody looks.
func (c *collector) besideError(list []ast.Expr, e ast.Expr) bool {
	last := c.f.pkg.info.Types[list[len(list)-1]]
	return len(list) > 1 && isZeroConst(c.f.pkg.info.Types[e]) && !last.IsNil() && last.Type != nil &&
		types.AssignableTo(last.Type, types.Universe.Lookup("error").Type())
}

// typeOf returns how the type of an expression is written in this file.
func (c *collector) typeOf(e ast.Expr) string {
	t := c.f.pkg.info.Types[e].Type
	if b, ok := t.(*types.Basic); ok && b.Kind() == types.UntypedBool {
		return "bool"
	}
	return types.TypeString(t, func(p *types.Package) string {
		if p.Path() == c.f.pkg.src.Path {
			return ""
		}
		for _, imp := range c.f.ast.Imports {
			if imp.Name != nil && imp.Path.Value == `"`+p.Path()+`"` {
				return imp.Name.Name
			}
		}
		return p.Name() // does not compile if the file does not import it
	})
}

// addExpr adds a site for an expression.
func (c *collector) addExpr(e ast.Expr, alts ...alt) {
	if len(alts) > 0 {
		c.add(&site{kind: siteExpr, typ: c.typeOf(e), alts: alts}, e)
	}
}

// condition collects what is in a condition. Each operand of && and || is forced to be
// true and to be false. This is stricter than to negate it, or to swap && and ||: a test
// that sees one of the two forced values also sees that.
func (c *collector) condition(e ast.Expr, want wants) {
	if tv := c.f.pkg.info.Types[e]; tv.Value != nil {
		c.expr(e)
		return
	}
	switch x := e.(type) {
	case *ast.ParenExpr:
		c.condition(x.X, want)
		return
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			switch want {
			case wantFalse:
				want = wantTrue
			case wantTrue:
				want = wantFalse
			}
			c.condition(x.X, want)
			return
		}
	case *ast.BinaryExpr:
		// One operand that is false makes the whole && false. So this is done with one only.
		switch {
		case x.Op == token.LAND:
			c.condition(x.X, wantBoth)
			c.condition(x.Y, wantTrue)
			return
		case x.Op == token.LOR:
			c.condition(x.X, wantBoth)
			c.condition(x.Y, wantFalse)
			return
		}
	}
	text := oneLine(c.f.source(e))
	var alts []alt
	if want != wantFalse {
		alts = append(alts, alt{"true", text + " → true"})
	}
	if want != wantTrue {
		alts = append(alts, alt{"false", text + " → false"})
	}
	if x, ok := e.(*ast.BinaryExpr); ok {
		alts = append(alts, c.boundary(x)...)
	}
	c.addExpr(e, alts...)
	c.operands(e)
}

// boundary moves the boundary of a comparison by one.
func (c *collector) boundary(x *ast.BinaryExpr) []alt {
	op, ok := map[token.Token]token.Token{
		token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	}[x.Op]
	if !ok {
		return nil
	}
	return []alt{{c.f.source(x.X) + " " + op.String() + " " + c.f.source(x.Y), oneLine(c.f.source(x)) + " → " + op.String()}}
}

// operands collects what is in a comparison, or in an expression that is none.
func (c *collector) operands(e ast.Expr) {
	x, ok := e.(*ast.BinaryExpr)
	if !ok {
		c.inner(e)
		return
	}
	for i, operand := range []ast.Expr{x.X, x.Y} {
		if c.f.pkg.info.Types[operand].Value == nil {
			c.expr(operand)
			continue
		}
		// The other operator already moves the boundary in one direction: here is the other.
		// A constant that something must be equal to has the mutants true and false.
		switch right := i == 1; x.Op {
		case token.LSS, token.GEQ:
			c.constant(operand, map[bool]int{true: -1, false: 1}[right])
		case token.GTR, token.LEQ:
			c.constant(operand, map[bool]int{true: 1, false: -1}[right])
		}
	}
}

// expr collects what is in an expression.
func (c *collector) expr(e ast.Expr) {
	tv := c.f.pkg.info.Types[e]
	switch {
	case tv.IsType():
		return
	case tv.Value != nil:
		c.constant(e, 1)
		return
	}
	if x, ok := e.(*ast.BinaryExpr); ok && (isComparison(x.Op) || x.Op == token.LAND || x.Op == token.LOR) {
		c.condition(e, wantBoth)
		return
	}
	c.inner(e)
}

func isComparison(op token.Token) bool {
	switch op {
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		return true
	}
	return false
}

// inner collects what is in an expression that is neither constant nor a condition.
func (c *collector) inner(e ast.Expr) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		c.expr(e.X)
	case *ast.SelectorExpr:
		if !c.f.pkg.info.Types[e.X].IsType() {
			c.expr(e.X)
		}
	case *ast.StarExpr:
		c.expr(e.X)
	case *ast.UnaryExpr:
		switch e.Op {
		case token.NOT:
			c.condition(e, wantBoth)
			return
		case token.SUB, token.XOR:
			c.addExpr(e, alt{c.f.source(e.X), oneLine(c.f.source(e)) + " → without " + e.Op.String()})
		}
		c.expr(e.X)
	case *ast.BinaryExpr:
		c.arithmetic(e)
		c.exprs(e.X, e.Y)
	case *ast.CallExpr:
		if c.textOnly(e) {
			return
		}
		c.expr(e.Fun)
		args := e.Args
		if slice, ok := arrayOf(c.f.pkg.info, e); ok {
			c.exprs(slice.X, slice.Low) // a longer slice gives the same array
			return
		}
		if id, ok := e.Fun.(*ast.Ident); ok && id.Name == "make" && len(args) == 3 {
			args = args[:2] // the capacity changes nothing
		}
		c.exprs(args...)
	case *ast.IndexExpr:
		c.expr(e.X)
		if !c.f.pkg.info.Types[e.Index].IsType() {
			c.expr(e.Index)
		}
	case *ast.SliceExpr:
		c.exprs(e.X, e.Low, e.High, e.Max)
	case *ast.TypeAssertExpr:
		c.expr(e.X)
	case *ast.KeyValueExpr:
		c.expr(e.Value)
	case *ast.CompositeLit:
		c.composite(e)
	case *ast.FuncLit:
		c.body(e.Type, e.Body, false)
	}
}

// arrayOf returns the slice that a conversion to an array takes.
func arrayOf(info *types.Info, e *ast.CallExpr) (*ast.SliceExpr, bool) {
	fun := info.Types[e.Fun]
	if !fun.IsType() || len(e.Args) != 1 {
		return nil, false
	}
	_, isArray := fun.Type.Underlying().(*types.Array)
	slice, isSlice := e.Args[0].(*ast.SliceExpr)
	return slice, isArray && isSlice
}

// composite collects what is in a literal. The fields of a struct can stay zero.
func (c *collector) composite(e *ast.CompositeLit) {
	t := c.f.pkg.info.Types[e].Type
	if ptr, ok := t.Underlying().(*types.Pointer); ok {
		t = ptr.Elem()
	}
	_, isStruct := t.Underlying().(*types.Struct)
	for _, el := range e.Elts {
		value, name := el, ""
		if kv, ok := el.(*ast.KeyValueExpr); ok {
			value, name = kv.Value, c.f.source(kv.Key)
			if _, isMap := t.Underlying().(*types.Map); isMap {
				c.expr(kv.Key)
			}
		}
		tv := c.f.pkg.info.Types[value]
		switch {
		case !isStruct || tv.Value != nil || tv.IsNil() || tv.Type == nil:
		case isBool(tv.Type):
			c.condition(value, wantBoth)
			continue
		default:
			if _, isFunc := value.(*ast.FuncLit); !isFunc {
				c.addExpr(value, alt{"*new(" + c.typeOf(value) + ")", oneLine(name+": "+c.f.source(value)) + " → zero"})
			}
		}
		c.expr(value)
	}
}

// arithmetic replaces the operator of an expression.
func (c *collector) arithmetic(e *ast.BinaryExpr) {
	op, ok := map[token.Token]token.Token{
		token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
		token.AND: token.OR, token.OR: token.AND, token.XOR: token.AND, token.AND_NOT: token.AND,
		token.SHL: token.SHR, token.SHR: token.SHL,
	}[e.Op]
	if !ok || !isNumber(c.f.pkg.info.Types[e].Type) {
		return
	}
	// In brackets: operators of other precedence may be within.
	text := "(" + c.f.source(e.X) + ") " + op.String() + " (" + c.f.source(e.Y) + ")"
	c.addExpr(e, alt{text, oneLine(c.f.source(e)) + " → " + op.String()})
}

// constant changes a constant: a number by delta, true to false and the reverse. Text stays,
// and durations: one nanosecond is no difference.
func (c *collector) constant(e ast.Expr, delta int) {
	tv := c.f.pkg.info.Types[e]
	text := c.f.source(e)
	switch {
	case tv.Value.Kind() == constant.Bool && isBool(tv.Type):
		other := "true"
		if constant.BoolVal(tv.Value) {
			other = "false"
		}
		c.addExpr(e, alt{other, oneLine(text) + " → " + other})
	case tv.Value.Kind() == constant.Int && isInteger(tv.Type) && tv.Type.String() != "time.Duration":
		change, alternative := " → +1", "("+text+") + 1"
		if delta < 0 {
			change, alternative = " → -1", "("+text+") - 1"
		}
		c.addExpr(e, alt{alternative, oneLine(text) + change})
	}
}

func isInteger(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsInteger != 0 && b.Info()&types.IsUntyped == 0
}

func isZeroConst(tv types.TypeAndValue) bool {
	if tv.Value == nil {
		return false
	}
	switch tv.Value.Kind() {
	case constant.Bool:
		return !constant.BoolVal(tv.Value)
	case constant.String:
		return constant.StringVal(tv.Value) == ""
	}
	return constant.Sign(tv.Value) == 0
}
