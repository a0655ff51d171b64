// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"smcr/internal/netnstest"
)

// Users without privileges.
const (
	hostileUser = "65534"
	otherUser   = "65533"
)

// as is the command line of argv for a user.
func as(uid string, argv ...string) []string {
	return append([]string{"setpriv", "--reuid=" + uid, "--regid=" + uid, "--clear-groups", "--inh-caps=-all"}, argv...)
}

// fewFiles is smcr serve with so few descriptors that a user without limits has
// them all at once.
func (l *lab) fewFiles(h *netnstest.Host) *netnstest.Process {
	l.t.Helper()
	p := h.Go(l.t, "prlimit", "--nofile=256:256", bin("smcr"), "serve")
	err := netnstest.Until(startTime, func() error {
		_, err := l.try(h, "--backend", "user", "info")
		return err
	})
	if err != nil {
		l.t.Fatalf("%v\n%s", err, p.Log())
	}
	return p
}

// exchanges has a user's program connect to a server and exchange messages, all of
// it over SMC-R.
func (l *lab) exchanges(uid, addr string) {
	l.t.Helper()
	argv := as(uid, bin("smcr"), "run", "--mode", "user", "-v", "--", bin("probe"), "client", addr, "3")
	p := l.A.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("holding 3 connections", startTime); err != nil {
		l.t.Fatalf("user %s: %v", uid, err)
	}
	terminate(l.t, p)
	wantSummary(l.t, p.Log(), 3)
}

// TestHostileUser: whatever a user does to the stack's sockets, the programs and
// commands of others go on, and connections that are there.
func TestHostileUser(t *testing.T) {
	l := newLab(t, "prlimit", "setpriv")
	stack := l.fewFiles(l.A)
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	before := l.under(l.A, bin("probe"), "client", addr, "2", "-busy")
	if err := before.WaitOutput("holding 2 connections", startTime); err != nil {
		t.Fatal(err)
	}
	argv := as(hostileUser, bin("hostile"), "press", "203.0.113.1:9")
	hostile := l.A.Go(t, argv[0], argv[1:]...)
	if err := hostile.WaitOutput("pressing", time.Minute); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.exchanges("0", addr)
		l.exchanges(otherUser, addr)
		l.smcr(l.A, "--backend", "user", "linkgroup", "list")
	}
	// Who is beyond the limits learns so, and the program runs all the same.
	err := netnstest.Until(settleTime, func() error {
		out, err := l.asUser(hostileUser, bin("smcr"), "run", "-v", "--", "echo", "ran")
		switch {
		case err != nil || !strings.Contains(out, "ran\n"):
			return netnstest.Stop(fmt.Errorf("smcr run: %w\n%s", err, out))
		case !strings.Contains(out, "all connections over TCP") || !strings.Contains(out, "user "+hostileUser+" has"):
			return fmt.Errorf("smcr run says nothing of the limit:\n%s", out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	select {
	case <-stack.Done():
		t.Fatalf("the stack ended:\n%s", stack.Log())
	default:
	}
	if lines := strings.Count(stack.Log(), "level=WARN"); lines > 200 {
		t.Errorf("%d warnings:\n%.4000s", lines, stack.Log())
	}
	hostile.Kill()
	err = netnstest.Until(settleTime, func() error {
		out, err := l.asUser(hostileUser, bin("smcr"), "run", "--mode", "user", "--", "echo", "ran")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Errorf("user %s afterwards: %v", hostileUser, err)
	}
	l.exchanges(hostileUser, addr)
	if log := before.Log(); strings.Contains(log, "ended") {
		t.Errorf("connections from before:\n%s", log)
	}
	terminate(t, before)
	wantSummary(t, before.Log(), 2)
	terminate(t, server)
	terminate(t, stack)
}

// asUser runs a command on host A and returns what it wrote, at both outputs.
func (l *lab) asUser(uid string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), commandTime)
	defer cancel()
	argv = as(uid, argv...)
	out, err := l.A.Command(ctx, argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// TestStrangeNamespace: sockets of another network namespace, which a user without
// privileges can make, stay plain TCP, and nothing is done to them.
func TestStrangeNamespace(t *testing.T) {
	l := newLab(t, "setpriv", "unshare")
	stack := l.serve(l.A)
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	w := l.watch()
	out, err := l.asUser(hostileUser, bin("hostile"), "strange", addr)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := w.stop(t)
	for _, what := range []string{"listen: ", "connect: kind 1: ", "accept: kind 1: "} {
		_, answer, _ := strings.Cut(out, what)
		if answer, _, _ = strings.Cut(answer, "\n"); !strings.Contains(answer, "another network namespace") {
			t.Errorf("%sthe stack answers %q", what, answer)
		}
	}
	// The wire is that of the right namespace: nothing has come there either.
	if s.SYNs != 0 || s.SMCSYNs != 0 {
		t.Errorf("%d SYN, %d of them with the SMC option", s.SYNs, s.SMCSYNs)
	}
	l.exchanges(hostileUser, addr)
	terminate(t, server)
	terminate(t, stack)
}
