// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"smcr/internal/testing/netnstest"
)

// evil is a name that a user may give a program. The first 15 bytes, which the kernel keeps as the
// name of the process, have a control sequence, a line end, HTML, a character that reverses the
// order of a line, and a byte that is not UTF-8. What follows looks like a line of the log, closes
// quotes and elements, and sets the title of a terminal.
const evil = "\x1b[2Je\n<b>\u202e\xff" +
	"\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\r\x1b]0;owned\x07\u009b1m\x7f\u2028" +
	`"'&<` + "`$(id)\u2066script>forged\nlevel=ERROR msg=forged"

// evilDir returns the path of a copy of the program probe, whose name and directories are hostile.
// It has nearly 4096 bytes.
func evilDir(t *testing.T) string {
	t.Helper()
	top, err := os.MkdirTemp("", "smcr-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	dir := top
	for len(dir)+2*len(evil) < 4000 {
		dir = filepath.Join(dir, evil)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(bin("probe"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, evil)
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantClean checks that an output has only printable characters and the ends of its own lines, and
// that a user has added no line.
func wantClean(t *testing.T, what, out string) {
	t.Helper()
	bad := func(r rune) bool { return r == utf8.RuneError || r != '\n' && !unicode.IsPrint(r) }
	if i := strings.IndexFunc(out, bad); i >= 0 {
		t.Errorf("%s has %q", what, out[max(0, i-60):min(len(out), i+60)])
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "time=2026-01-01") || strings.HasPrefix(line, "level=ERROR") {
			t.Errorf("%s has a line that a user has written: %.200q", what, line)
		}
	}
}

// TestHostileNames: a user runs programs whose names, paths and arguments are made to control a
// terminal, to forge lines, and to leave HTML and labels. No output of smcr, of the page, of the
// metrics or of the log lets them.
func TestHostileNames(t *testing.T) {
	l := newLab(t, "setpriv", "curl", "tmux")
	const web = "127.0.0.1:9791"
	stack := l.serve(l.A, "--metrics", web)
	l.serve(l.B)
	server := l.server()
	addr, plainAddr := l.B.Addr()+":5001", l.B.Addr()+":5002"
	plain := l.B.Go(t, bin("probe"), "server", plainAddr)
	if err := plain.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	path := evilDir(t)
	trace := l.A.Go(t, bin("smcr"), "trace")
	if err := trace.WaitOutput("tracing the user stack", startTime); err != nil {
		t.Fatal(err)
	}
	var programs []*netnstest.Process
	run := []string{bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--"}
	// The second one has the name only among its arguments, and the third one is TCP.
	for _, program := range [][]string{
		append(run, path, "client", addr, "1", "-busy"),
		append(run, "sh", "-c", `exec "$0" client "$1" 1 -busy`, bin("probe"), addr, evil, strings.Repeat(evil, 4000/len(evil))),
		append(run, path, "client", plainAddr, "1"),
	} {
		argv := as(hostileUser, program...)
		p := l.A.Go(t, argv[0], argv[1:]...)
		if err := p.WaitOutput("holding 1 connections", startTime); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	shown := 0
	for _, line := range []string{
		"connection list --all", "connection list --all -o wide", "connection list --all -o json",
		"linkgroup list -o wide", "link list -o wide", "info", "info -o json", "stats show -d",
		"topology", "topology -o dot", "topology -o json", "topology -o svg",
		"-d linkgroup show", "export",
	} {
		out := l.smcr(l.A, append([]string{"--backend", "user"}, strings.Fields(line)...)...)
		wantClean(t, line, out)
		if strings.HasSuffix(line, "json") && !json.Valid([]byte(out)) {
			t.Errorf("%s is not JSON:\n%s", line, out)
		}
		if strings.Contains(out, "?[2Je?<b>") || strings.Contains(out, `\u001b[2Je\n`) {
			shown++
		}
	}
	if shown < 2 {
		t.Errorf("%d listings show the name: the test shows nothing", shown)
	}
	for _, name := range []string{"metrics", "", "state.json"} {
		out, err := l.A.Output(t.Context(), "curl", "-sf", "--max-time", "10", "http://"+web+"/"+name)
		if err != nil {
			t.Fatal(err)
		}
		wantClean(t, "/"+name, out)
		if strings.Contains(out, "[2Je") {
			t.Errorf("/%s shows the name of a program of a user", name)
		}
	}
	l.top(t)
	trace.Signal(os.Interrupt) //nolint:errcheck // the next line sees it
	wantEnd(t, trace)
	wantClean(t, "smcr trace", trace.Log())
	if strings.Count(trace.Log(), "\n") < 10 {
		t.Errorf("the trace is empty:\n%s", trace.Log())
	}
	for _, p := range programs {
		terminate(t, p)
		wantClean(t, "smcr run -v", p.Log())
	}
	terminate(t, server)
	wantClean(t, "the log", stack.Log())
	// It knows no names of programs.
	if strings.Contains(stack.Log(), "forged") {
		t.Errorf("the log:\n%s", stack.Log())
	}
	terminate(t, stack)
}

// TestHostileArguments: a name that somebody else has chosen, such as that of a file, adds no line
// to what a command says, and controls no terminal.
func TestHostileArguments(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	name := filepath.Join(dir, evil)
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(evil, "/", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"run", "--"}, {"run", "--mode", "tcp", "--"}, {"run", "--mode"}, {"trace", "-r"}, {"trace", "--peer"}, {"trace", "-r", "/dev/null", "--pcapng"},
		{"apply"}, {"apply", "--dry-run"}, {"check"}, {"connection", "list"}, {"connection", "list", "--peer"}, {"linkgroup", "delete"},
		{"pnet", "add"}, {"pnet", "add", "NET1", "--netdev"}, {"ueid", "add"}, {"serve", "--config"}, {"serve", "--netdev"}, {"serve", "--cgroup"},
		{"serve", "--metrics"}, {"serve", "--allow-user"}, {"serve", "--prepare"}, {"exporter", "--listen"}, {"verbs", "pingpong"}, {"explain"}, {"topology", "-o"}, {"--backend"},
		{"info", "--backend"}, {"info", "--backend", "unix:"},
	} {
		for _, last := range []string{evil, name} {
			args := append(slices.Clone(argv), last)
			if argv[len(argv)-1] == "unix:" {
				args = append(argv[:len(argv)-1:len(argv)-1], "unix:"+last)
			}
			ctx, cancel := context.WithTimeout(t.Context(), commandTime)
			cmd := l.A.Command(ctx, bin("smcr"), args...)
			cmd.Dir = dir
			out, _ := cmd.CombinedOutput()
			cancel()
			wantClean(t, fmt.Sprintf("smcr %.60q", args), string(out))
		}
	}
}

// top checks that smcr top shows the program, and nothing that controls the terminal.
func (l *lab) top(t *testing.T) {
	t.Helper()
	tm := l.newTerminal(l.A)
	tm.command(fmt.Sprintf("%s top --interval 500ms", bin("smcr")))
	tm.want(startTime, "the summary", has(`\[1 Summary\]`))
	tm.keys("4")
	tm.want(startTime, "the connection", has(`(?m)^[> ] ?10\..*ACTIVE SMCR .*\?\[2J`))
	wantClean(t, "smcr top", tm.screen())
	if title := tm.tmux("-S", tm.socket, "display-message", "-p", "#{pane_title}"); strings.Contains(title, "owned") {
		t.Errorf("the terminal has the title %q", title)
	}
	tm.keys("q")
}

// TestHostileDevice: a network device may have nearly any name, such as one that comes back from a container that
// has ended. Whatever shows it shows one text of one line.
func TestHostileDevice(t *testing.T) {
	// What the kernel takes: 15 bytes, but no blanks, slashes and colons.
	const name = "\x1b[2J<b>\"'$&\u009b\xff"
	l := newLab(t, "curl")
	for _, argv := range [][]string{
		{"ip", "link", "add", name, "type", "veth", "peer", "name", "other"}, {"ip", "addr", "add", "10.99.0.1/24", "dev", name},
		{"ip", "link", "set", name, "up"}, {"ip", "link", "set", "other", "up"},
	} {
		if out, err := l.A.Output(t.Context(), argv[0], argv[1:]...); err != nil {
			t.Fatalf("%q: %v %s", argv, err, out)
		}
	}
	const web = "127.0.0.1:9791"
	stack := l.serve(l.A, "--metrics", web, "--log-level", "debug", "--netdev", name, "--netdev", l.A.Links[0].Name)
	l.serve(l.B)
	server := l.server()
	client := l.under(l.A, bin("probe"), "client", l.B.Addr()+":5001", "1", "-busy")
	if err := client.WaitOutput("holding 1 connections", startTime); err != nil {
		t.Fatal(err)
	}
	l.smcr(l.A, "--backend", "user", "pnet", "add", "NET7", "--netdev", name)
	shown := 0
	for _, line := range []string{
		"device list", "device list -o wide", "device list -o json", "linkgroup list -o wide", "link list -o wide", "connection list --all -o wide",
		"pnet list", "pnet list -o json", "info", "info -o json", "stats show -d", "topology", "topology -o dot", "topology -o json", "topology -o svg", "export",
		"-d device show", "rnics", "rnics -o json",
	} {
		out, err := l.try(l.A, append([]string{"--backend", "user"}, strings.Fields(line)...)...)
		if err != nil && !strings.HasPrefix(line, "rnics") {
			t.Errorf("%s: %v", line, err)
		}
		wantClean(t, line, out)
		if err == nil && strings.HasSuffix(line, "json") && !json.Valid([]byte(out)) {
			t.Errorf("%s is not JSON:\n%s", line, out)
		}
		if strings.Contains(out, "[2J") {
			shown++
		}
	}
	if shown < 4 {
		t.Errorf("%d listings show the name: the test shows nothing", shown)
	}
	check, _ := l.try(l.A, "--backend", "user", "check", l.B.Addr()+":5001")
	wantClean(t, "check", check)
	for _, page := range []string{"metrics", "", "state.json"} {
		out, err := l.A.Output(t.Context(), "curl", "-sf", "--max-time", "10", "http://"+web+"/"+page)
		if err != nil {
			t.Fatal(err)
		}
		wantClean(t, "/"+page, out)
	}
	terminate(t, client)
	terminate(t, server)
	wantClean(t, "the log", stack.Log())
	terminate(t, stack)
}
