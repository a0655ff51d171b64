// SPDX-License-Identifier: Apache-2.0

package cli

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

// TestKernel runs the commands that change, check and list, with the SMC of a Linux
// kernel, on two hosts with soft-RoCE.
func TestKernel(t *testing.T) {
	t.Parallel() // it waits for the guests most of the time
	guest.SkipShort(t)
	if err := guest.Available(); err != nil {
		guest.Check(t, err)
	}
	smcr := filepath.Join(t.TempDir(), "smcr")
	if err := guest.Build(t.Context(), "smcr/cmd/smcr", smcr); err != nil {
		t.Fatal(err)
	}
	// Under this name the test binary is the server, see TestMain.
	swallow := filepath.Join(t.TempDir(), "swallow")
	if err := guest.BuildTest(t.Context(), "smcr/internal/cli", swallow); err != nil {
		t.Fatal(err)
	}
	a, b := guest.Pair(t)
	program := map[*guest.Guest]string{}
	for g, addr := range map[*guest.Guest]string{a: "10.0.0.1/24", b: "10.0.0.2/24"} {
		path, err := g.Push(smcr)
		if err != nil {
			t.Fatal(err)
		}
		program[g] = path
		for _, err := range []error{g.LoadSMC(t.Context()), g.AddAddr(t.Context(), "eth0", addr), g.AddRXE(t.Context(), "rxe0", "eth0")} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// run runs smcr and returns its exit status and output.
	run := func(g *guest.Guest, input string, args ...string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := g.Command(append([]string{program[g], "--backend", "kernel"}, args...)...)
		c.Stdin = []byte(input)
		r, err := c.Run(ctx)
		var exit *guest.ExitError
		switch {
		case err == nil:
			return 0, r.Stdout
		case errors.As(err, &exit):
			return exit.Status, r.Stdout + r.Stderr
		}
		t.Fatal(err)
		return 0, ""
	}
	expect := func(status int, out string, wantStatus int, want ...string) {
		t.Helper()
		t.Logf("exit status %d:\n%s", status, out)
		if status != wantStatus {
			t.Errorf("exit status %d, want %d", status, wantStatus)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in:\n%s", w, out)
			}
		}
	}

	path, err := b.Push(swallow)
	if err != nil {
		t.Fatal(err)
	}
	server := b.Command(path, "10.0.0.2:7001", "smc")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	// await waits for a line of a program: an emulated guest may take a minute for each.
	await := func(c *guest.Cmd, line string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := c.WaitStdout(ctx, line); err != nil {
			t.Fatal(err)
		}
	}
	await(server, "ready")

	// The kernel has no enterprise ID, and these devices do not support version 1.
	status, out := run(a, "", "check", "10.0.0.2:7001")
	expect(status, out, 1, "ok       eid     none:", "FAILED   device  rxe0 port 1 has only RoCE version 2 GIDs, ")

	// The output of export is valid input for apply.
	status, empty := run(a, "", "export")
	expect(status, empty, 0, "pnetids: []\n", "ueids: []\n", "handshake_limitation: false\n")
	const want = `pnetids:
  - pnetid: NET1
    netdev: eth0
  - pnetid: NET1
    ibdev: rxe0
    ibport: 1
  - pnetid: NET1
    netdev: later0
  - pnetid: NET2
    netdev: later1
ueids:
  - SMCR-TEST.1
  - SMCR-TEST.2
handshake_limitation: true
`
	for _, g := range []*guest.Guest{a, b} {
		status, out = run(g, want, "apply", "-")
		expect(status, out, 0, "+ pnetid NET1 netdev eth0\n", "+ ueid SMCR-TEST.1\n", "= handshake_limitation true\n")
		status, out = run(g, want, "apply", "-")
		expect(status, out, 0, "nothing to change\n")
	}
	if status, out = run(a, "", "export"); status != 0 || out != want {
		t.Errorf("%d, exported:\n%s", status, out)
	}

	// The kernel refuses a change in the middle, because it has no system enterprise ID.
	status, out = run(a, "pnetids: [{pnetid: NET3, netdev: later1}]\nueids: [OTHER]\nseid: false\n", "apply", "-")
	expect(status, out, 1, "cannot set seid to false: ", "; nothing was changed\n")
	status, out = run(a, want, "apply", "--dry-run", "-")
	expect(status, out, 0, "nothing to change\n")

	// One device is removed. The pnetid keeps the others.
	status, out = run(a, strings.Replace(want, "  - pnetid: NET1\n    netdev: later0\n", "", 1), "apply", "-")
	expect(status, out, 0, "- pnetid NET1 netdev later0\n")
	status, out = run(a, "", "pnet", "list", "--pnetid", "net1")
	expect(status, out, 0, "NET1     eth0", "NET1     -        rxe0")

	// The check succeeds now.
	status, out = run(a, "", "check", "10.0.0.2:7001")
	expect(status, out, 0, "ok       eid     SMCR-TEST.1, SMCR-TEST.2: ", "pnetid NET1 as netdev eth0\n", "ok       option  ", "ok       clc     SMC-R")
	status, out = run(a, "", "check", "10.0.0.2:7002")
	expect(status, out, 1, "FAILED   tcp     no connection to 10.0.0.2:7002: connection refused\n")

	// What carries the connections of a program with SMC sockets, and of one with TCP sockets.
	talk := []string{"python3", "-c", "import socket, time\nc = socket.create_connection(('10.0.0.2', 7001))\nprint('connected', flush=True)\nwhile True: c.sendall(b'x'); time.sleep(0.1)"}
	for _, argv := range [][]string{append([]string{program[a], "run", "--mode", "kernel", "--"}, talk...), talk} {
		c := a.Command(argv...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		await(c, "connected")
	}
	status, out = run(a, "", "why", "10.0.0.2:7001")
	expect(status, out, 0, "Carried by:   SMC-R by the kernel, RDMA device rxe0\n", "user root\n", "Why:          both sides speak SMC",
		"Carried by:   TCP\n", "the socket is one of TCP, and the kernel's SMC carries its own", "'smcr run -- python3 ...'")
	status, out = run(b, "", "why", ":7001")
	expect(status, out, 0, "Announces:    SMC-R by the kernel\n", "10.0.0.2:7001, accepted from 10.0.0.1:", "Carried by:   SMC-R by the kernel, RDMA device rxe0\n")

	status, out = run(a, "", "rnics", "-o", "json")
	var rows []struct {
		IBDev, NetDev, State, Driver, PNETID string
		Layer                                string `json:"link_layer"`
		GIDs                                 []any
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil || status != 0 || len(rows) != 1 {
		t.Fatalf("rnics: %d, %v\n%s", status, err, out)
	}
	if r := rows[0]; r.IBDev != "rxe0" || r.NetDev != "eth0" || r.State != "ACTIVE" || r.Driver != "rdma_rxe" || r.PNETID != "NET1" || r.Layer != "Ethernet" || len(r.GIDs) == 0 {
		t.Errorf("rnics: %+v", r)
	}
	status, out = run(a, empty, "apply", "-")
	expect(status, out, 0, "- ueid SMCR-TEST.2\n", "= handshake_limitation false\n")
}
