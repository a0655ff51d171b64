// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// TestReadOnlyCgroups: as in a container, nobody can make a cgroup. Where the stack has the programs of a cgroup from the start on,
// smcr run and smcr check need none; elsewhere they say what is missing.
func TestReadOnlyCgroups(t *testing.T) {
	l := newLab(t, "/usr/bin/python3", "tshark", "unshare")
	dir := session(t)
	l.serve(l.A)
	server := l.wireServer(l.A)
	sealed := []string{"unshare", "--mount", "/bin/sh", "-c", `mount -o remount,bind,ro "$0" && exec "$@"`, cgroupTop(t)}
	inside := append(inCgroup(dir), sealed...)
	begin := func(args ...string) *netnstest.Process {
		t.Helper()
		p := l.B.Go(t, inside[0], append(append(slices.Clone(inside[1:]), bin("smcr"), "serve", "--no-default-eid"), args...)...)
		if err := p.WaitOutput("msg=serving", startTime); err != nil {
			t.Fatal(err)
		}
		return p
	}
	check := func() (string, error) {
		argv := append(slices.Clone(inside), bin("smcr"), "check", l.A.Addr()+":7500")
		return l.B.Output(t.Context(), argv[0], argv[1:]...)
	}
	stack := begin("--cgroup", dir)
	for _, mode := range []string{"user", "auto"} {
		if errs := l.wireHalf(true, append(slices.Clone(inside), bin("smcr"), "run", "--mode", mode, "--")...); errs != "" {
			t.Errorf("mode %s: smcr run prints %q", mode, errs)
		}
	}
	if errs := l.wireHalf(true, append(slices.Clone(inside), bin("smcr"), "run", "-v", "--mode", "user", "--")...); !strings.Contains(errs, "attached as a whole") {
		t.Errorf("smcr run -v prints %q", errs)
	}
	if out, err := check(); err != nil || !strings.Contains(out, "ok       clc     SMC-R") {
		t.Errorf("smcr check: %v\n%s", err, out)
	}
	terminate(t, stack)
	stack = begin()
	if errs := l.wireHalf(false, append(slices.Clone(inside), bin("smcr"), "run", "--")...); !strings.Contains(errs, "smcr: all connections over TCP: ") {
		t.Errorf("smcr run prints %q", errs)
	}
	if out, err := check(); err == nil || !strings.Contains(out+err.Error(), "FAILED   tcp     the connections of this process cannot use the stack: ") {
		t.Errorf("smcr check: %v\n%s", err, out)
	}
	terminate(t, stack)
	server.Kill()
}
