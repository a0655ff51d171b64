// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What programs, users and other hosts cause is limited, counted and told as a number. That is so by
// construction: a process that serves others has one log, of internal/oplog, whose handler has limits
// (package quota). So nothing else that ships makes a log, or writes to one that is not given to it.

// logMakers are functions and variables that make a log, or use one that nobody has given.
var logMakers = map[string][]string{
	"log/slog": {
		"NewTextHandler", "NewJSONHandler", "NewMultiHandler", "TextHandler", "JSONHandler",
		"Default", "SetDefault", "SetLogLoggerLevel",
		"Debug", "DebugContext", "Info", "InfoContext", "Warn", "WarnContext", "Error", "ErrorContext", "Log", "LogAttrs", "With",
	},
	"log": nil, // all
}

// mayMakeLogs are the files that may, and why.
var mayMakeLogs = map[string]string{
	"internal/oplog/oplog.go": "it makes the log that has limits",
	"internal/run/log.go":     "messages to the user who has started the program, about that program alone",
}

// mayHandle are the files with a slog.Handler of their own, which has to pass through limits, too.
var mayHandle = map[string]string{
	"quota/handler.go":    "it has the limits",
	"internal/run/log.go": mayMakeLogs["internal/run/log.go"],
}

// logUses returns what a file uses of logMakers, and whether it has a handler of its own.
func logUses(file *ast.File) (uses []string, handles bool) {
	names := map[string]string{} // of packages in this file
	for _, imp := range file.Imports {
		path := strings.Trim(imp.Path.Value, `"`)
		if _, ok := logMakers[path]; ok {
			name := path[strings.LastIndexByte(path, '/')+1:]
			if imp.Name != nil {
				name = imp.Name.Name
			}
			names[name] = path
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			id, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			if path, ok := names[id.Name]; ok && (path == "log" || slices.Contains(logMakers[path], n.Sel.Name)) {
				uses = append(uses, id.Name+"."+n.Sel.Name)
			}
		case *ast.FuncDecl:
			if n.Recv != nil && n.Name.Name == "Handle" && len(n.Type.Params.List) == 2 {
				if sel, ok := n.Type.Params.List[1].Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Record" {
					handles = true
				}
			}
		}
		return true
	})
	return uses, handles
}

// TestLogs: nothing that ships has a log without limits.
func TestLogs(t *testing.T) {
	used := map[string]bool{}
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		if testOnly(path) || match("examples/...", path) {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.IgnoredGoFiles) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			where := path + "/" + name
			uses, handles := logUses(file)
			if len(uses) > 0 {
				used[where] = true
				if mayMakeLogs[where] == "" {
					t.Errorf("%s uses %v: a process that serves others logs to a log of internal/oplog", where, uses)
				}
			}
			if handles && mayHandle[where] == "" {
				t.Errorf("%s has a slog.Handler, which may be without limits", where)
			}
		}
	}
	for where := range mayMakeLogs {
		if !used[where] {
			t.Errorf("%s makes no log any more", where)
		}
	}
}

// TestFindsLogs: the rule sees what it is meant to see, under any name.
func TestFindsLogs(t *testing.T) {
	const src = `package p
import (
	"log"
	"log/slog"
	other "log/slog"
)
func f(l *slog.Logger) {
	log.Printf("found")
	slog.Info("found")
	other.NewTextHandler(nil, nil) // found
	l.Info("not found")
	slog.New(l.Handler()) // not found
}
type h struct{}
func (h) Handle(ctx context.Context, r slog.Record) error { return nil }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	uses, handles := logUses(file)
	if want := []string{"log.Printf", "slog.Info", "other.NewTextHandler"}; !slices.Equal(uses, want) || !handles {
		t.Errorf("%q, %t, want %q", uses, handles, want)
	}
}
