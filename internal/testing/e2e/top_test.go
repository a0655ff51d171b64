// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// steadyClient sends 1000 bytes a hundred times a second, and more on command, to a server
// that returns what it receives.
const steadyClient = `
import socket, sys, threading, time
s = socket.create_connection((sys.argv[1], 7400))
def drain():
    while s.recv(1 << 20): pass
threading.Thread(target=drain, daemon=True).start()
size = 1000
def listen():
    global size
    for line in sys.stdin: size = int(line)
threading.Thread(target=listen, daemon=True).start()
print('connected', flush=True)
while True:
    s.sendall(b'x' * size)
    time.sleep(0.01)
`

// A terminal is a tmux session on a host.
type terminal struct {
	*lab
	host   *netnstest.Host
	socket string
}

// newTerminal starts tmux with a shell in a terminal of 80x24.
func (l *lab) newTerminal(h *netnstest.Host, env ...string) *terminal {
	l.t.Helper()
	t := &terminal{l, h, filepath.Join(l.t.TempDir(), "tmux")}
	argv := append([]string{"-u", "-S", t.socket, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env"}, env...)
	t.tmux(append(argv, "PS1=prompt> ", "sh")...)
	l.t.Cleanup(func() { _, _ = t.try("kill-server") })
	t.want(commandTime, "a prompt", has(`(?m)^prompt>`))
	return t
}

func (t *terminal) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	return t.host.Output(ctx, "tmux", args...)
}

func (t *terminal) tmux(args ...string) string {
	t.t.Helper()
	out, err := t.try(args...)
	if err != nil {
		t.t.Fatal(err)
	}
	return out
}

// keys presses keys; their names are those of tmux.
func (t *terminal) keys(keys ...string) {
	t.t.Helper()
	t.tmux(append([]string{"-S", t.socket, "send-keys"}, keys...)...)
}

// command types a command line.
func (t *terminal) command(line string) {
	t.t.Helper()
	t.tmux("-S", t.socket, "send-keys", "-l", line)
	t.keys("Enter")
}

// screen returns what the terminal shows.
func (t *terminal) screen(args ...string) string {
	t.t.Helper()
	return t.tmux(append([]string{"-S", t.socket, "capture-pane", "-p"}, args...)...)
}

// want waits until the screen is as a function wants it, and returns the screen.
func (t *terminal) want(limit time.Duration, what string, ok func(string) error) string {
	t.t.Helper()
	var s string
	err := netnstest.Until(limit, func() error {
		s = t.screen()
		return ok(s)
	})
	if err != nil {
		t.t.Fatalf("%s: %v in\n%s", what, err, s)
	}
	return s
}

// has wants a match of each pattern.
func has(patterns ...string) func(string) error {
	return func(s string) error {
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(s) {
				return fmt.Errorf("no %q", p)
			}
		}
		return nil
	}
}

// number reads a number in the short form of smcr top.
func shortNumber(t testing.TB, s string) float64 {
	t.Helper()
	unit := 1.0
	switch {
	case strings.HasSuffix(s, "K"):
		unit = 1e3
	case strings.HasSuffix(s, "M"):
		unit = 1e6
	}
	v, err := strconv.ParseFloat(strings.TrimRight(s, "KM"), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v * unit
}

// topLab is two hosts with a steady connection over SMC-R from A to B, and one over TCP.
func topLab(t *testing.T) (l *lab, client *netnstest.Process, faster func()) {
	l = newLab(t, "tmux", "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.B, "/usr/bin/python3", "-u", "-c", returningServer, l.B.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	cmd := l.A.Command(t.Context(), bin("smcr"), "run", "--mode", "user", "-v", "--no-adapt", "--", "/usr/bin/python3", "-u", "-c", steadyClient, l.B.Addr())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	cmd.Stdin = r
	client = l.A.GoCmd(t, cmd)
	r.Close()
	if err := client.WaitOutput("connected", startTime); err != nil {
		t.Fatal(err)
	}
	return l, client, func() {
		if _, err := fmt.Fprintln(w, 100_000); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTop: smcr top in a terminal of 80x24 shows the link group, its link and the connection
// with its rate. It sorts, filters, says that the stack is gone, recovers, and restores the
// terminal.
func TestTop(t *testing.T) {
	l, _, faster := topLab(t)
	tm := l.newTerminal(l.A)
	modes := func() string {
		return tm.tmux("-S", tm.socket, "display-message", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}")
	}
	before := modes()
	top := bin("smcr") + " top --interval 500ms"
	tm.command(top)
	tm.want(startTime, "the summary", has(`Groups 1  Links 1  Conns 1 \(SMC-R 1`, `\[1 Summary\]`, `\S+ +eth0 +ACTIVE`, `10\.\S+:7400 .*SMCR`))

	tm.keys("2")
	tm.want(startTime, "the link group", has(`\[2 Groups\]`, `(?m)^> [0-9a-f]{8} CLNT SINGLE `+regexp.QuoteMeta(l.B.Addr())+` +1 +\d`))
	tm.keys("Enter")
	tm.want(startTime, "its link", has(`\[3 Links\].*filter: [0-9a-f]{8}`, `(?m)^> [0-9a-f]{8} +1 ACTIVE +\S+eth0`))
	tm.keys("4")
	row := regexp.MustCompile(`(?m)^> ` + regexp.QuoteMeta(l.B.Addr()) + `:7400 +\S+ +ACTIVE SMCR [0-9a-f]{8} +(\S+) +(\S+) +(\S+) +pyth`)
	rate := func(s string) (float64, error) {
		m := row.FindStringSubmatch(s)
		if m == nil || m[1] == "-" {
			return 0, errors.New("no connection with a rate")
		}
		return shortNumber(t, m[1]), nil
	}
	var slow float64
	tm.want(startTime, "the rate of the connection", func(s string) (err error) {
		if slow, err = rate(s); err == nil && slow < 1000 {
			err = fmt.Errorf("%v B/s", slow)
		}
		return err
	})
	faster()
	tm.want(startTime, "a higher rate", func(s string) error {
		fast, err := rate(s)
		if err == nil && fast < 5*slow {
			err = fmt.Errorf("%v B/s, before %v", fast, slow)
		}
		return err
	})
	if dir := os.Getenv("SMCR_E2E_SCREENS"); dir != "" { // for docs/top.md
		if err := os.WriteFile(filepath.Join(dir, "conns.txt"), []byte(tm.screen()), 0o644); err != nil {
			t.Error(err)
		}
	}

	tm.keys(">")
	tm.want(commandTime, "sorted by the next column", has(`B/s +RX/s v`))
	tm.keys("r")
	tm.want(commandTime, "reversed", has(`RX/s \^`))
	tm.keys("/")
	tm.keys("n", "o", "w", "h", "e", "r", "e")
	tm.want(commandTime, "a filter is typed", has(`filter: nowhere_`, `nothing matches`))
	tm.keys("C-u", "P", "y", "t", "Enter")
	tm.want(commandTime, "a filter that matches", has(`filter: Pyt`, row.String()))
	tm.keys("Space")
	tm.want(commandTime, "paused", has(`\[PAUSED\]`))
	tm.keys("Space", "?")
	tm.want(commandTime, "help", has(`any key returns`, `q Ctrl-C +quit`))
	tm.keys("x")

	// A smaller terminal.
	tm.tmux("-S", tm.socket, "resize-window", "-x", "40", "-y", "10")
	tm.want(commandTime, "40x10", func(s string) error {
		lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
		if len(lines) != 10 {
			return fmt.Errorf("%d lines", len(lines))
		}
		return has(`\[4 Conns\] of 5 views`, `> \S+:7400 `)(s)
	})
	tm.tmux("-S", tm.socket, "resize-window", "-x", "80", "-y", "24")

	// The stack goes away and comes back.
	for _, pid := range l.stackPids(l.A) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	tm.want(startTime, "no stack", has(`! no SMC: `, `asks again every 500ms`))
	l.serve(l.A)
	tm.want(startTime, "the new stack", has(`stack user`, `Conns 0 `))

	tm.keys("q")
	tm.want(endTime, "the terminal as before", has(`(?m)^prompt> .* top --interval 500ms\nprompt> *$`))
	if after := modes(); after != before {
		t.Errorf("modes of the terminal: %q, before %q", after, before)
	}
	tm.command("stty -a | grep -c ' echo .*' ; stty -a | grep -wc icanon; echo status $?")
	tm.want(commandTime, "echo and lines", has(`(?m)^status 0`))

	// SIGTERM restores the terminal too.
	tm.command(top)
	tm.want(startTime, "started again", has(`stack user`))
	for _, pid := range l.pids(l.A, func(argv []string) bool { return len(argv) > 1 && argv[1] == "top" }) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	tm.want(endTime, "the terminal after SIGTERM", has(`(?m)^prompt> *$`))
	if after := modes(); after != before {
		t.Errorf("modes of the terminal after SIGTERM: %q, before %q", after, before)
	}
}

// TestTopTerminals: NO_COLOR leaves out colours, and where no screen can be shown, smcr top
// says what to use.
func TestTopTerminals(t *testing.T) {
	l := newLab(t, "tmux")
	l.serve(l.A)
	colour := regexp.MustCompile(`\x1b\[[\d;]*3[0-7][;m]`)
	for env, want := range map[string]bool{"NO_COLOR=1": false, "SMCR=1": true} {
		tm := l.newTerminal(l.A, env)
		tm.command(bin("smcr") + " --backend kernel top") // that there is none is shown in colour
		tm.want(startTime, "a warning", has(`! the kernel has no SMC|stack kernel`))
		if s := tm.screen("-e"); colour.MatchString(s) != want && strings.Contains(s, "! the kernel") {
			t.Errorf("%s: colours %v, want %v\n%q", env, !want, want, s)
		}
		tm.command("q")
		_, _ = tm.try("-S", tm.socket, "kill-server")
	}
	tm := l.newTerminal(l.A, "TERM=dumb")
	tm.command("TERM=dumb " + bin("smcr") + " top; echo status $?")
	tm.want(startTime, "a dumb terminal", has(`cannot show a screen \(TERM=dumb\)`, `status 1`))

	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	out, err := l.A.Command(ctx, bin("smcr"), "top").CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), "the output is not a terminal: use 'smcr stats watch'") {
		t.Errorf("without a terminal: %v, %s", err, out)
	}
}

// TestStatsWatch: smcr stats watch prints the rates of the traffic that there is.
func TestStatsWatch(t *testing.T) {
	l, _, _ := topLab(t)
	lines := strings.Split(strings.TrimSuffix(l.smcr(l.A, "--backend", "user", "stats", "watch", "--interval", "500ms", "--count", "2"), "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) != len(strings.Fields(lines[0])) || f[1] != "user" || f[2] != "1" || f[4] != "1" {
			t.Errorf("%q", line)
		}
		if tx, err := strconv.ParseFloat(f[7], 64); err != nil || tx < 1000 {
			t.Errorf("%v B/s, %v: %q", tx, err, line)
		}
	}
	var sample struct {
		Rows []struct {
			Stack string
			Rates struct {
				TXBytes     float64  `json:"tx_bytes"`
				Retransmits *float64 `json:"retransmits"`
			}
		}
	}
	out := l.smcr(l.B, "--backend", "user", "stats", "watch", "-o", "json", "--count", "1")
	if err := json.Unmarshal([]byte(out), &sample); err != nil || strings.Count(out, "\n") != 1 || len(sample.Rows) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if r := sample.Rows[0]; r.Stack != "user" || r.Rates.TXBytes < 1000 || r.Rates.Retransmits == nil {
		t.Errorf("%s", out)
	}
}
