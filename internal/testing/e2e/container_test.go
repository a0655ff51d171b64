// SPDX-License-Identifier: Apache-2.0

package e2e

import (
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

// TestContainerRights runs the stack and the launcher with the capabilities and the seccomp
// profile of a container. What they may do works; for everything else, programs use TCP and
// the launcher says why.
func TestContainerRights(t *testing.T) {
	if raceDetector {
		t.Skip("a program with cgo cannot give up capabilities")
	}
	l := newLab(t)
	server := l.server()
	addr := l.B.Addr() + ":5001"
	// over runs a client with the rights of a container, and wants its connections over TCP,
	// with a reason, or over SMC-R if the reason is empty.
	over := func(why string, caps ...string) {
		t.Helper()
		argv := contained(caps, bin("smcr"), "run", "--mode", "user", "-v", "--", bin("probe"), "client", addr, "2")
		p := l.A.Go(t, argv[0], argv[1:]...)
		if err := p.WaitOutput("holding 2 connections", startTime); err != nil {
			t.Fatal(err)
		}
		terminate(t, p)
		want := "2 connections over SMC-R, 0 over TCP"
		if why != "" {
			want = "0 connections over SMC-R, 2 over TCP"
		}
		if log := p.Log(); !strings.Contains(log, want) || !strings.Contains(log, why) {
			t.Errorf("with %q, want %q, %q:\n%s", caps, want, why, log)
		}
	}
	// Without pidfd_getfd, the program runs without a launcher.
	without := func() {
		t.Helper()
		argv := contained(nil, bin("smcr"), "run", "-v", "--", bin("probe"), "client", addr, "2")
		p := l.A.Go(t, argv[0], argv[1:]...)
		if err := p.WaitOutput("holding 2 connections", startTime); err != nil {
			t.Fatal(err)
		}
		terminate(t, p)
		if want := "the launcher cannot take the program's sockets: a sandbox or the kernel does not permit it: pidfd_getfd"; !strings.Contains(p.Log(), want) {
			t.Errorf("want %q:\n%s", want, p.Log())
		}
	}
	// Without options: no eBPF for the stack, and no pidfd_getfd for the launcher.
	stack := l.serveContained(l.A)
	for _, c := range []string{"CAP_NET_ADMIN", "CAP_BPF"} {
		if !strings.Contains(stack.Log(), "capability="+c+" lost=") {
			t.Errorf("the log does not say that %s is missing:\n%s", c, stack.Log())
		}
	}
	without()
	over("the TCP option of SMC is not permitted here", "SYS_PTRACE")
	terminate(t, stack)

	stack = l.serveContained(l.A, "NET_ADMIN", "BPF")
	if strings.Contains(stack.Log(), "a capability is missing") {
		t.Errorf("it has what it needs:\n%s", stack.Log())
	}
	without()
	over("", "SYS_PTRACE")
	terminate(t, stack)
	terminate(t, server)
}
