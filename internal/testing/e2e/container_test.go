// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// contained returns a command line that runs argv with the rights of a container, and with
// these capabilities added.
func contained(caps []string, argv ...string) []string {
	line := []string{bin("container")}
	for _, c := range caps {
		line = append(line, "-cap", c)
	}
	return append(append(line, "--"), argv...)
}

// serveContained starts the stack of a host with the rights of a container.
func (l *lab) serveContained(h *netnstest.Host, caps ...string) *netnstest.Process {
	l.t.Helper()
	argv := contained(caps, bin("smcr"), "serve")
	p := h.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("msg=serving", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// TestContainerRights runs the stack and programs with the capabilities and the seccomp
// profile of a container. Without CAP_SYS_ADMIN, programs use TCP, and one sentence says why.
func TestContainerRights(t *testing.T) {
	if raceDetector {
		t.Skip("a program with cgo cannot give up capabilities")
	}
	l := newLab(t)
	server := l.server()
	addr := l.B.Addr() + ":5001"
	run := func(mode string) string {
		t.Helper()
		argv := contained(nil, bin("smcr"), "run", "--mode", mode, "-v", "--", bin("probe"), "client", addr, "2")
		p := l.A.Go(t, argv[0], argv[1:]...)
		if err := p.WaitOutput("holding 2 connections", startTime); err != nil {
			t.Fatal(err)
		}
		terminate(t, p)
		return p.Log()
	}
	for _, caps := range [][]string{nil, {"NET_ADMIN", "BPF"}} {
		stack := l.serveContained(l.A, caps...)
		for _, c := range []string{"NET_ADMIN", "BPF", "SYS_ADMIN"} {
			if lacks := strings.Contains(stack.Log(), "capability=CAP_"+c+" lost="); lacks == slices.Contains(caps, c) {
				t.Errorf("with %q: the log says that CAP_%s is missing: %v:\n%s", caps, c, lacks, stack.Log())
			}
		}
		const why = "connections of programs at the devices, so they stay TCP: "
		if log := run("auto"); strings.Count(log, "smcr: ") != 1 || !strings.HasPrefix(log, "smcr: all connections over TCP: ") || !strings.Contains(lastLine(log, why), "CAP_SYS_ADMIN") {
			t.Errorf("with %q: want one line, %q, that names CAP_SYS_ADMIN:\n%s", caps, why, log)
		}
		terminate(t, stack)
	}
	stack := l.serveContained(l.A, "NET_ADMIN", "BPF", "SYS_ADMIN")
	if strings.Contains(stack.Log(), "a capability is missing") {
		t.Errorf("it has what it needs:\n%s", stack.Log())
	}
	wantSummary(t, run("user"), 2)
	terminate(t, stack)
	terminate(t, server)
}
