// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// TestAllowed: two users have no privileges. The stack serves the one whose group is
// allowed. The program of the other one uses TCP, and its user gets the reason.
func TestAllowed(t *testing.T) {
	l := newLab(t, "setpriv")
	const group = "65000" // this group is a supplementary group of otherUser
	stack := l.serve(l.A, "--allow-group", group)
	server := l.server()
	defer terminate(t, server)
	addr := l.B.Addr() + ":5001"
	client := func(mode string, argv ...string) *netnstest.Process {
		argv = append(argv, bin("smcr"), "run", "--mode", mode, "-v", "--", bin("probe"), "client", addr, "2")
		return l.A.Go(t, argv[0], argv[1:]...)
	}
	member := []string{"setpriv", "--reuid=" + otherUser, "--regid=" + otherUser, "--groups=" + group, "--inh-caps=-all"}
	for _, argv := range [][]string{nil, member} {
		p := client("user", argv...)
		if err := p.WaitOutput("holding 2 connections", startTime); err != nil {
			t.Fatal(err)
		}
		terminate(t, p)
		wantSummary(t, p.Log(), 2)
	}
	why := "user " + hostileUser + " may not use this stack"
	p := client("auto", as(hostileUser)...)
	if err := p.WaitOutput("holding 2 connections", startTime); err != nil {
		t.Fatal(err)
	}
	terminate(t, p)
	if log := p.Log(); !strings.Contains(log, "all connections over TCP") || !strings.Contains(log, why) {
		t.Errorf("over TCP:\n%s", log)
	}
	out, err := l.asUser(hostileUser, bin("smcr"), "run", "--mode", "user", "--", "echo", "ran")
	if err == nil || !strings.Contains(out, why) || strings.Contains(out, "ran") {
		t.Errorf("--mode user: %v\n%s", err, out)
	}
	terminate(t, stack)
}

// TestListingsOfOtherUsers: a user without privileges sees all rows of a listing, but not the
// fields that identify a host in CLC messages and packets.
func TestListingsOfOtherUsers(t *testing.T) {
	l := newLab(t, "setpriv")
	stack := l.serve(l.A)
	server := l.server()
	defer terminate(t, server)
	client := l.under(l.A, bin("probe"), "client", l.B.Addr()+":5001", "1", "-busy")
	if err := client.WaitOutput("holding 1 connections", startTime); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		argv   []string
		fields []string
	}{
		{[]string{"linkgroup", "list"}, []string{"peer_id"}},
		{[]string{"link", "list"}, []string{"qpn", "peer_qpn"}},
		{[]string{"connection", "list"}, []string{"token", "pid", "command"}},
	} {
		argv := append([]string{bin("smcr"), "--backend", "user"}, append(tt.argv, "--output", "json")...)
		ctx, cancel := context.WithTimeout(t.Context(), commandTime)
		all, err := l.A.Command(ctx, argv[0], argv[1:]...).Output()
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		some, err := l.asUser(hostileUser, argv...)
		if err != nil {
			t.Fatalf("%v\n%s", err, some)
		}
		for _, f := range tt.fields {
			if root := field(t, all, f); len(root) == 0 {
				t.Errorf("%v: root does not see %s:\n%s", tt.argv, f, all)
			}
			if user := field(t, []byte(some), f); len(user) > 0 {
				t.Errorf("%v: another user sees %s:\n%s", tt.argv, f, some)
			}
		}
	}
	terminate(t, client)
	terminate(t, stack)
}

// server starts a server under smcr run on host B.
func (l *lab) server() *netnstest.Process {
	l.t.Helper()
	p := l.under(l.B, bin("probe"), "server", l.B.Addr()+":5001")
	if err := p.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// field returns all values of a field anywhere in a JSON text that are not zero.
func field(t *testing.T, text []byte, name string) (values []any) {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for k, x := range v {
				if k == name && x != nil && x != "" && x != 0.0 {
					values = append(values, x)
				}
				walk(x)
			}
		}
	}
	walk(v)
	return values
}
