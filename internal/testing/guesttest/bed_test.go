// SPDX-License-Identifier: Apache-2.0

package guesttest

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

// commandLimit bounds each command in a guest.
const commandLimit = time.Minute

// A host is a guest with the programs of the tests.
type host struct {
	*guest.Guest
	smcr, peer, tests string // programs, by the names of their files in the guest
	addr, addr6       string // of eth0
}

// bed returns the pair of guests that all tests share.
func bed(t *testing.T) (a, b *host) {
	t.Helper()
	ga, gb := guest.Pair(t)
	t.Logf("Linux %s, boots took %v and %v", ga.Kernel(), ga.BootTime(), gb.BootTime())
	dir := t.TempDir()
	built := func(name, pkg string, build func(context.Context, string, string) error) string {
		file := filepath.Join(dir, name)
		if err := build(t.Context(), pkg, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	smcr := built("smcr", "smcr/cmd/smcr", guest.Build)
	peer := built("smcpeer", "smcr/internal/testing/programs/smcpeer", guest.Build)
	tests := built("inguest.test", "smcr/internal/testing/guest/inguest", guest.BuildTest)
	furnish := func(g *guest.Guest, addr, addr6 string) *host {
		push := func(file string) string {
			name, err := g.Push(file)
			if err != nil {
				t.Fatal(err)
			}
			return name
		}
		return &host{Guest: g, smcr: push(smcr), peer: push(peer), tests: push(tests), addr: addr, addr6: addr6}
	}
	return furnish(ga, "10.7.0.1", "fd07::1"), furnish(gb, "10.7.0.2", "fd07::2")
}

// run runs a command that must succeed and returns what it wrote.
func (h *host) run(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	r, err := h.Run(ctx, argv...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", h.Name(), err, r.Stdout)
	}
	return r.Stdout
}

// fails runs a command that must end with this status, and returns its standard error.
func (h *host) fails(t *testing.T, status int, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	r, err := h.Run(ctx, argv...)
	var exit *guest.ExitError
	if !errors.As(err, &exit) || exit.Status != status {
		t.Errorf("%s: %q: got %v, want exit status %d", h.Name(), argv, err, status)
	}
	if r.Stdout != "" {
		t.Errorf("%s: %q writes %q", h.Name(), argv, r.Stdout)
	}
	return r.Stderr
}

// start starts a command and waits until it has written ready. It returns a function that
// kills the command. The end of the test kills it too.
func (h *host) start(t *testing.T, ready string, argv ...string) (kill func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), commandLimit)
	c := h.Command(argv...)
	if err := c.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	kill = func() {
		cancel()
		// The error is that the command was killed.
		_, _ = c.Wait(ctx)
	}
	t.Cleanup(kill)
	if err := c.WaitStdout(ctx, ready); err != nil {
		t.Fatalf("%s: %v", h.Name(), err)
	}
	return kill
}

// query returns the rows of a list in JSON.
func query[T any](t *testing.T, h *host, argv ...string) []T {
	t.Helper()
	argv = append(append([]string{h.smcr}, argv...), "--backend", "kernel", "-o", "json")
	out := h.run(t, argv...)
	var rows []T
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%s: %q: %v\n%s", h.Name(), argv, err, out)
	}
	return rows
}

// queryOne is query for a list with exactly one row.
func queryOne[T any](t *testing.T, h *host, argv ...string) T {
	t.Helper()
	rows := query[T](t, h, argv...)
	if len(rows) != 1 {
		t.Fatalf("%s: %q: got %+v, want one row", h.Name(), argv, rows)
	}
	return rows[0]
}

// setUp makes a host an SMC-Rv2 node on eth0, with commands of smcr where they exist.
func (h *host) setUp(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, err := range []error{
		h.LoadSMC(ctx),
		h.AddAddr(ctx, "eth0", h.addr+"/24"),
		h.AddRXE(ctx, "rxe0", "eth0"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// Without duplicate address detection the address can be used at once.
	h.run(t, "ip", "addr", "add", h.addr6+"/64", "dev", "eth0", "nodad")
	h.run(t, h.smcr, "pnet", "add", "SMC1", "-I", "eth0", "-D", "rxe0", "--backend", "kernel")
	h.run(t, h.smcr, "ueid", "add", "SMCV2-EXAMPLE-UEID", "--backend", "kernel")
}

// passed checks the verbose output of a test binary: tests ran, and none failed or was
// skipped.
func passed(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, bad := range []string{"--- FAIL", "--- SKIP"} {
		if strings.Contains(out, bad) {
			t.Errorf("%s in\n%s", bad, out)
		}
	}
	for _, name := range want {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}
}
