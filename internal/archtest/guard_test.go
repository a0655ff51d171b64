// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A panic in a goroutine without a guard ends the process, and with it the connections of
// all programs. So TestGuards finds what starts a goroutine: go statements, methods called
// Go, time.AfterFunc and context.AfterFunc. The function that runs there
//
//   - uses package guard, or calls a function of its package that does, or
//   - only makes calls of harmless, or
//   - has a comment in the line of the start or in the line above that begins with
//     "No guard:" and says why it needs none.
//
// The test reads the source without types. It does not prove that all code of the function
// runs under the guard.

// guardedPackages are the packages of the processes that serve many connections.
var guardedPackages = []string{"userstack", "userstack/...", "rdmaverbs/softroce", "nl", "internal/serve", "internal/httpserver", "internal/metrics"}

// notGuarded are packages below guardedPackages that only tests use.
var notGuarded = []string{"userstack/simfabric", "userstack/stacktest", "userstack/internal/bedtest"}

// harmless are functions and methods that do not panic.
var harmless = []string{
	"Add", "AfterFunc", "Close", "Done", "Lock", "SetDeadline", "SetReadDeadline", "SetWriteDeadline", "Unix",
	"Unlock", "Wait", "cancel", "close",
}

// noGuard begins the comment with the reason why a goroutine has no guard.
const noGuard = "// No guard: "

// calls returns the names of the functions that n calls.
func calls(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			names = append(names, nameOf(call.Fun))
		}
		return true
	})
	return names
}

// nameOf returns the name of a function or method without its package or receiver. It
// returns "" if the function has no name.
func nameOf(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// usesGuard reports whether n calls a method of a guard, or guard.Elsewhere.
func usesGuard(n ast.Node) (yes bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch sel.Sel.Name {
		case "Do", "Func", "Caught":
			of := sel.X
			if call, ok := of.(*ast.CallExpr); ok {
				if _, nilGuard := call.Fun.(*ast.ParenExpr); nilGuard { // (*guard.Guard)(nil)
					yes = true
					return false
				}
				of = call.Fun
			}
			switch nameOf(of) {
			case "g", "guard", "Guard":
				yes = true
			}
		case "Elsewhere":
			yes = yes || nameOf(sel.X) == "guard"
		}
		return !yes
	})
	return yes
}

// takesFunction reports whether a function has a parameter of a function type.
func takesFunction(f *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		_, ok := p.Type.(*ast.FuncType)
		return ok
	})
}

// guardsOf are the functions of a package by what they have to do with package guard.
type guardsOf struct {
	bodies map[string][]*ast.BlockStmt // by the name of the function or method
	uses   map[string]bool             // all functions of this name use a guard
	wraps  map[string]bool             // all functions of this name call their argument under a guard
}

func newGuardsOf(files []*ast.File) *guardsOf {
	x := &guardsOf{bodies: map[string][]*ast.BlockStmt{}, uses: map[string]bool{}, wraps: map[string]bool{}}
	takes := map[string]bool{}
	for _, f := range files {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				was := len(x.bodies[d.Name.Name]) == 0
				x.bodies[d.Name.Name] = append(x.bodies[d.Name.Name], d.Body)
				takes[d.Name.Name] = (was || takes[d.Name.Name]) && takesFunction(d)
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for name, bodies := range x.bodies {
			every := func(has func(ast.Node) bool) bool {
				return !slices.ContainsFunc(bodies, func(b *ast.BlockStmt) bool { return !has(b) })
			}
			if !x.uses[name] && every(x.direct) {
				x.uses[name], changed = true, true
			}
			if takes[name] && !x.wraps[name] && every(x.guarded) {
				x.wraps[name], changed = true, true
			}
		}
	}
	return x
}

// direct reports whether n uses a guard itself.
func (x *guardsOf) direct(n ast.Node) bool {
	return usesGuard(n) || slices.ContainsFunc(calls(n), func(f string) bool { return x.wraps[f] })
}

// guarded reports whether n uses a guard, or calls a function that does.
func (x *guardsOf) guarded(n ast.Node) bool {
	return x.direct(n) || slices.ContainsFunc(calls(n), func(f string) bool { return x.uses[f] })
}

// isHarmless reports whether n only makes calls of harmless.
func isHarmless(n ast.Node) bool {
	return !slices.ContainsFunc(calls(n), func(f string) bool { return !slices.Contains(harmless, f) })
}

// safe reports whether f may run in a goroutine: f is what the goroutine calls.
func (x *guardsOf) safe(f ast.Expr) bool {
	if lit, ok := f.(*ast.FuncLit); ok {
		return x.guarded(lit.Body) || isHarmless(lit.Body)
	}
	if x.direct(f) { // a function that a method of a guard returns
		return true
	}
	name := nameOf(f)
	if x.wraps[name] || slices.Contains(harmless, name) {
		return true
	}
	bodies := x.bodies[name]
	return len(bodies) > 0 && !slices.ContainsFunc(bodies, func(b *ast.BlockStmt) bool { return !x.guarded(b) && !isHarmless(b) })
}

// started returns the functions that run in goroutines which a file starts, by the position
// of the start.
func started(f *ast.File) map[token.Pos]ast.Expr {
	out := map[token.Pos]ast.Expr{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			out[n.Pos()] = n.Call.Fun
		case *ast.CallExpr:
			sel, ok := n.Fun.(*ast.SelectorExpr)
			switch {
			case !ok:
			case sel.Sel.Name == "Go" && len(n.Args) == 1, sel.Sel.Name == "AfterFunc" && len(n.Args) == 2:
				out[n.Pos()] = n.Args[len(n.Args)-1]
			}
		}
		return true
	})
	return out
}

// reasons returns the lines of a file that have, or follow, a comment of why there is no
// guard.
func reasons(fset *token.FileSet, f *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if rest, ok := strings.CutPrefix(c.Text, noGuard); ok && rest != "" {
				lines[fset.Position(c.Pos()).Line] = true
				lines[fset.Position(group.End()).Line+1] = true
			}
		}
	}
	return lines
}

// unguarded returns where the files start goroutines without a guard and without a reason.
func unguarded(fset *token.FileSet, files []*ast.File) (where []string) {
	x := newGuardsOf(files)
	for _, f := range files {
		excused := reasons(fset, f)
		for pos, called := range started(f) {
			if at := fset.Position(pos); !excused[at.Line] && !x.safe(called) {
				where = append(where, fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line))
			}
		}
	}
	slices.Sort(where)
	return where
}

// TestGuards checks that goroutines of the stack have a guard or a reason.
func TestGuards(t *testing.T) {
	found := 0
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		if !matchAny(guardedPackages, path) || matchAny(notGuarded, path) {
			continue
		}
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
			found += len(started(f))
		}
		for _, where := range unguarded(fset, files) {
			t.Errorf("%s/%s: a panic in this goroutine ends the process: use package guard, or say why not in a comment that begins with %q", path, where, noGuard)
		}
	}
	if found < 50 {
		t.Errorf("found only %d places that start goroutines", found)
	}
}

// TestUnguarded checks what TestGuards finds and what it accepts.
func TestUnguarded(t *testing.T) {
	const source = `package p
func work() { other() }
func (s *s) guarded(f func()) { s.guard.Do("x", f) }
func (s *s) task() { s.guarded(work) }
func (s *s) over() { s.l.Close() }
func starts() {
	go work()                          // line 7: found
	go func() { work() }()             // found
	wg.Go(work)                        // found
	time.AfterFunc(d, work)            // found
	context.AfterFunc(ctx, s.unknown)  // found
	go s.task()
	go func() { s.task() }()
	wg.Go(s.guard.Func("x", work))
	wg.Go(func() { s.guarded(work) })
	time.AfterFunc(d, s.over)
	go func() { defer close(done); wg.Wait() }()
	go work() // No guard: it does nothing.
	// No guard: it does nothing
	// at all.
	go work()

	go work() // found
	// No guard:
	go work() // found: no reason
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"p.go:10", "p.go:11", "p.go:23", "p.go:25", "p.go:7", "p.go:8", "p.go:9"}
	if got := unguarded(fset, []*ast.File{f}); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}
