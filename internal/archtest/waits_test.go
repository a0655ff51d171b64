// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A test that waits for time to pass, or that asserts that something took less than a duration,
// depends on what else the machine does. So does one that waits for an event, but not for long.
// TestWaits finds calls of time.Sleep, comparisons of durations that were measured, and waits of less
// than a minute, in functions that a test reaches without a bubble of
// testing/synctest. Each has a comment, in its line or in the line above, that begins with
// "Real time:" and says why it must be so. Timing tests need none.

// realTime begins that comment.
const realTime = "// Real time: "

// TestWaits checks the rule above.
func TestWaits(t *testing.T) {
	for _, files := range testFiles(t) {
		functions := map[string]*testFunction{}
		for _, f := range files {
			readTestFile(f.File, functions)
		}
		real := withoutBubble(functions)
		for _, f := range files {
			said := realTimeLines(f)
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil || !real[fn.Name.Name] {
					continue
				}
				for _, w := range waits(f.File, fn.Body) {
					p := f.set.Position(w.at)
					if !said[p.Line] && !said[p.Line-1] {
						t.Errorf("%s:%d: %s %s: wait for an event (testkind.Eventually), use testing/synctest, or say why not: %s…", p.Filename, p.Line, fn.Name.Name, w.what, realTime)
					}
				}
			}
		}
	}
}

// withoutBubble returns the functions that a test without a bubble reaches. Timing tests may do
// what they want.
func withoutBubble(functions map[string]*testFunction) map[string]bool {
	real := map[string]bool{}
	for name, f := range functions {
		if !f.isTest || strings.HasPrefix(name, "TestTiming") {
			continue
		}
		seen := map[string]bool{}
		if !reach(functions, name, seen).bubble {
			maps.Copy(real, seen)
		}
	}
	return real
}

// realTimeLines returns the lines with the comment. A comment of several lines counts for the line
// below it.
func realTimeLines(f testFile) map[int]bool {
	lines := map[int]bool{}
	for _, g := range f.Comments {
		if slices.ContainsFunc(g.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, realTime) }) {
			lines[f.set.Position(g.End()).Line] = true
			lines[f.set.Position(g.Pos()).Line] = true
		}
	}
	return lines
}

type wait struct {
	at   token.Pos
	what string
}

// waits finds what a function does with the real clock.
func waits(f *ast.File, body *ast.BlockStmt) (found []wait) {
	times := "time"
	for _, i := range f.Imports {
		if i.Path.Value == `"time"` && i.Name != nil {
			times = i.Name.Name
		}
	}
	isTime := func(e ast.Expr, name string) bool {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != name {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && x.Name == times
	}
	measured := map[string]bool{} // variables
	ast.Inspect(body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, rhs := range a.Rhs {
				if x, ok := a.Lhs[i].(*ast.Ident); ok && isTime(rhs, "Since") {
					measured[x.Name] = true
				}
			}
		}
		return true
	})
	isMeasured := func(e ast.Expr) bool {
		x, ok := e.(*ast.Ident)
		return isTime(e, "Since") || ok && measured[x.Name]
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isTime(n, "Sleep") {
				found = append(found, wait{n.Pos(), "sleeps"})
			}
			if isTime(n, "After") && short(n.Args[0]) || called(n) == "context.WithTimeout" && short(n.Args[1]) || called(n) == "netnstest.Until" && short(n.Args[0]) {
				found = append(found, wait{n.Pos(), "waits for less than a minute"})
			}
		case *ast.BinaryExpr:
			less := n.Op == token.LSS || n.Op == token.LEQ
			more := n.Op == token.GTR || n.Op == token.GEQ
			if less && isMeasured(n.Y) || more && isMeasured(n.X) {
				found = append(found, wait{n.Pos(), "asserts that something takes at most so long"})
			}
		}
		return true
	})
	return found
}

// called returns the package and the function of a call, or "".
func called(call *ast.CallExpr) string {
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok {
			return x.Name + "." + sel.Sel.Name
		}
	}
	return ""
}

// short reports whether e is written as a duration of less than a minute: 5*time.Second.
func short(e ast.Expr) bool {
	count, unit := "1", e
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.MUL {
		lit, ok := b.X.(*ast.BasicLit)
		if !ok {
			return false
		}
		count, unit = lit.Value, b.Y
	}
	sel, ok := unit.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	n, err := strconv.Atoi(count)
	switch sel.Sel.Name {
	case "Second":
		return err == nil && n < 60
	case "Millisecond", "Microsecond":
		return err == nil
	}
	return false
}
