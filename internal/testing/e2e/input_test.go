// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// Exit statuses of smcr in the documentation and the manual pages.
const (
	exitError      = 1
	exitUsage      = 2
	exitNotFound   = 3
	exitPermission = 4
	exitNoBackend  = 5

	// The exit status of a shell for a program that it cannot start.
	exitNotExecutable = 126
	exitNoProgram     = 127
)

// failing runs smcr on a host. It checks the exit status, that the message has each of
// the words, and that standard output is empty.
func (l *lab) failing(h *netnstest.Host, status int, words []string, argv ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), commandTime)
	defer cancel()
	cmd := h.Command(ctx, argv[0], argv[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	ee, ok := errors.AsType[*exec.ExitError](err)
	if !ok || ee.ExitCode() != status {
		l.t.Errorf("%v: %v, want exit status %d\n%s%s", argv[1:], err, status, &stdout, &stderr)
	}
	for _, word := range words {
		if !strings.Contains(strings.ToLower(stderr.String()), strings.ToLower(word)) {
			l.t.Errorf("%v: the message lacks %q: %s", argv[1:], word, &stderr)
		}
	}
	if stdout.Len() > 0 {
		l.t.Errorf("%v: printed %q on standard output", argv[1:], &stdout)
	}
	if strings.Contains(stderr.String(), "goroutine ") {
		l.t.Errorf("%v: panic: %s", argv[1:], &stderr)
	}
}

func TestBadInput(t *testing.T) {
	l := newLab(t, "setpriv")
	stack := l.serve(l.A)
	smcr := bin("smcr")
	l.smcr(l.A, "pnet", "add", "NET1", "-I", "eth0")
	state := func() string {
		t.Helper()
		return l.smcr(l.A, "--backend", "user", "pnet", "list", "--output", "json") +
			l.smcr(l.A, "--backend", "user", "ueid", "list", "--output", "json") +
			l.smcr(l.A, "--backend", "user", "device", "list", "--output", "json")
	}
	before := state()
	for _, test := range []struct {
		name   string
		status int
		words  []string
		argv   []string
	}{
		{"unknown netdev", exitNotFound, []string{"nosuch0"}, []string{smcr, "pnet", "add", "NET2", "-I", "nosuch0"}},
		{"pnetid of 17 characters", exitUsage, []string{"ABCDEFGHIJKLMNOPQ", "16"}, []string{smcr, "pnet", "add", "ABCDEFGHIJKLMNOPQ", "-I", "eth0"}},
		{"unknown pnetid", exitNotFound, []string{"NOSUCH"}, []string{smcr, "pnet", "del", "NOSUCH"}},
		{"unknown word", exitUsage, []string{"frobnicate"}, []string{smcr, "frobnicate"}},
		{"unknown flag", exitUsage, []string{"--no-such-flag"}, []string{smcr, "linkgroup", "list", "--no-such-flag"}},
		{"no program named", exitUsage, []string{"PROGRAM"}, []string{smcr, "run", "--"}},
		{"no such program", exitNoProgram, []string{"/no/such/program"}, []string{smcr, "run", "--mode", "user", "--", "/no/such/program"}},
		{"no such program in PATH", exitNoProgram, []string{"no-such-program"}, []string{smcr, "run", "--mode", "user", "--", "no-such-program"}},
		{"not executable", exitNotExecutable, []string{"/etc/passwd"}, []string{smcr, "run", "--mode", "user", "--", "/etc/passwd"}},
		{"a directory", exitNotExecutable, []string{"/etc"}, []string{smcr, "run", "--mode", "user", "--", "/etc"}},
		{"stack already running", exitError, []string{"already"}, []string{smcr, "serve"}},
		{"no privilege to change", exitPermission, []string{"permi"}, []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", smcr, "pnet", "add", "NET2", "-I", "eth0"}},
		{"no privilege to reset", exitPermission, []string{"permi"}, []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", smcr, "pnet", "flush"}},
		{"socket of nobody", exitNoBackend, []string{"/no/such.sock"}, []string{smcr, "--backend", "unix:/no/such.sock", "info"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			(&lab{Pair: l.Pair, t: t}).failing(l.A, test.status, test.words, test.argv...)
			if after := state(); after != before {
				t.Errorf("state changed from\n%s\nto\n%s", before, after)
			}
		})
	}
	select {
	case <-stack.Done():
		t.Errorf("the stack ended:\n%s", stack.Log())
	default:
	}
	// Every user may read.
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	if _, err := l.A.Output(ctx, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", smcr, "pnet", "list"); err != nil {
		t.Error(err)
	}
}

// TestAddressInUse: an error of the program itself has the same message and the same exit
// status as without smcr run.
func TestAddressInUse(t *testing.T) {
	l := newLab(t)
	addr := l.A.Addr() + ":7"
	server := l.probeServer()
	l.failing(l.A, 1, []string{"address already in use"}, bin("smcr"), "run", "--mode", "user", "--", bin("probe"), "server", addr)
	// The first server still works.
	release(t, l.held(1))
	terminate(t, server)
}

// TestExitStatus: smcr run has the exit status of the program, and the program has its
// standard streams.
func TestExitStatus(t *testing.T) {
	l := newLab(t)
	for _, test := range []struct {
		script string
		status int
	}{
		{"exit 0", 0}, {"exit 7", 7}, {"exit 255", 255}, {"kill -TERM $$", -15}, {"kill -9 $$", -9}, // minus the signal
	} {
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		cmd := l.A.Command(ctx, bin("smcr"), "run", "--mode", "user", "--", "sh", "-c", "cat; echo err >&2; "+test.script)
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in"), &stdout, &stderr
		err := cmd.Run()
		cancel()
		status := cmd.ProcessState.ExitCode()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			status = -int(ws.Signal())
		}
		if status != test.status || stdout.String() != "in" || stderr.String() != "err\n" {
			t.Errorf("sh -c %q: exit status %d (%v), want %d; output %q, errors %q", test.script, status, err, test.status, &stdout, &stderr)
		}
	}
}

// TestRefused: a connection that the peer refuses, or that gets no answer, ends with the
// same error as over TCP.
func TestRefused(t *testing.T) {
	l := newLab(t, "curl", "/usr/bin/python3")
	// TCP gives up after two minutes.
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s:9/", l.A.Addr())
	_, err := l.B.Output(ctx, bin("smcr"), "run", "--mode", "user", "--", "curl", "-sS", "--noproxy", "*", url)
	if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.ExitCode() != 7 {
		t.Errorf("curl to a closed port: %v, want exit status 7 (could not connect)", err)
	}
	_, err = l.B.Output(ctx, bin("smcr"), "run", "--mode", "user", "--", "curl", "-sS", "--noproxy", "*", "--connect-timeout", "2", "http://10.77.0.99/")
	if ee, ok := errors.AsType[*exec.ExitError](err); !ok || (ee.ExitCode() != 28 && ee.ExitCode() != 7) {
		t.Errorf("curl to an absent host: %v, want exit status 28 (timeout) or 7 (no route)", err)
	}
	_, err = l.B.Output(ctx, bin("smcr"), "run", "--mode", "user", "--", "/usr/bin/python3", "-c", "import socket,sys; socket.create_connection((sys.argv[1], 9), timeout=10)", l.A.Addr())
	if err == nil || !strings.Contains(err.Error(), "ConnectionRefusedError") {
		t.Errorf("python: %v, want ConnectionRefusedError", err)
	}
}

// TestNoPrivilege: if there is no stack and no right to start one, mode user runs
// nothing, and smcr serve names the privilege that it needs.
func TestNoPrivilege(t *testing.T) {
	l := newLab(t, "setpriv")
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", bin("smcr")}
	l.failing(l.B, exitPermission, []string{"privilege", "smcr serve"}, append(nobody, "run", "--mode", "user", "--", "echo", "ran")...)
	l.failing(l.B, exitPermission, []string{"CAP_NET_RAW"}, append(nobody, "serve")...)
	if pids := l.stackPids(l.B); len(pids) > 0 {
		t.Errorf("a stack was left behind: %v", pids)
	}
}
