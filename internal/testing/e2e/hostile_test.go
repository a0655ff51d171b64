// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// Users without privileges.
const (
	hostileUser = "65534"
	otherUser   = "65533"
)

// as returns a command line that runs argv as a user.
func as(uid string, argv ...string) []string {
	return append([]string{"setpriv", "--reuid=" + uid, "--regid=" + uid, "--clear-groups", "--inh-caps=-all"}, argv...)
}

// fewFiles starts smcr serve with so few descriptors that, without limits, one user could
// use them all.
func (l *lab) fewFiles(h *netnstest.Host) *netnstest.Process {
	l.t.Helper()
	p := h.Go(l.t, "prlimit", "--nofile=1024:1024", bin("smcr"), "serve")
	err := netnstest.Until(startTime, func() error {
		_, err := l.try(h, "--backend", "user", "info")
		return err
	})
	if err != nil {
		l.t.Fatalf("%v\n%s", err, p.Log())
	}
	return p
}

// exchanges makes the program of a user connect to a server and exchange messages, and
// checks that all connections are over SMC-R. If wrapper is given, it starts the program: a
// command line to which that of the program is added.
func (l *lab) exchanges(uid, addr string, wrapper ...string) {
	l.t.Helper()
	argv := append(wrapper, as(uid, bin("smcr"), "run", "--mode", "user", "-v", "--", bin("probe"), "client", addr, "3")...)
	p := l.A.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("holding 3 connections", startTime); err != nil {
		l.t.Fatalf("user %s: %v", uid, err)
	}
	terminate(l.t, p)
	wantSummary(l.t, p.Log(), 3)
}

// busy starts a server on B, and on A a client with two connections that are used all the time.
func (l *lab) busy(addr string) (server, client *netnstest.Process) {
	l.t.Helper()
	server = l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	client = l.under(l.A, bin("probe"), "client", addr, "2", "-busy")
	if err := client.WaitOutput("holding 2 connections", startTime); err != nil {
		l.t.Fatal(err)
	}
	return server, client
}

// TestHostileUser: whatever a user does to the sockets of the stack, the programs and
// commands of others work, and existing connections stay.
func TestHostileUser(t *testing.T) {
	l := newLab(t, "prlimit", "setpriv")
	stack := l.fewFiles(l.A)
	addr := l.B.Addr() + ":5001"
	server, before := l.busy(addr)
	for _, kind := range []string{"control", "garbage", "unread", "linger", "connections", "all"} {
		t.Run(kind, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			hostile := l.exhaust(kind)
			for _, uid := range []string{"0", otherUser} {
				l.exchanges(uid, addr)
				l.commands(uid)
			}
			hostile.Kill()
		})
	}
	select {
	case <-stack.Done():
		t.Fatalf("the stack ended:\n%s", stack.Log())
	default:
	}
	if lines := strings.Count(stack.Log(), "level=WARN"); lines > 200 {
		t.Errorf("%d warnings:\n%.4000s", lines, stack.Log())
	}
	err := netnstest.Until(settleTime, func() error {
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
	endUndisturbed(t, before)
	terminate(t, server)
	terminate(t, stack)
}

// endUndisturbed ends a program whose two connections are from before an attack: they have gone on,
// over SMC-R.
func endUndisturbed(t *testing.T, before *netnstest.Process) {
	t.Helper()
	if log := before.Log(); strings.Contains(log, "ended") {
		t.Errorf("connections from before:\n%s", log)
	}
	terminate(t, before)
	wantSummary(t, before.Log(), 2)
}

// exhaust starts the program of the hostile user.
func (l *lab) exhaust(kind string) *netnstest.Process {
	l.t.Helper()
	// Nobody has this address, so connections to it take long.
	absent := l.A.Links[0].IPv4.As4()
	absent[3] = 200
	argv := as(hostileUser, bin("smcr"), "run", "--mode", "user", "--", bin("hostile"), "exhaust", kind, netip.AddrPortFrom(netip.AddrFrom4(absent), 9).String())
	p := l.A.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("exhausting", time.Minute); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// commands makes a user list the state of the stack.
func (l *lab) commands(uid string) {
	l.t.Helper()
	for _, noun := range []string{"linkgroup", "connection"} {
		if out, err := l.asUser(uid, bin("smcr"), "--backend", "user", noun, "list"); err != nil {
			l.t.Errorf("user %s: %s list: %v\n%s", uid, noun, err, out)
		}
	}
}

// asUser runs a command on host A and returns its output and its messages.
func (l *lab) asUser(uid string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), commandTime)
	defer cancel()
	argv = as(uid, argv...)
	out, err := l.A.Command(ctx, argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// TestBeyondQuota: a server's connections beyond the quota of its user are declined. They
// work over TCP, and both sides know the reason.
func TestBeyondQuota(t *testing.T) {
	l := newLab(t, "setpriv")
	// The quota is enough for one connection.
	stack := l.serve(l.A, "--user-fds", "6")
	addr := l.A.Addr() + ":5001"
	argv := as(hostileUser, bin("smcr"), "run", "--mode", "user", "-v", "--", bin("probe"), "server", addr)
	server := l.A.Go(t, argv[0], argv[1:]...)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	first := l.under(l.B, bin("probe"), "client", addr, "1", "-busy")
	if err := first.WaitOutput("holding 1 connections", startTime); err != nil {
		t.Fatal(err)
	}
	client := l.under(l.B, bin("probe"), "client", addr, "3")
	if err := client.WaitOutput("holding 3 connections", startTime); err != nil {
		t.Fatal(err)
	}
	terminate(t, client)
	if !strings.Contains(client.Log(), "smcr: 0 connections over SMC-R, 3 over TCP") {
		t.Errorf("client:\n%s", client.Log())
	}
	terminate(t, first)
	wantSummary(t, first.Log(), 1)
	terminate(t, server)
	if log := server.Log(); !strings.Contains(log, "smcr: 1 connection over SMC-R, 3 over TCP") || !strings.Contains(log, "smcr explain no-memory") {
		t.Errorf("server:\n%s", log)
	}
	terminate(t, stack)
}
