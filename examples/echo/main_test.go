// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

const limit = testkind.Patience

var group = regexp.MustCompile(`SMC-R version [12], link group ([0-9a-f]+) \((\w+)\)`)

// smcrRun returns what a command of smcr prints.
func smcrRun(t *testing.T, h *netnstest.Host, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := h.Output(ctx, args[0], args[1:]...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out
}

// TestListed runs a server and a client with a stack each on two hosts: 'smcr
// linkgroup list' prints the link group that they name, at the place that they
// were given.
func TestListed(t *testing.T) {
	dir := t.TempDir()
	if err := built.Programs(t.Context(), dir, "smcr/cmd/smcr", "smcr/examples/echo"); err != nil {
		t.Fatal(err)
	}
	echo, smcr := filepath.Join(dir, "echo"), filepath.Join(dir, "smcr")
	hosts := netnstest.New(t, netnstest.Options{})
	a, b := hosts.A, hosts.B

	own := filepath.Join(dir, "control")
	server := a.Go(t, echo, "-listen", ":7777")
	if err := server.WaitOutput("listening on", limit); err != nil {
		t.Fatal(err, server.Log())
	}
	cmd := b.Command(context.Background(), echo, "-require", "-control", own, a.Addr()+":7777")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	client := b.GoCmd(t, cmd)
	if _, err := io.WriteString(in, "over RDMA\n"); err != nil {
		t.Fatal(err)
	}
	if err := client.WaitOutput("over RDMA", limit); err != nil {
		t.Fatal(err, client.Log())
	}

	for _, tt := range []struct {
		host *netnstest.Host
		log  string
		args []string
		role string
	}{
		{a, server.Log(), []string{smcr}, "SERV"},
		{b, client.Log(), []string{smcr, "--backend", "unix:" + own}, "CLNT"},
	} {
		m := group.FindStringSubmatch(tt.log)
		if m == nil {
			t.Fatalf("no link group in %q", tt.log)
		}
		table := smcrRun(t, tt.host, append(tt.args, "linkgroup", "list")...)
		t.Logf("%s:\n%s%s", tt.role, tt.log, table)
		if m[2] != tt.role || !strings.Contains(table, m[1]) {
			t.Errorf("%s: no group %q in\n%s", tt.role, m, table)
		}
		var rows []struct {
			ID   string `json:"id"`
			Role string `json:"role"`
		}
		if err := json.Unmarshal([]byte(smcrRun(t, tt.host, append(tt.args, "linkgroup", "list", "--output", "json")...)), &rows); err != nil {
			t.Fatal(err)
		}
		if len(rows) != 1 || rows[0].ID != m[1] || rows[0].Role != tt.role {
			t.Errorf("%s: rows %+v, want group %s", tt.role, rows, m[1])
		}
	}

	// The server has the place of the network namespace: another is told so.
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	second := a.Command(ctx, echo, "-listen", ":7778")
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another stack already answers") || !strings.Contains(string(out), "-control ADDRESS") {
		t.Errorf("a second one: %v, %s", err, out)
	}
	third := a.Command(ctx, smcr, "serve")
	if out, err := third.CombinedOutput(); err == nil || !strings.Contains(string(out), "already running in this network namespace") {
		t.Errorf("smcr serve beside it: %v, %s", err, out)
	}

	fourth := a.Command(ctx, smcr, "run", "--mode", "user", "--", "true")
	if out, err := fourth.CombinedOutput(); err == nil || !strings.Contains(string(out), "belongs to another program") {
		t.Errorf("smcr run beside it: %v, %s", err, out)
	}

	// With an address of its own it runs beside the first.
	beside := a.Go(t, echo, "-direct", "-listen", ":7778", "-control", filepath.Join(dir, "beside"))
	if err := beside.WaitOutput("listening on", limit); err != nil {
		t.Fatal(err, beside.Log())
	}
	for _, port := range []string{":7777", ":7778"} {
		cmd := b.Command(ctx, echo, "-require", a.Addr()+port)
		cmd.Stdin = strings.NewReader("side by side\n")
		out, err := cmd.CombinedOutput()
		if err != nil || !group.Match(out) || !strings.Contains(string(out), "side by side\n") {
			t.Errorf("port %s: %v\n%s", port, err, out)
		}
	}

	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := client.Wait(limit); err != nil {
		t.Errorf("client: %v\n%s", err, client.Log())
	}
}
