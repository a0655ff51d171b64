// SPDX-License-Identifier: Apache-2.0

package reasons

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"smcr/smc"
)

// TestCodes checks that each code of package smc has an entry with the text of package smc,
// and that there is no other entry with a code.
func TestCodes(t *testing.T) {
	n := 0
	for _, d := range declared(t, "../../smc") {
		if !strings.HasPrefix(d.name, "Diag") || d.text != "" {
			continue
		}
		n++
		r, ok := Of(smc.Diagnosis(d.value))
		if !ok {
			t.Errorf("smc.%s has no entry", d.name)
		} else if r.Text != r.Code.Text() {
			t.Errorf("%s: text %q, in package smc %q", r.Name, r.Text, r.Code.Text())
		}
	}
	if n != len(codes) || n < 40 {
		t.Errorf("%d codes in package smc, %d entries", n, len(codes))
	}
}

// TestLabels checks that each code has a name in metrics that no other has and that is made
// of words, and that it leads to the reason.
func TestLabels(t *testing.T) {
	codeOf := map[string]smc.Diagnosis{}
	for _, r := range codes {
		label := Label(r.Code)
		if !regexp.MustCompile("^[a-z0-9]+(_[a-z0-9]+)*$").MatchString(label) || label == "other" {
			t.Errorf("%s: label %q", r.Name, label)
		}
		if codeOf[label] != 0 {
			t.Errorf("%v and %v have the label %s", codeOf[label], r.Code, label)
		}
		codeOf[label] = r.Code
		if found := Find(label); len(found) != 1 || found[0].Code != r.Code {
			t.Errorf("%s leads to %v, want %v", label, found, r.Code)
		}
	}
	if len(labels) != len(codeOf) {
		t.Errorf("%d labels for %d codes", len(labels), len(codeOf))
	}
}

// TestLinux checks that each code of Linux 6.12 has an entry.
func TestLinux(t *testing.T) {
	b, err := os.ReadFile("testdata/linux-6.12.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "" || word == "#" {
			continue
		}
		n++
		code, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := Of(smc.Diagnosis(code)); !ok {
			t.Errorf("%s has no entry", strings.TrimSpace(line))
		}
	}
	if n < 35 {
		t.Errorf("%d codes", n)
	}
}

// sources are the packages that find reasons without a number: texts of errors, and the
// constants that begin with "Reason" or "reason". Errors of the packages below them, such as
// userstack/linkgroup, get a number (userstack.declineFor).
var sources = []string{
	"userstack", "userstack/devices",
	"userstack/network", "userstack/service", "userstack/tcpopt", "internal/kernelsmc", "internal/program", "internal/run", "internal/serve", "internal/waiter",
}

// notReasons are errors after which no connection becomes TCP, or whose text never leaves
// the stack, with the reason.
var notReasons = map[string]string{
	"userstack.ErrUrgentMark":             "an open connection",
	"userstack.ErrNotReserved":            "an open connection",
	"userstack.ErrControlTaken":           "start of a stack",
	"userstack.errLater":                  "a goroutine goes on with the rendezvous",
	"userstack/service.ErrRunning":        "start of a stack",
	"userstack/service.ErrCannotTakeOver": "start of a stack", "userstack/service.ErrPredecessorEnded": "start of a stack",
	"userstack/service.errOld":         "start of a stack",
	"userstack/tcpopt.ErrNotPermitted": "connections get userstack.ErrNoOption",
	"userstack/tcpopt.ErrClosed":       "connections get userstack.ErrStackClosed",
	"internal/kernelsmc.errSilent":     "wrapped in ErrNotBegun",
	"internal/waiter.errSilent":        "wrapped in ErrNotBegun",
	"internal/serve.ErrStart":          "wrapped around the reason",
	"internal/serve.errCgroup":         "start of a stack", "internal/serve.errHidden": "a line of the log",
	"internal/serve.errOver": "a change of the configuration", "internal/serve.errEnd": "end of a stack",
	"internal/serve.ErrReload": "reload of a stack", "internal/serve.errNoManager": "reload of a stack", "internal/serve.errNotServe": "reload of a stack",
}

// TestComplete checks that each reason without a number that the stack, smcr run or the
// commands declare has an entry.
func TestComplete(t *testing.T) {
	n := 0
	used := map[string]bool{}
	for _, pkg := range sources {
		for _, d := range declared(t, "../../"+pkg) {
			if d.text == "" {
				continue
			}
			name := pkg + "." + d.name
			n++
			if notReasons[name] != "" {
				used[name] = true
				continue
			}
			if _, ok := In(d.text); !ok {
				t.Errorf("%s (%q) has no entry: add one, or a line in notReasons", name, d.text)
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d reasons found", n)
	}
	for name := range notReasons {
		if !used[name] {
			t.Errorf("%s is in notReasons, but not in the source", name)
		}
	}
}

// TestUsed checks that each text of an entry without a number is in the source of a program.
func TestUsed(t *testing.T) {
	var all strings.Builder
	err := filepath.WalkDir("../..", func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/reasons/") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	source := strings.ReplaceAll(all.String(), "%q", `"`)
	for _, r := range found {
		for _, text := range append([]string{r.Text}, r.Also...) {
			if !strings.Contains(source, text) && !notOurs[text] {
				t.Errorf("%s: %q is printed by no program", r.Name, text)
			}
		}
	}
}

// notOurs are texts of the Go library and of the C library.
var notOurs = map[string]bool{"connection refused": true, "use of closed network connection": true}

// A declaration is a constant with a number or a text, or a variable with the text of an
// error.
type declaration struct {
	name  string
	text  string
	value uint64
}

// declared returns the declarations of a package that may be reasons: errors, constants of
// reasons, and codes. Tests are left out.
func declared(t *testing.T, dir string) (list []declaration) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range tree.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
					for i, name := range v.Names {
						list = appendDeclared(list, g.Tok, name.Name, v.Values[i])
					}
				}
			}
		}
	}
	return list
}

func appendDeclared(list []declaration, tok token.Token, name string, value ast.Expr) []declaration {
	switch {
	case tok == token.CONST:
		lit, ok := value.(*ast.BasicLit)
		if !ok || !strings.HasPrefix(strings.ToLower(name), "reason") && !strings.HasPrefix(name, "Diag") {
			return list
		}
		if n, err := strconv.ParseUint(lit.Value, 0, 64); err == nil {
			return append(list, declaration{name: name, value: n})
		}
		if s, err := strconv.Unquote(lit.Value); err == nil {
			return append(list, declaration{name: name, text: s})
		}
	case strings.HasPrefix(strings.ToLower(name), "err"):
		// The last text in the expression: the one that this error adds.
		text := ""
		ast.Inspect(value, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil && text == "" {
					text = s
				}
			}
			return true
		})
		if text != "" {
			return append(list, declaration{name: name, text: text})
		}
	}
	return list
}
