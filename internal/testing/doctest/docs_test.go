// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
)

// root is the folder of the module.
const root = "../../.."

// elsewhere are the programs whose commands in documents do not run here, and what runs them.
// A command that begins with another program needs a prompt, which makes it run here.
var elsewhere = map[string]string{
	"apt-get":         "scripts/setup-test-tools installs packages",
	"systemctl":       "TestSystemd and TestSystemdTakeover of internal/testing/e2e",
	"systemd-analyze": "TestUnit of internal/serve",
	"journalctl":      "needs systemd's journal; it changes nothing",
	"smcr service":    "TestServices of internal/testing/packages",
	"make":            "whoever works on smcr, and continuous integration",

	"smcr attach --container": "TestAttachContainer, TestAttachPodman and TestAttachDocker of internal/testing/e2e",
	"smcr attach --pod":       "TestAttachContainer",
	"smcr detach --container": "TestAttachContainer",
	"smcr why container:web":  "TestAttachContainer",
}

// documentsElsewhere are documents whose commands do not run here, and what runs them.
var documentsElsewhere = map[string]string{"docs/containers.md": "TestContainersDocument of internal/testing/e2e"}

// runsElsewhere reports whether a command begins with words of elsewhere.
func runsElsewhere(text string) bool {
	for words := range elsewhere {
		if text == words || strings.HasPrefix(text, words+" ") {
			return true
		}
	}
	return false
}

// TestDocuments runs the commands of each document on two hosts.
func TestDocuments(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	netnstest.Require(t, "nsenter", "unshare", "setpriv", "ss", "bash", "nginx", "curl", "iperf3", "redis-server", "tshark", "tcpdump")
	programs := t.TempDir()
	if err := built.Programs(t.Context(), programs, "smcr/cmd/smcr"); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range documents(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		commands := Parse(string(content))
		if len(commands) == 0 {
			continue
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		if documentsElsewhere[name] != "" {
			continue
		}
		ran += len(commands)
		t.Run(name, func(t *testing.T) {
			runDocument(t, name, programs, commands)
		})
	}
	if ran < 20 {
		t.Errorf("only %d commands were found in the documents", ran)
	}
}

func documents(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"README.md", "docs/*.md", "deploy/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		list = append(list, files...)
	}
	return list
}

func runDocument(t *testing.T, name, programs string, commands []Command) {
	pair := netnstest.New(t, netnstest.Options{})
	names := filepath.Join(t.TempDir(), "hosts")
	text := fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s hostA\n%s hostB\n", pair.A.Addr(), pair.B.Addr())
	if err := os.WriteFile(names, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	hosts := map[string]*host{
		"hostA": newHost(t, pair.A, "hostA", names, programs),
		"hostB": newHost(t, pair.B, "hostB", names, programs),
	}
	for _, c := range commands {
		if runsElsewhere(c.Text) {
			continue
		}
		if err := hosts[c.Host].run(c); err != nil {
			// The next commands need what this one has done.
			t.Fatalf("%s:%d: %s: %s\n%v", name, c.Line, c.Host, c.Text, err)
		}
	}
}

// TestPrompts: a command of smcr in a document has a prompt, so that TestDocuments runs it.
func TestPrompts(t *testing.T) {
	for _, file := range documents(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range Loose(string(content), "smcr", "smcss", "smcd", "smc_run", "smc_pnet", "smc_chk", "smc_rnics", "smc_dbg") {
			t.Errorf("%s: %q has no prompt (hostA#), so nobody runs it", file, line)
		}
	}
}

// TestProcesses: a command that finds processes by their names finds those of its host only. Others run beside it, of other
// hosts, tests and users.
func TestProcesses(t *testing.T) {
	netnstest.Require(t, "nsenter", "unshare", "setpriv", "ss", "bash", "pkill", "pgrep", "sleep")
	pair := netnstest.New(t, netnstest.Options{})
	names, programs := filepath.Join(t.TempDir(), "hosts"), t.TempDir()
	for _, file := range []string{names, filepath.Join(programs, "smcr")} {
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	here := newHost(t, pair.A, "hostA", names, programs)
	for name, outside := range map[string]*netnstest.Process{
		"another host":  pair.B.Go(t, "sleep", "3217"),
		"the same host": pair.A.Go(t, "sleep", "3217"),
	} {
		for _, c := range []Command{
			{Text: "sleep 3217", Root: true, Background: true},
			{Text: "pgrep -fxc 'sleep 3217'", Root: true, Output: []string{"1"}},
			{Text: "pkill -fx 'sleep 3217'", Root: true},
			{Text: "wait; pgrep -fx 'sleep 3217'", Root: true, Exit: 1},
			{Text: "pkill -fx 'sleep 3217'", Root: true, Exit: 1},
			{Text: "kill -0 " + fmt.Sprint(outside.Pid()), Root: true, Exit: 1},
		} {
			if err := here.run(c); err != nil {
				t.Errorf("%s: %s: %v", name, c.Text, err)
			}
		}
		select {
		case <-outside.Done():
			t.Errorf("the process of %s ended", name)
		default:
		}
	}
}
