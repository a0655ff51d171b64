// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The kinds of tests are those of package testkind. TestKinds finds each test that uses what a
// pure test has not, by itself or by functions of the test files of its package: sockets and
// processes, or the real clock outside a bubble of testing/synctest. Such a test says that it is a
// system test, by testkind or by a helper that does.
//
// The test reads the source without types, so functions and methods of one name are taken for one.
// It does not see what the code under test does by itself: a test that is not marked is treated as
// a pure one, and its failure is forgiven by nobody.

// machine are the functions and types, by import path, that use sockets and processes.
var machine = map[string][]string{
	"net": {
		"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialUnix", "Dialer", "Listen", "ListenTCP", "ListenUDP", "ListenUnix", "ListenUnixgram",
		"ListenPacket", "ListenConfig", "FileConn", "FileListener", "FilePacketConn",
	},
	"net/http/httptest":     {"NewServer", "NewTLSServer", "NewUnstartedServer"},
	"os":                    {"StartProcess"},
	"os/exec":               {"Command", "CommandContext"},
	"syscall":               {"Socket", "Socketpair", "ForkExec"},
	"golang.org/x/sys/unix": {"Socket", "Socketpair"},
}

// clock are the functions that wait for time to pass.
var clock = map[string][]string{
	"time":                                {"Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"},
	module + "/internal/testing/testkind": {"Eventually", "Poll"},
}

// bubbles are the functions that run a test in a bubble with a clock of its own.
var bubbles = map[string][]string{
	"testing/synctest":                     {"Test"},
	module + "/userstack/internal/bedtest": {"Bubble"},
}

// marks are the functions that say that a test is a system test.
var marks = map[string][]string{
	module + "/internal/testing/testkind":  {"System", "Timing"},
	module + "/internal/testing/netnstest": {"New", "NewLAN", "Require", "RequireTools"},
	module + "/internal/testing/guest":     {"New", "Pair", "SkipShort", "Check"},
	module + "/internal/testing/socktest":  {"TCPPair"},
}

// A testFunction is what the functions of one name use in the test files of a package.
type testFunction struct {
	calls                        map[string]bool // names
	machine, clock, bubble, mark bool
	isTest                       bool
}

// TestKinds checks the rule above.
func TestKinds(t *testing.T) {
	for dir, files := range testFiles(t) {
		functions := map[string]*testFunction{}
		for _, f := range files {
			readTestFile(f.File, functions)
		}
		for _, name := range slices.Sorted(maps.Keys(functions)) {
			if f := functions[name]; f.isTest {
				sum := reached(functions, name)
				switch {
				case sum.mark:
				case sum.machine:
					t.Errorf("%s: %s uses sockets or processes: call testkind.System(t)", dir, name)
				case sum.clock && !sum.bubble:
					t.Errorf("%s: %s waits for the real clock: use testing/synctest, or call testkind.System(t)", dir, name)
				}
			}
		}
	}
}

// A testFile is a file with its positions.
type testFile struct {
	*ast.File
	set *token.FileSet
}

// testFiles returns the test files of each folder with packages of the module.
func testFiles(t *testing.T) map[string][]testFile {
	t.Helper()
	all := map[string][]testFile{}
	for _, p := range list(t) {
		names, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		dir, _ := rel(p.ImportPath)
		for _, name := range names {
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			all[dir] = append(all[dir], testFile{f, set})
		}
	}
	return all
}

// readTestFile adds the functions of a file.
func readTestFile(file *ast.File, to map[string]*testFunction) {
	imports := map[string]string{} // import paths by name in the file
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = path
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		name := f.Name.Name
		x := to[name]
		if x == nil {
			x = &testFunction{calls: map[string]bool{}}
			to[name] = x
		}
		x.isTest = x.isTest || f.Recv == nil && strings.HasPrefix(name, "Test") && name != "TestMain" && len(f.Type.Params.List) == 1
		var visit func(n ast.Node) bool
		visit = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				of, ok := n.X.(*ast.Ident)
				path := ""
				if ok {
					path = imports[of.Name]
				}
				x.machine = x.machine || slices.Contains(machine[path], n.Sel.Name)
				x.clock = x.clock || slices.Contains(clock[path], n.Sel.Name)
				x.bubble = x.bubble || slices.Contains(bubbles[path], n.Sel.Name)
				x.mark = x.mark || slices.Contains(marks[path], n.Sel.Name)
				if path == "" && !(ok && of.Name == "t") {
					x.calls[n.Sel.Name] = true // a method, perhaps
				}
				ast.Inspect(n.X, visit)
				return false
			case *ast.Ident:
				x.calls[n.Name] = true
			}
			return true
		}
		ast.Inspect(f.Body, visit)
	}
}

// reached returns what a function and those that it may call use.
func reached(functions map[string]*testFunction, name string) testFunction {
	return reach(functions, name, map[string]bool{})
}

// reach is reached. It adds the names of the functions to seen.
func reach(functions map[string]*testFunction, name string, seen map[string]bool) (sum testFunction) {
	var visit func(name string)
	visit = func(name string) {
		f := functions[name]
		if f == nil || seen[name] {
			return
		}
		seen[name] = true
		sum.machine = sum.machine || f.machine
		sum.clock = sum.clock || f.clock
		sum.bubble = sum.bubble || f.bubble
		sum.mark = sum.mark || f.mark
		for called := range f.calls {
			if g := functions[called]; g != nil && !g.isTest {
				visit(called)
			}
		}
	}
	visit(name)
	return sum
}

// TestKindsFinds checks the reader itself.
func TestKindsFinds(t *testing.T) {
	const source = `package x
import ("net"; "os/exec"; "testing"; "testing/synctest"; "time"; "smcr/internal/testing/testkind")
func TestPure(t *testing.T) { t.Log(time.Second) }
func TestSocket(t *testing.T) { helper(t) }
func TestMarked(t *testing.T) { testkind.System(t); helper(t) }
func TestProcess(t *testing.T) { exec.Command("true") }
func TestWaits(t *testing.T) { time.Sleep(1) }
func TestBubble(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }
func helper(t *testing.T) { net.Listen("tcp", "") }
`
	f, err := parser.ParseFile(token.NewFileSet(), "x_test.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]*testFunction{}
	readTestFile(f, functions)
	got := ""
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		if functions[name].isTest {
			s := reached(functions, name)
			got += fmt.Sprintln(name, s.machine, s.clock, s.bubble, s.mark)
		}
	}
	const want = `TestBubble false true true false
TestMarked true false false true
TestProcess true false false false
TestPure false false false false
TestSocket true false false false
TestWaits false true false false
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
