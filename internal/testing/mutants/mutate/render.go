// SPDX-License-Identifier: Apache-2.0

package mutate

import (
	"bytes"
	"cmp"
	"fmt"
	"go/token"
	"slices"
)

// A siteKind is how the mutants of a place are written.
type siteKind int

const (
	siteExpr   siteKind = iota // func() T { if … { return ALT }; return EXPR }()
	siteStmt                   // if it is not removed, or replaced: STMT
	siteReturn                 // { if … { return ZERO }; return … }
	siteBody                   // { if … { return ZERO }; …
	siteLeave                  // case …: if … { break }; …
)

// A site is a place of the source with mutants.
type site struct {
	kind     siteKind
	at       token.Pos // what is reported
	from, to int       // offsets of what is replaced; equal for an insertion
	fn       string
	recv     string // the type of the method, if the body of one is removed
	typ      string // of an expression
	zero     string // what a function returns, behind return
	alts     []alt
	first    int // number of the first mutant
}

// An alt is one mutant of a site.
type alt struct {
	text   string // the expression or statement, "" for a statement that is removed
	change string
}

// span is where a site stands in the output.
type span struct {
	start, end int
	site       *site
}

// render writes the file with its sites.
func (f *file) render() {
	slices.SortStableFunc(f.sites, func(a, b *site) int {
		// The outer site comes first, and a statement before its expression.
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to), cmp.Compare(b.kind, a.kind))
	})
	var out bytes.Buffer
	f.spans = f.spans[:0]
	at := 0
	if len(f.sites) > 0 {
		at = int(f.ast.Name.End() - f.ast.FileStart)
		out.Write(f.text[:at])
		fmt.Fprintf(&out, "; import %s %q", activeName, activePath)
	}
	rest := f.sites
	f.write(&out, at, len(f.text), &rest)
	f.out = out.Bytes()
}

// write writes the source from one offset to another, with the sites there.
func (f *file) write(out *bytes.Buffer, from, to int, rest *[]*site) {
	for len(*rest) > 0 && (*rest)[0].from < to {
		s := (*rest)[0]
		*rest = (*rest)[1:]
		out.Write(f.text[from:s.from])
		start := out.Len()
		s.write(out, f.pkg.types[s.recv], func() { f.write(out, s.from, s.to, rest) })
		f.spans = append(f.spans, span{start, out.Len(), s})
		from = s.to
	}
	out.Write(f.text[from:to])
}

func (s *site) write(out *bytes.Buffer, ofType int, inner func()) {
	switch s.kind {
	case siteExpr:
		fmt.Fprintf(out, "func() %s { ", s.typ)
		s.choose(out, func(a alt) { fmt.Fprintf(out, "return %s", a.text) })
		out.WriteString("; return ")
		inner()
		out.WriteString(" }()")
	case siteStmt:
		if len(s.alts) == 1 {
			fmt.Fprintf(out, "if !%s.Is(%d) { ", activeName, s.first)
			inner()
			out.WriteString(" }")
			return
		}
		fmt.Fprintf(out, "switch %s.In(%d, %d) { ", activeName, s.first, s.first+len(s.alts)-1)
		for i, a := range s.alts {
			fmt.Fprintf(out, "case %d: %s; ", s.first+i, a.text)
		}
		out.WriteString("default: ")
		inner()
		out.WriteString(" }")
	case siteReturn:
		out.WriteString("{ ")
		s.choose(out, func(alt) { fmt.Fprintf(out, "return %s", s.zero) })
		out.WriteString("; ")
		inner()
		out.WriteString(" }")
	case siteBody:
		fmt.Fprintf(out, " if %s.Is(%d)", activeName, s.first)
		if ofType != 0 {
			fmt.Fprintf(out, " || %s.Is(%d)", activeName, ofType)
		}
		fmt.Fprintf(out, " { return %s };", s.zero)
	case siteLeave:
		fmt.Fprintf(out, " if %s.Is(%d) { break }; ", activeName, s.first)
	}
}

// choose writes the choice among the mutants of a site.
func (s *site) choose(out *bytes.Buffer, use func(alt)) {
	if len(s.alts) == 1 {
		fmt.Fprintf(out, "if %s.Is(%d) { ", activeName, s.first)
		use(s.alts[0])
		out.WriteString(" }")
		return
	}
	fmt.Fprintf(out, "switch %s.In(%d, %d) { ", activeName, s.first, s.first+len(s.alts)-1)
	for i, a := range s.alts {
		fmt.Fprintf(out, "case %d: ", s.first+i)
		use(a)
		out.WriteString("; ")
	}
	out.WriteString("}")
}
