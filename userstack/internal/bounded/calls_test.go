// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// lockCalls are the functions that may wait for the lock of a socket, by package. A socket that a
// user has passed is in a broker.Descriptor or a sharedTCP, whose methods bound these calls.
var lockCalls = map[string][]string{
	"unix":    {"GetsockoptTCPInfo", "SetsockoptInt", "SetsockoptLinger", "Shutdown", "Connect", "SendmsgN", "Sendto", "Recvfrom", "IoctlGetInt"},
	"bounded": {"Sockname", "Peername", "Connect"},
}

// frozen are functions that stop all goroutines while they wait for the lock.
var frozen = map[string][]string{
	"unix":    {"Getsockname", "Getpeername"},
	"syscall": {"Getsockname", "Getpeername"},
	"net":     {"FileConn", "FileListener"},
}

// theirOwn are the files that use them for sockets that no program has: pairs of the stack, what
// the launcher has accepted and not placed, and its socket for the messages of its program.
var theirOwn = map[string]bool{"service/take.go": true, "launch/early.go": true, "launch/sdnotify.go": true}

// callers are the files that may have lockCalls, with where their descriptors come from. Those
// of security.md are the same.
var callers = map[string]string{
	"service/handed.go":           "Control",
	"service/handler.go":          "Control",
	"service/local.go":            "Control, and pairs of the stack",
	"service/local_claim.go":      "Control",
	"service/local_detour.go":     "pairs of the stack",
	"service/local_hold.go":       "pairs of the stack, and Control",
	"service/local_hold_do.go":    "inTurn, and pairs of the stack",
	"service/local_ports.go":      "Control",
	"service/policy.go":           "Control",
	"service/take.go":             "Control",
	"service/tcp.go":              "boundedRaw",
	"internal/bounded/bounded.go": "Control",
	"internal/bounded/reset.go":   "a thread of its own, one of 512",
	"internal/connector":          "Control",
	"tcpopt/gate.go":              "boundedRaw, or Control",
	"tcpopt/tcpopt.go":            "boundedRaw, or Control",
	"tcpopt/command.go":           "Control",
	"tcp_clc.go":                  "boundedRaw",
	"handshake_claim.go":          "boundedRaw",
	"broker/transport.go":         "sessions of launchers: unix sockets of the stack",
	"broker/death.go":             "pairs of the stack",
	"network/watch_linux.go":      "netlink sockets of the stack",
}

// TestCalls: calls that may wait for the lock of a socket are in the files that bound them, and
// nothing, in launchers too, calls what stops all goroutines. See docs/security.md.
func TestCalls(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	for _, dir := range []string{".", "service", "broker", "tcpopt", "network", "internal/programs", "internal/bounded", "internal/connector", "internal/joined", "launch"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != filepath.Join(root, dir):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				pkg, ok := sel.X.(*ast.Ident)
				if !ok {
					return true
				}
				if has(frozen[pkg.Name], sel.Sel.Name) && !theirOwn[name] {
					t.Errorf("%s calls %s.%s: use the functions of this package", name, pkg.Name, sel.Sel.Name)
				}
				if dir != "launch" && has(lockCalls[pkg.Name], sel.Sel.Name) {
					seen[name] = true
					if callers[name] == "" && callers[filepath.Dir(name)] == "" {
						t.Errorf("%s calls %s.%s, which may wait for the lock of a socket", name, pkg.Name, sel.Sel.Name)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) < 10 {
		t.Errorf("found only %v", seen)
	}
}

func has(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}
