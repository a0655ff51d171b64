// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Text of others is printed by internal/printable. So package fmt prints to a stream, which is anything
// but the address of a buffer, only what is a constant or a number. What has gone through
// internal/printable in a buffer goes to the stream by io.WriteString, and the tests of hostile text see it.

// mayPrint are the files that print other values to a stream with package fmt, and why.
var mayPrint = map[string]string{
	"internal/cli/main.go":             "cmdutil.Message has cleaned the text, and may have several lines",
	"internal/cli/start.go":            "as main.go",
	"internal/watch/watch.go":          "as main.go, and a time",
	"internal/cmd/apply.go":            "a buffer of internal/printable",
	"internal/cmd/export.go":           "YAML, which package config has cleaned",
	"internal/serve/ondemand.go":       "a pipe between processes of smcr",
	"internal/smctools/smc_dbg.go":     "what another of these programs has printed",
	"internal/verbs/cmd.go":            "JSON of numbers",
	"internal/topology/text.go":        "a buffer, whose texts package topology has cleaned",
	"internal/topology/dot.go":         "a buffer, whose texts package topology has cleaned",
	"internal/printable/printable.go":  "it cleans",
	"internal/run/summary.go":          "counts of output.Count",
	"internal/smctools/smcchk/live.go": "a constant",
}

// verbs are those of a format, with flags, width and precision.
var verbs = regexp.MustCompile(`%[-+# 0]*(?:\*|[0-9]*)(?:\.(?:\*|[0-9]+))?([a-zA-Z%])`)

// loosePrint returns how a call prints what may be text of others to a stream, or "".
func loosePrint(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if id, ok := sel.X.(*ast.Ident); !ok || id.Name != "fmt" {
		return ""
	}
	args := call.Args
	switch sel.Sel.Name {
	case "Fprint", "Fprintf", "Fprintln":
		if to, ok := args[0].(*ast.UnaryExpr); ok && to.Op == token.AND {
			return ""
		}
		args = args[1:]
	case "Print", "Printf", "Println":
	default:
		return ""
	}
	isText := func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.BasicLit:
			return false
		case *ast.BinaryExpr:
			_, x := e.X.(*ast.BasicLit)
			_, y := e.Y.(*ast.BasicLit)
			return !x || !y
		}
		return true
	}
	if !strings.HasSuffix(sel.Sel.Name, "f") {
		if slices.ContainsFunc(args, isText) {
			return "fmt." + sel.Sel.Name
		}
		return ""
	}
	format, ok := args[0].(*ast.BasicLit)
	if !ok {
		return "fmt." + sel.Sel.Name + " with a format that is no constant"
	}
	for _, m := range verbs.FindAllStringSubmatch(format.Value, -1) {
		if strings.Contains("svqT", m[1]) {
			return "fmt." + sel.Sel.Name + " with " + m[0]
		}
	}
	return ""
}

// TestPrints: what the program prints goes through internal/printable.
func TestPrints(t *testing.T) {
	used := map[string]bool{}
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		if testOnly(path) || !match("internal/...", path) && !match("cmd/...", path) || path == "internal/gendocs" || path == "internal/archtest" {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			where := path + "/" + name
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if how := loosePrint(call); how != "" {
						used[where] = true
						if mayPrint[where] == "" {
							t.Errorf("%s:%d: %s: text of others has to go through internal/printable", where, fset.Position(n.Pos()).Line, how)
						}
					}
				}
				return true
			})
		}
	}
	for where := range mayPrint {
		if !used[where] {
			t.Errorf("%s prints nothing of this kind any more", where)
		}
	}
}

// TestFindsPrints: the rule sees what it is meant to see.
func TestFindsPrints(t *testing.T) {
	for src, want := range map[string]bool{
		`fmt.Fprintf(w, "%s\n", name)`:            true,
		`fmt.Fprintf(w, "%d %-*v\n", 1, 2, err)`:  true,
		`fmt.Fprintf(o.Out, format, name)`:        true,
		`fmt.Fprintln(w, name)`:                   true,
		`fmt.Println(name)`:                       true,
		`fmt.Fprintf(w, "%d%% of %5.1f\n", a, b)`: false,
		`fmt.Fprintln(w, "constant")`:             false,
		`fmt.Fprint(w, "constant "+"text")`:       false,
		`fmt.Fprintf(&b, "%s", name)`:             false,
		`printable.Fprintf(w, "%s", name)`:        false,
		`fmt.Sprintf("%s", name)`:                 false,
	} {
		e, err := parser.ParseExpr(src)
		if err != nil {
			t.Fatal(err)
		}
		if got := loosePrint(e.(*ast.CallExpr)) != ""; got != want {
			t.Errorf("%s: found %t", src, got)
		}
	}
}
