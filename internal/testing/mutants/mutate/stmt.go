// SPDX-License-Identifier: Apache-2.0

package mutate

import (
	"go/ast"
	"go/token"
	"go/types"
)

// stmts collects what is in the statements of a block or a clause. Each of them can be
// removed if it declares nothing.
func (c *collector) stmts(list []ast.Stmt) {
	for _, s := range list {
		c.listed(s)
	}
}

// listed collects a statement of a block.
func (c *collector) listed(s ast.Stmt) {
	text := c.f.source(s)
	remove := func(more ...alt) {
		if s != c.only { // otherwise this is the same as removing the body
			more = append([]alt{{change: "removed: " + oneLine(text)}}, more...)
		}
		if len(more) == 1 && more[0].text != "" {
			// A single alternative must not look like a removal.
			more = append(more, alt{change: "removed: " + oneLine(text)})
		}
		if len(more) > 0 {
			c.add(&site{kind: siteStmt, alts: more}, s)
		}
	}
	switch s := s.(type) {
	case *ast.ExprStmt:
		if call, ok := ast.Unparen(s.X).(*ast.CallExpr); ok && !c.textOnly(call) {
			remove()
		}
	case *ast.AssignStmt:
		if s.Tok != token.DEFINE && !c.onlyBlank(s) {
			remove(c.otherAssign(s)...)
		}
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.BranchStmt:
		if b, ok := s.(*ast.BranchStmt); !ok || b.Tok == token.BREAK || b.Tok == token.CONTINUE {
			remove()
		}
	case *ast.DeferStmt:
		// A deferred function that recovers must be called by its defer statement itself, and
		// it is: the statement stays one.
		remove()
	case *ast.ReturnStmt:
		if s != c.only && len(s.Results) > 0 && !c.returnsZero(s) && !c.sameAsCondition(s) {
			c.add(&site{kind: siteReturn, zero: c.zero(), alts: []alt{{change: oneLine(text) + " → return zero values"}}}, s)
		}
	}
	c.stmt(s)
}

func (c *collector) onlyBlank(s *ast.AssignStmt) bool {
	for _, l := range s.Lhs {
		if id, ok := l.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// otherAssign returns an assignment with another operator.
func (c *collector) otherAssign(s *ast.AssignStmt) []alt {
	op, ok := map[token.Token]token.Token{
		token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
		token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN, token.REM_ASSIGN: token.MUL_ASSIGN,
		token.AND_ASSIGN: token.OR_ASSIGN, token.OR_ASSIGN: token.AND_ASSIGN, token.XOR_ASSIGN: token.AND_ASSIGN,
		token.SHL_ASSIGN: token.SHR_ASSIGN, token.SHR_ASSIGN: token.SHL_ASSIGN, token.AND_NOT_ASSIGN: token.OR_ASSIGN,
	}[s.Tok]
	if !ok || !isNumber(c.f.pkg.info.Types[s.Lhs[0]].Type) {
		return nil
	}
	text := c.f.source(s.Lhs[0]) + " " + op.String() + " " + c.f.source(s.Rhs[0])
	return []alt{{text: text, change: oneLine(c.f.source(s)) + " → " + op.String()}}
}

// sameAsCondition reports whether what is returned is one boolean, which has mutants of
// its own.
func (c *collector) sameAsCondition(s *ast.ReturnStmt) bool {
	return len(s.Results) == 1 && isBool(c.f.pkg.info.Types[s.Results[0]].Type)
}

// stmt collects what is in a statement.
func (c *collector) stmt(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.BlockStmt:
		c.stmts(s.List)
	case *ast.LabeledStmt:
		c.stmt(s.Stmt)
	case *ast.ExprStmt:
		c.expr(s.X)
	case *ast.SendStmt:
		c.exprs(s.Chan, s.Value)
	case *ast.IncDecStmt:
		c.expr(s.X)
	case *ast.AssignStmt:
		c.exprs(s.Lhs...)
		c.values(s.Rhs)
	case *ast.DeclStmt:
		if d := s.Decl.(*ast.GenDecl); d.Tok == token.VAR {
			for _, spec := range d.Specs {
				c.values(spec.(*ast.ValueSpec).Values)
			}
		}
	case *ast.GoStmt:
		c.expr(s.Call)
	case *ast.DeferStmt:
		c.expr(s.Call)
	case *ast.ReturnStmt:
		c.values(s.Results)
	case *ast.IfStmt:
		c.optional(s.Init)
		c.condition(s.Cond, wantBoth)
		c.stmts(s.Body.List)
		c.optional(s.Else)
	case *ast.ForStmt:
		c.optional(s.Init)
		if s.Cond != nil {
			c.condition(s.Cond, wantFalse) // true would only make it endless
		}
		c.optional(s.Post)
		c.stmts(s.Body.List)
	case *ast.RangeStmt:
		c.expr(s.X)
		if len(s.Body.List) > 0 {
			c.insert(&site{kind: siteLeave, alts: []alt{{change: "loop skipped: " + oneLine("range "+c.f.source(s.X))}}}, s.Pos(), s.Body.Lbrace+1)
		}
		c.stmts(s.Body.List)
	case *ast.SwitchStmt:
		c.optional(s.Init)
		if s.Tag != nil {
			c.expr(s.Tag)
		}
		c.clauses(s.Body, s.Tag == nil)
	case *ast.TypeSwitchStmt:
		c.optional(s.Init)
		c.clauses(s.Body, false)
	case *ast.SelectStmt:
		c.clauses(s.Body, false)
	}
}

func (c *collector) optional(s ast.Stmt) {
	if s != nil {
		c.stmt(s)
	}
}

// clauses collects what is in the clauses of a switch or a select.
func (c *collector) clauses(body *ast.BlockStmt, conditions bool) {
	for _, s := range body.List {
		var list []ast.Stmt
		var colon token.Pos
		label := "default"
		byCondition := false
		switch s := s.(type) {
		case *ast.CaseClause:
			list, colon = s.Body, s.Colon
			for _, e := range s.List {
				if conditions {
					c.condition(e, wantBoth)
					byCondition = true
				}
			}
			if s.List != nil {
				label = "case " + string(c.f.text[c.f.offset(s.List[0].Pos()):c.f.offset(colon)])
			}
		case *ast.CommClause:
			list, colon = s.Body, s.Colon
			if s.Comm != nil {
				c.stmt(s.Comm)
				label = "case " + c.f.source(s.Comm)
			}
		}
		if len(list) > 0 && !byCondition && !isBreak(list[0]) {
			c.insert(&site{kind: siteLeave, alts: []alt{{change: "clause removed: " + oneLine(label)}}}, s.Pos(), colon+1)
		}
		c.stmts(list)
	}
}

func isBreak(s ast.Stmt) bool {
	b, ok := s.(*ast.BranchStmt)
	return ok && b.Tok == token.BREAK
}

func isBool(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

func isNumber(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsNumeric != 0
}
