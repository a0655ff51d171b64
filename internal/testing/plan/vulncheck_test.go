// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// TestVulncheck runs scripts/vulncheck with databases of the test: one that has nothing
// about a function that the package calls, one that has, one that is broken, and one that
// cannot be reached.
func TestVulncheck(t *testing.T) {
	testkind.System(t)
	if testing.Short() {
		t.Skip("builds govulncheck and runs it several times")
	}
	script, err := filepath.Abs(filepath.Join(root, "scripts/vulncheck"))
	if err != nil {
		t.Fatal(err)
	}
	database := func(modules, symbol string) string {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"index/db.json":      `{"modified":"2026-01-01T00:00:00Z"}`,
			"index/modules.json": modules,
			"ID/GO-2026-0001.json": `{"schema_version":"1.3.1","id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z","details":"of the test",` +
				`"affected":[{"package":{"name":"stdlib","ecosystem":"Go"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],` +
				`"ecosystem_specific":{"imports":[{"path":"unicode","symbols":["` + symbol + `"]}]}}],` +
				`"database_specific":{"url":"https://example.com/"}}`,
		} {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return "file://" + dir
	}
	const modules = `[{"path":"stdlib","vulns":[{"id":"GO-2026-0001","modified":"2026-01-01T00:00:00Z"}]}]`
	for _, tt := range []struct {
		name, env, say string
		status         int
	}{
		{"none", "VULNDB=" + database(modules, "IsTitle"), "No vulnerabilities found", 0},
		{"called", "VULNDB=" + database(modules, "IsPrint"), "GO-2026-0001", 1},
		{"broken", "VULNDB=" + database("[1]", "IsPrint"), "fetching vulnerabilities", 1},
		{"unreachable", "HTTPS_PROXY=http://127.0.0.1:1", "cannot be reached", skipStatus},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), script, "./internal/printable")
			cmd.Env = append(os.Environ(), tt.env)
			cmd.WaitDelay = 10 * time.Second
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != tt.status || !strings.Contains(string(out), tt.say) {
				t.Errorf("exit status %d, want %d: %s", got, tt.status, out)
			}
		})
	}
}
