// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// wantNoStack checks that a command of a user finds no stack.
func (l *lab) wantNoStack(uid string, env ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), commandTime)
	defer cancel()
	argv := as(uid, bin("smcr"), "--backend", "user", "info")
	cmd := l.A.Command(ctx, argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.ExitCode() != exitNoBackend {
		l.t.Errorf("user %s with %q finds a stack: %v\n%s", uid, env, err, out)
	}
}

// TestSquatter: before there is a stack, a user takes all its names that this user can
// take. Others can still use SMC-R, and nobody uses what this user has made. The same
// holds after a stack was killed.
func TestSquatter(t *testing.T) {
	l := newLab(t, "setpriv")
	dir, err := os.MkdirTemp("", "smcr-e2e-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, err := strconv.Atoi(hostileUser)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	argv := as(hostileUser, "env", "XDG_RUNTIME_DIR="+dir, bin("hostile"), "squat")
	squatter := l.A.Go(t, argv[0], argv[1:]...)
	if err := squatter.WaitOutput("squatting", startTime); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"took @smcr/nl\n", "took own place\n"} {
		if err := squatter.WaitOutput(what, startTime); err != nil {
			t.Error(err)
		}
	}
	// XDG_RUNTIME_DIR of another user does not make a client use that user's stack.
	for _, uid := range []string{"0", otherUser} {
		l.wantNoStack(uid)
		l.wantNoStack(uid, "XDG_RUNTIME_DIR="+dir)
	}
	served := func() {
		t.Helper()
		for _, uid := range []string{"0", otherUser} {
			l.exchanges(uid, addr) // the first program of root starts a stack if there is none
			l.commands(uid)
		}
	}
	served()
	pids := l.stackPids(l.A)
	if len(pids) != 1 {
		t.Fatalf("stacks: %v", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := netnstest.Until(endTime, func() error {
		if len(l.stackPids(l.A)) > 0 {
			return errors.New("a killed stack goes on")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.wantNoStack(otherUser)
	stack := l.serve(l.A)
	served()
	terminate(t, stack)
	l.wantNoStack(otherUser)
	terminate(t, server)
	select {
	case <-squatter.Done():
		t.Error("the squatter has ended")
	default:
	}
	for line := range strings.Lines(squatter.Log()) {
		if what, ok := strings.CutPrefix(line, "took "); ok && !strings.HasPrefix(what, "@") && what != "own place\n" {
			t.Errorf("the squatter %s", line)
		}
	}
	squatter.Kill()
}

// TestUserNamespace: a process shares the network namespace of a stack of root, but is in
// a user namespace without that root. It does not trust the stack and reports the reason.
// Mode auto runs the program over TCP, mode user does not run it.
func TestUserNamespace(t *testing.T) {
	l := newLab(t, "setpriv", "unshare")
	stack := l.serve(l.A)
	inside := func(argv ...string) (string, error) {
		return l.asUser(otherUser, append([]string{"unshare", "--user", "--map-root-user"}, argv...)...)
	}
	if out, err := inside("true"); err != nil {
		t.Skipf("no user namespaces here: %v\n%s", err, out)
	}
	const why = "a user namespace shows root of the host as user 65534"
	for _, command := range [][]string{{"info"}, {"linkgroup", "list"}} { // a command of smc-tools, and one that only smcr has
		if out, err := inside(append([]string{bin("smcr"), "--backend", "user"}, command...)...); err == nil || !strings.Contains(out, why) {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
	}
	if out, err := inside(bin("smcr"), "run", "--", "echo", "ran"); err != nil || !strings.Contains(out, why) || !strings.Contains(out, "all connections over TCP") || !strings.HasSuffix(out, "ran\n") {
		t.Errorf("run: %v\n%s", err, out)
	}
	if out, err := inside(bin("smcr"), "run", "--mode", "user", "--", "echo", "ran"); err == nil || !strings.Contains(out, why) || strings.HasSuffix(out, "ran\n") {
		t.Errorf("run --mode user: %v\n%s", err, out)
	}
	if pids := l.stackPids(l.A); len(pids) != 1 {
		t.Errorf("stacks: %v", pids)
	}
	terminate(t, stack)
}
