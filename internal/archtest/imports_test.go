// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "smcr"

// edges says for each package, by path within the module, which packages of
// the module its code (not its tests) may import. A path that ends in /...
// stands for everything below, not for the path itself; the first pattern that
// matches a package counts. The order is that of the layers, lowest first:
// each package imports only what stands above it in the table.
var edges = []struct {
	pkg string
	may []string
}{
	// Leaves.
	{"pnet", nil},
	{"quota", nil},
	{"stats", nil},
	{"guard", nil},
	{"rdmaverbs", nil},
	{"userstack/wire", nil},
	{"internal/place", nil},
	{"internal/netnstest", []string{"internal/place"}},

	// Each stands on leaves alone.
	{"stats/prom", []string{"stats"}},
	{"rdmaverbs/...", []string{"rdmaverbs", "rdmaverbs/..."}},
	{"nl", []string{"pnet", "quota", "stats", "guard", "internal/place"}},
	{"nl/...", []string{"nl", "pnet", "stats"}},
	{"userstack/internal/bounded", nil},
	{"userstack/internal/socktest", nil},
	{"userstack/internal/rights", nil},
	{"userstack/internal/sockopt", []string{"userstack/internal/rights"}},
	{"userstack/internal/epollset", nil},
	{"userstack/internal/connector", []string{"userstack/internal/bounded", "userstack/internal/epollset"}},
	{"userstack/broker", []string{"userstack/internal/bounded", "userstack/internal/rights", "guard", "quota", "internal/place"}},
	{"userstack/relay", []string{"userstack/internal/bounded", "guard"}},
	{"userstack/internal/rounds", nil},
	{"userstack/engine", []string{"userstack/internal/bounded", "userstack/internal/rounds"}},
	{"userstack/tcpopt", []string{"userstack/wire"}},
	{"userstack/linkgroup", []string{"userstack/wire", "rdmaverbs"}},
	{"userstack/rendezvous", []string{"userstack/wire"}},
	{"userstack/simfabric", []string{"userstack/wire", "userstack/linkgroup", "userstack/engine", "userstack/internal/rounds", "rdmaverbs"}},
	{"userstack/internal/inside", []string{"guard", "userstack/wire"}},

	// The stack and what serves it.
	{"userstack", []string{
		"userstack/wire", "userstack/linkgroup", "userstack/rendezvous", "userstack/tcpopt", "userstack/engine", "userstack/relay", "userstack/internal/inside",
		"nl", "pnet", "stats", "guard", "rdmaverbs", "rdmaverbs/...", "internal/place",
	}},
	{"userstack/service", []string{"userstack", "userstack/internal/inside", "userstack/internal/bounded", "userstack/internal/rights", "userstack/internal/sockopt", "userstack/internal/connector", "userstack/internal/epollset", "userstack/broker", "userstack/relay", "userstack/engine", "nl", "pnet", "quota", "stats", "guard", "rdmaverbs", "rdmaverbs/...", "internal/place"}},
	{"userstack/launch", []string{"userstack/internal/rights", "userstack/internal/sockopt", "userstack/internal/connector", "userstack/broker", "userstack/relay", "userstack/wire", "guard", "internal/place"}},
	{"userstack/...", []string{"userstack", "userstack/...", "nl", "pnet", "stats", "rdmaverbs", "rdmaverbs/..."}},

	// The program: free to use everything below it.
	{"internal/...", []string{"internal/...", "userstack", "userstack/...", "nl", "nl/...", "stats", "stats/...", "pnet", "rdmaverbs", "rdmaverbs/..."}},
	{"examples/...", []string{"internal/netnstest", "userstack", "nl", "stats", "pnet"}},
	{"cmd/...", []string{"internal/...", "userstack", "userstack/...", "nl", "stats", "pnet", "rdmaverbs", "rdmaverbs/..."}},
}

// confined says where alone a module from outside may be imported.
var confined = map[string][]string{
	"github.com/prometheus":          {"stats/prom"},
	"github.com/spf13/cobra/doc":     {"internal/gendocs"},
	"github.com/spf13":               {"cmd/...", "internal/..."},
	"github.com/cilium/ebpf":         {"userstack/tcpopt", "userstack/tcpopt/...", "internal/netnstest"},
	"github.com/vishvananda/netlink": {"rdmaverbs/softroce", "rdmaverbs/ibverbs", "userstack", "userstack/service", "internal/..."},
	"github.com/google/go-cmp":       suites,
	"pgregory.net/rapid":             suites,
	"golang.org/x/net/nettest":       suites,
	"testing":                        suites,
	"github.com/rogpeppe":            nil,
	"net/http/pprof":                 nil,
}

// suites are the packages that exist for tests though they are none.
var suites = []string{"internal/netnstest", "internal/guest", "internal/cmdutil/cmdtest", "internal/verbs/codectest", "nl/nltestsmc", "rdmaverbs/verbstest", "userstack/simfabric", "userstack/internal/socktest"}

type pkg struct {
	ImportPath, Dir                                    string
	GoFiles, TestGoFiles, XTestGoFiles, IgnoredGoFiles []string
	Imports, TestImports, XTestImports                 []string
}

// rel returns the path within the module and whether p belongs to it.
func rel(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// list returns every package of the module.
func list(t *testing.T) []pkg {
	t.Helper()
	pkgs, err := readModule()
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

// readModule runs go list once for all tests. -e: a package that does not
// compile is the compiler's business, not ours.
var readModule = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles,Imports,TestImports,XTestImports", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if _, ok := rel(p.ImportPath); ok {
			pkgs = append(pkgs, p)
		}
	}
	if len(pkgs) < 5 {
		return nil, fmt.Errorf("go list knows only %d packages of %s", len(pkgs), module)
	}
	return pkgs, nil
})

// match reports whether the path is the pattern, or lies under pattern/...
func match(pattern, p string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(p, dir+"/")
	}
	return pattern == p
}

func matchAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return match(pattern, p) })
}

func TestImportEdges(t *testing.T) {
	for _, p := range list(t) {
		from, _ := rel(p.ImportPath)
		i := slices.IndexFunc(edges, func(e struct {
			pkg string
			may []string
		}) bool {
			return match(e.pkg, from)
		})
		if i < 0 {
			t.Errorf("%s has no place in the architecture: add it to the table edges", from)
			continue
		}
		for _, imp := range p.Imports {
			if to, ok := rel(imp); ok && !matchAny(edges[i].may, to) {
				t.Errorf("%s must not import %s: it may import %v", from, to, edges[i].may)
			}
		}
		// Tests may use the test kits and what stands below their package, but
		// a public package's tests must not lean on the program above it.
		if !strings.HasPrefix(from, "internal/") && !strings.HasPrefix(from, "cmd/") && !strings.HasPrefix(from, "examples/") {
			for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
				to, ok := rel(imp)
				if ok && (strings.HasPrefix(to, "cmd/") || strings.HasPrefix(to, "internal/") && !testKit(to) && to != leaf) {
					t.Errorf("%s, a public package, must not import %s", from, to)
				}
			}
		}
	}
}

// leaf is the internal package that is below the public ones: where the stack of a
// network namespace is, and what names one.
const leaf = "internal/place"

// testKit reports whether an internal package is made for tests.
func testKit(p string) bool {
	return p == "internal/netnstest" || p == "internal/cmdutil/cmdtest" || match("internal/guest", p) || match("internal/guest/...", p)
}

func TestConfinedImports(t *testing.T) {
	for _, p := range list(t) {
		from, _ := rel(p.ImportPath)
		for _, imp := range p.Imports {
			// The longest matching path is the rule.
			rule := ""
			for path := range confined {
				if (imp == path || strings.HasPrefix(imp, path+"/")) && len(path) > len(rule) {
					rule = path
				}
			}
			if rule == "testing" && imp != "testing" {
				continue // testing/… has rules of its own: none
			}
			if rule != "" && !matchAny(confined[rule], from) {
				t.Errorf("%s must not import %s: only %v may, and tests", from, imp, confined[rule])
			}
		}
	}
}

// TestShippedProgram checks that the test kits and package testing are not
// linked into the program.
func TestShippedProgram(t *testing.T) {
	dirs, err := filepath.Glob("../../cmd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		name := path.Join(module, "cmd", filepath.Base(dir))
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", name).CombinedOutput()
		if err != nil {
			t.Fatalf("go list -deps %s: %v\n%s", name, err, out)
		}
		for dep := range strings.Lines(string(out)) {
			dep = strings.TrimSpace(dep)
			if p, ok := rel(dep); dep == "testing" || ok && testKit(p) {
				t.Errorf("%s links %s", name, dep)
			}
		}
	}
}

// TestLowestFirst checks the table itself: no package may import one of a
// later line, except within a tree that a pattern with /... describes.
func TestLowestFirst(t *testing.T) {
	at := func(p string) int {
		return slices.IndexFunc(edges, func(e struct {
			pkg string
			may []string
		}) bool {
			return e.pkg == p
		})
	}
	for i, e := range edges {
		for _, to := range e.may {
			if strings.HasSuffix(e.pkg, "/...") || strings.HasSuffix(to, "/...") {
				continue
			}
			if j := at(to); j < 0 || j >= i {
				t.Errorf("%s (line %d) may import %s (line %d)", e.pkg, i, to, j)
			}
		}
	}
}
