// SPDX-License-Identifier: Apache-2.0

package mutate

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// activePath is the package that the mutated code imports, under a name that nobody uses.
const (
	activePath = "smcr/internal/testing/mutants/active"
	activeName = "mutants_"
)

// A Source is a package to mutate, without its tests.
type Source struct {
	Path  string            // import path
	Files map[string][]byte // by base name
	// Importer finds the packages that it imports, and package active.
	Importer types.Importer
}

// Write returns the files with all mutants and the list of these, numbered from first on.
// Mutants that do not compile are left out. A file without mutants is not returned.
func Write(src Source, set Set, first int) (map[string][]byte, []Mutant, error) {
	p := &pkg{src: src, set: set, fset: token.NewFileSet(), types: map[string]int{}}
	for _, name := range slices.Sorted(maps.Keys(src.Files)) {
		f, err := parser.ParseFile(p.fset, name, src.Files[name], parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return nil, nil, err
		}
		if !ast.IsGenerated(f) {
			p.files = append(p.files, &file{name: name, text: src.Files[name], ast: f, pkg: p})
		} else {
			p.generated = append(p.generated, f)
		}
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	conf := types.Config{Importer: src.Importer}
	if _, err := conf.Check(src.Path, p.fset, p.syntax(), p.info); err != nil {
		return nil, nil, fmt.Errorf("mutants of %s: %w", src.Path, err)
	}
	for _, f := range p.files {
		f.collect()
	}
	for {
		mutants, err := p.render(first)
		if err != nil {
			return nil, nil, err
		}
		ok, err := p.dropBroken()
		if err != nil {
			return nil, nil, err
		}
		if ok {
			return p.output(), mutants, nil
		}
	}
}

// pkg is a package while its mutants are written.
type pkg struct {
	src       Source
	set       Set
	fset      *token.FileSet
	files     []*file
	generated []*ast.File
	info      *types.Info
	types     map[string]int // the mutant RemovedMethods of each type
}

// file is one file of a package.
type file struct {
	name  string
	text  []byte
	ast   *ast.File
	pkg   *pkg
	sites []*site
	out   []byte
	spans []span // where the sites are in out
}

func (p *pkg) syntax() []*ast.File {
	all := slices.Clone(p.generated)
	for _, f := range p.files {
		all = append(all, f.ast)
	}
	return all
}

func (p *pkg) output() map[string][]byte {
	out := map[string][]byte{}
	for _, f := range p.files {
		if len(f.sites) > 0 {
			out[f.name] = f.out
		}
	}
	return out
}

// render writes all files anew and numbers the mutants.
func (p *pkg) render(first int) ([]Mutant, error) {
	next := first
	clear(p.types)
	var mutants []Mutant
	seen := map[string]int{}
	for _, f := range p.files {
		for _, s := range f.sites {
			s.first = next
			for _, a := range s.alts {
				m := Mutant{ID: next, Package: p.src.Path, File: f.name, Line: p.fset.Position(s.at).Line, Func: s.fn, Change: a.change}
				key := m.Func + "\x00" + m.Change
				if seen[key]++; seen[key] > 1 {
					m.Change = fmt.Sprintf("%s (%d)", m.Change, seen[key])
				}
				mutants = append(mutants, m)
				next++
			}
		}
	}
	// The methods of a type share a mutant.
	for _, f := range p.files {
		for _, s := range f.sites {
			if s.kind != siteBody || s.recv == "" {
				continue
			}
			if p.types[s.recv] == 0 {
				p.types[s.recv] = next
				mutants = append(mutants, Mutant{ID: next, Package: p.src.Path, File: f.name, Line: p.fset.Position(s.at).Line, Func: s.recv, Change: RemovedMethods})
				next++
			}
		}
	}
	if p.set != Bodies { // the removal of each method is the stricter question
		mutants = slices.DeleteFunc(mutants, func(m Mutant) bool { return m.Change == RemovedMethods })
	}
	for _, f := range p.files {
		f.render()
	}
	return mutants, nil
}

// dropBroken type-checks what was written and drops the sites that do not compile. It
// reports whether all do.
func (p *pkg) dropBroken() (bool, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, f := range p.files {
		parsed, err := parser.ParseFile(fset, f.name, f.out, parser.SkipObjectResolution)
		if err != nil {
			return false, fmt.Errorf("mutants of %s: what was written is not Go: %w", p.src.Path, err)
		}
		files = append(files, parsed)
	}
	for name, text := range p.src.Files {
		if !slices.ContainsFunc(p.files, func(f *file) bool { return f.name == name }) {
			parsed, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
			if err != nil {
				return false, err
			}
			files = append(files, parsed)
		}
	}
	var broken []types.Error
	conf := types.Config{Importer: p.src.Importer, Error: func(err error) {
		if e, ok := errors.AsType[types.Error](err); ok {
			broken = append(broken, e)
		}
	}}
	if _, err := conf.Check(p.src.Path, fset, files, nil); err == nil {
		return true, nil
	}
	dropped := 0
	for _, e := range broken {
		pos := fset.Position(e.Pos)
		for _, f := range p.files {
			if f.name == pos.Filename {
				dropped += f.drop(pos.Offset, strings.Contains(e.Msg, "missing return"))
			}
		}
	}
	if dropped == 0 {
		return false, fmt.Errorf("mutants of %s: what was written does not compile: %w", p.src.Path, broken[0])
	}
	return false, nil
}

// drop removes the innermost site at an offset of the output. A function that misses a
// return has a site that leaves a clause which has to return: all of these go.
func (f *file) drop(offset int, missingReturn bool) int {
	if missingReturn {
		fn := f.functionAt(offset)
		n := len(f.sites)
		f.sites = slices.DeleteFunc(f.sites, func(s *site) bool { return s.kind == siteLeave && s.fn == fn })
		return n - len(f.sites)
	}
	var found *span
	for i, s := range f.spans {
		if s.start <= offset && offset < s.end && (found == nil || s.end-s.start < found.end-found.start) {
			found = &f.spans[i]
		}
	}
	if found == nil {
		return 0
	}
	if i := slices.Index(f.sites, found.site); i >= 0 {
		f.sites = slices.Delete(f.sites, i, i+1)
		return 1
	}
	return 1 // dropped already, for another error
}

// functionAt returns the name of the function whose text ends at or after an offset of
// the output.
func (f *file) functionAt(offset int) string {
	parsed, err := parser.ParseFile(token.NewFileSet(), f.name, bytes.Clone(f.out), parser.SkipObjectResolution)
	if err != nil {
		return ""
	}
	for _, d := range parsed.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && int(fn.Pos()-parsed.FileStart) <= offset && offset <= int(fn.End()-parsed.FileStart) {
			name, _ := funcName(fn)
			return name
		}
	}
	return ""
}
