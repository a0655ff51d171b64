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

	"smcr/internal/testing/testkind"
)

const module = "smcr"

// terms is the package with the terms of SMC. It imports nothing of the module.
const terms = "smc"

// edges says which packages of the module the code (not the tests) of each package may
// import. Packages have their paths within the module. A path that ends in /... means
// everything below this path, but not the path itself. The first pattern that matches a
// package applies. The order is that of the layers, lowest first: each package imports
// only packages of earlier lines.
var edges = []struct {
	pkg string
	may []string
}{
	// Leaves. Every package may import smc.
	{terms, nil},
	{"pnet", nil},
	{"quota", nil},
	{"stats", nil},
	{"guard", nil},
	{"rdmaverbs", nil},
	{"userstack/wire", nil},
	{"internal/atonce", nil},
	{"internal/cgroup", nil},
	{"internal/inetdiag", nil},
	{"internal/ours", nil},
	{"internal/place", nil},
	{"internal/plain", nil},
	{"internal/printable", nil},
	{"internal/reasons", nil},
	{"internal/retry", nil},
	{"internal/typo", nil},

	// Packages that import only leaves.
	{"rdmaverbs/...", []string{"rdmaverbs", "rdmaverbs/...", "guard", "internal/retry"}},
	{"nl", []string{"pnet", "quota", "stats", "guard", "internal/place", "internal/printable", "internal/retry"}},
	{"nl/nltest", []string{"nl", "pnet", "stats"}},
	{"userstack/internal/bounded", []string{"internal/retry"}},
	{"userstack/internal/takeover", []string{"userstack/internal/bounded", "stats", "internal/retry"}},
	{"userstack/relay", []string{"guard", "internal/atonce", "internal/retry"}},
	{"userstack/internal/rounds", nil},
	{"userstack/engine", []string{"userstack/internal/rounds", "guard", "internal/atonce"}},
	{"userstack/tcpopt", []string{"quota", "userstack/wire", "internal/cgroup"}},
	{"userstack/divert", []string{"smc", "guard", "quota", "internal/atonce", "internal/inetdiag", "internal/retry"}},
	{"userstack/attach", []string{"userstack/divert", "guard", "quota", "internal/cgroup", "internal/place", "internal/retry"}},
	{"userstack/conn", []string{"userstack/wire"}},
	{"userstack/linkgroup", []string{"userstack/wire", "userstack/conn", "rdmaverbs"}},
	{"userstack/rendezvous", []string{"userstack/wire", "quota"}},
	{"userstack/simfabric", []string{"userstack/wire", "userstack/conn", "userstack/linkgroup", "userstack/engine", "userstack/internal/rounds", "rdmaverbs"}},
	{"userstack/network", []string{"userstack/tcpopt", "nl", "guard", "quota", "internal/atonce", "internal/inetdiag", "internal/retry"}},
	{"userstack/devices", []string{"userstack/network", "userstack/linkgroup", "smc", "pnet", "guard", "rdmaverbs"}},
	{"userstack/internal/mempool", []string{"rdmaverbs"}},
	{"userstack/internal/inside", []string{"userstack/network", "userstack/engine", "userstack/linkgroup", "guard", "nl", "quota", "smc", "stats"}},
	{"userstack/internal/pathmemory", []string{"quota"}},
	{"userstack/internal/tracing", []string{"nl", "rdmaverbs", "smc"}},
	{"userstack/internal/bedtest", []string{"userstack/network", "userstack/simfabric", "userstack/linkgroup", "userstack/internal/inside", "smc"}},
	{"userstack/internal/tcptable", []string{"userstack/internal/inside", "nl", "smc", "guard", "quota"}},

	// The stack and what serves it.
	{"userstack/driver", []string{"userstack/wire", "userstack/conn", "userstack/linkgroup", "userstack/rendezvous", "userstack/engine", "userstack/relay", "userstack/network", "userstack/devices", "userstack/internal/inside", "userstack/internal/mempool", "userstack/internal/tracing", "nl", "stats", "guard", "quota", "rdmaverbs", "smc", "internal/retry"}},
	{"userstack", []string{
		"userstack/wire", "userstack/conn", "userstack/linkgroup", "userstack/rendezvous", "userstack/tcpopt", "userstack/engine", "userstack/relay", "userstack/network", "userstack/devices", "userstack/driver", "userstack/internal/bounded", "userstack/internal/inside", "userstack/internal/pathmemory", "userstack/internal/tcptable", "userstack/internal/tracing",
		"nl", "pnet", "quota", "stats", "guard", "rdmaverbs", "rdmaverbs/...", "internal/place", "internal/retry",
	}},
	{"userstack/service", []string{"userstack", "userstack/network", "userstack/internal/inside", "userstack/internal/bounded", "userstack/internal/takeover", "userstack/attach", "userstack/divert", "userstack/relay", "userstack/engine", "nl", "quota", "smc", "stats", "guard", "rdmaverbs", "rdmaverbs/...", "internal/cgroup", "internal/place", "internal/retry"}},
	{"userstack/...", []string{"userstack", "userstack/...", "nl", "pnet", "stats", "rdmaverbs", "rdmaverbs/..."}},

	// What only tests and benches use. The tests of all layers use the first three.
	{"internal/testing/testkind", nil},
	{"internal/testing/netnstest", []string{"internal/testing/testkind", "internal/place", "userstack/wire"}},
	{"internal/testing/socktest", []string{"internal/testing/testkind"}},
	{"internal/testing/sharetest", nil},
	{"internal/testing/...", []string{"internal/...", "userstack", "userstack/...", "nl", "nl/...", "stats", "pnet", "rdmaverbs", "rdmaverbs/..."}},

	// The program may import everything above, but nothing of internal/testing.
	{"internal/httpserver", []string{"quota", "guard", "internal/inetdiag"}},
	{"internal/oplog", []string{"internal/plain", "quota"}},
	{"internal/serve", []string{"internal/...", "userstack", "userstack/...", "nl", "stats", "pnet", "guard", "rdmaverbs", "rdmaverbs/..."}},
	{"internal/...", []string{"internal/...", "userstack", "userstack/...", "nl", "stats", "pnet", "guard", "rdmaverbs", "rdmaverbs/..."}},
	{"examples/...", []string{"internal/testing/netnstest", "userstack", "userstack/wire", "nl", "stats", "pnet"}},
	{"cmd/...", []string{"internal/...", "userstack", "userstack/...", "nl", "stats", "pnet", "rdmaverbs", "rdmaverbs/..."}},
}

// roof is the folder of what only tests and benches use: hosts, kernels, programs,
// whole suites. Nothing that ships imports anything from it.
const roof = "internal/testing/..."

// testKits are the packages for tests that are not under the roof: suites for those who
// implement a public interface, which are beside the interface, and packages that need
// internal packages of userstack.
var testKits = []string{"nl/nltest", "rdmaverbs/verbstest", "userstack/simfabric", "userstack/internal/bedtest", "userstack/stacktest"}

// testOnly reports whether a package is for tests and benches alone.
func testOnly(p string) bool { return match(roof, p) || matchAny(testKits, p) }

// confined says which packages may import a module from outside.
var confined = map[string][]string{
	"github.com/spf13/cobra/doc":     {"internal/gendocs"},
	"github.com/spf13":               {"cmd/...", "internal/..."},
	"github.com/cilium/ebpf":         {"userstack/tcpopt", "userstack/divert", "internal/testing/netnstest", "internal/testing/soak/gauge"},
	"github.com/vishvananda/netlink": {"rdmaverbs/softroce", "userstack/network", "userstack/divert", "userstack/service", "internal/..."},
	"github.com/KimMachineGun":       {"userstack"},
	"charm.land":                     {"internal/top"},
	"github.com/charmbracelet":       {"internal/top"},
	"github.com/prometheus":          {"internal/metrics"},
	"github.com/gopacket":            {"internal/trace/capture"},
	"github.com/google/go-cmp":       testPackages,
	"pgregory.net/rapid":             testPackages,
	"golang.org/x/net/nettest":       testPackages,
	"testing":                        testPackages,
	"github.com/rogpeppe":            nil,
	"net/http/pprof":                 nil,
}

// testPackages are the patterns of the packages for which [testOnly] holds.
var testPackages = append([]string{roof}, testKits...)

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

// readModule runs go list once for all tests. The flag -e keeps packages that do not
// compile: the compiler reports them.
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
			if to, ok := rel(imp); ok && to != terms && !matchAny(edges[i].may, to) {
				t.Errorf("%s must not import %s: it may import %v", from, to, edges[i].may)
			}
		}
		// Tests may import the test kits and packages below their own, but the tests of a
		// public package must not import the program.
		if !strings.HasPrefix(from, "internal/") && !strings.HasPrefix(from, "cmd/") && !strings.HasPrefix(from, "examples/") {
			for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
				to, ok := rel(imp)
				if ok && (strings.HasPrefix(to, "cmd/") || strings.HasPrefix(to, "internal/") && !testOnly(to) && !slices.Contains(leaves, to)) {
					t.Errorf("%s, a public package, must not import %s", from, to)
				}
			}
		}
	}
}

// leaves are the internal packages that public packages may import: the one that knows where
// the stack of a network namespace is, the one that makes text of others printable, the
// ones that repeat calls and make quick ones, and the codec of sock_diag.
var leaves = []string{"internal/atonce", "internal/cgroup", "internal/inetdiag", "internal/place", "internal/plain", "internal/printable", "internal/retry"}

// TestRoof checks that what ships imports nothing that is for tests and benches
// alone. The examples do not ship.
func TestRoof(t *testing.T) {
	for _, p := range list(t) {
		from, _ := rel(p.ImportPath)
		if testOnly(from) || match("examples/...", from) {
			continue
		}
		for _, imp := range p.Imports {
			if to, ok := rel(imp); ok && testOnly(to) {
				t.Errorf("%s must not import %s, which is for tests and benches alone", from, to)
			}
		}
	}
}

// TestRulesApply checks that each rule applies to a package that exists.
func TestRulesApply(t *testing.T) {
	var paths []string
	for _, p := range list(t) {
		path, _ := rel(p.ImportPath)
		paths = append(paths, path)
	}
	exists := func(pattern, where string) {
		if !slices.ContainsFunc(paths, func(p string) bool { return match(pattern, p) }) {
			t.Errorf("%s: no package is %s", where, pattern)
		}
	}
	for _, e := range edges {
		exists(e.pkg, "edges")
		for _, to := range e.may {
			exists(to, "edges of "+e.pkg)
		}
	}
	for imp, may := range confined {
		for _, from := range may {
			exists(from, "confined, "+imp)
		}
	}
}

func TestConfinedImports(t *testing.T) {
	for _, p := range list(t) {
		from, _ := rel(p.ImportPath)
		for _, imp := range p.Imports {
			// The rule with the longest matching path applies.
			rule := ""
			for path := range confined {
				if (imp == path || strings.HasPrefix(imp, path+"/")) && len(path) > len(rule) {
					rule = path
				}
			}
			if rule == "testing" && imp != "testing" {
				continue // testing/… has no rules
			}
			if rule != "" && !matchAny(confined[rule], from) {
				t.Errorf("%s must not import %s: only %v may, and tests", from, imp, confined[rule])
			}
		}
	}
}

// TestShippedProgram checks that neither package testing nor anything that is for
// tests and benches alone is linked into the program.
func TestShippedProgram(t *testing.T) {
	testkind.System(t)
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
			if p, ok := rel(dep); dep == "testing" || ok && testOnly(p) {
				t.Errorf("%s links %s", name, dep)
			}
		}
	}
}

// TestLowestFirst checks the table itself: a package may not import one of a later line,
// except within a tree that has a pattern with /... .
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
