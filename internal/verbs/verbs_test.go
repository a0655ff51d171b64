// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/testing/netnstest"
)

// TestMain turns the test binary into the command, for the processes that tests start in
// other network namespaces.
func TestMain(m *testing.M) {
	if os.Getenv("SMCR_TEST_VERBS") == "" {
		os.Exit(m.Run())
	}
	cmd := NewCmd(cmdutil.NewFactory("test"))
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(os.Args[1:])
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(cmdutil.ExitCode(err))
	}
	os.Exit(0)
}

func runIn(t *testing.T, h *netnstest.Host, args ...string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := h.Command(ctx, self, args...)
	cmd.Env = append(os.Environ(), "SMCR_TEST_VERBS=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%q: %w: %s", args, err, stderr.String())
	}
	return string(out), err
}

// runBoth runs a test as server on host A and as client on host B, with options for each.
// It returns the JSON output of both.
func runBoth(t *testing.T, p *netnstest.Pair, server, client []string) (fromServer, fromClient []map[string]any) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// With the option for tables, the server prints when it listens.
	cmd := p.A.Command(ctx, self, server...)
	cmd.Env = append(os.Environ(), "SMCR_TEST_VERBS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "waiting for a client") {
		t.Errorf("the server says %q", lines.Text())
	}
	text, err := runIn(t, p.B, append(append(client, "-o", "json"), p.A.Addr())...)
	if err != nil {
		cancel()
		_ = cmd.Wait()
		t.Fatal(err)
	}
	var table []string
	for lines.Scan() {
		table = append(table, lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("server: %v", err)
	}
	if err := json.Unmarshal([]byte(text), &fromClient); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, l := range table {
		fromServer = append(fromServer, map[string]any{"line": l})
	}
	return fromServer, fromClient
}

func TestLists(t *testing.T) {
	netnstest.Require(t)
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	text, err := runIn(t, p.A, "devices", "-o", "json", "--device", "eth0")
	if err != nil {
		t.Fatal(err)
	}
	var devices []deviceJSON
	if err := json.Unmarshal([]byte(text), &devices); err != nil || len(devices) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if d := devices[0]; d.Device != "soft-eth0" || d.NetDev != "eth0" || d.State != "ACTIVE" || d.ActiveMTU != 4096 || d.GIDs < 3 {
		t.Errorf("%+v", d)
	}
	if text, err = runIn(t, p.A, "gids", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	var gids []gidJSON
	if err := json.Unmarshal([]byte(text), &gids); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	found := 0
	for _, g := range gids {
		if g.Device == "soft-eth0" && g.Addr == p.A.Addr() {
			found++
		}
	}
	if found != 2 {
		t.Errorf("%d GIDs of %s, want one of each version: %s", found, p.A.Addr(), text)
	}
}

// TestTests runs each test between two hosts, over both versions of RoCE.
func TestTests(t *testing.T) {
	netnstest.Require(t)
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	gids := []string{"-1", "0"}
	if testing.Short() {
		gids = gids[:1]
	}
	for _, gid := range gids {
		args := []string{"pingpong", "-c", "-n", "30", "-s", "70001", "-m", "2048", "-g", gid, "--timeout", "10s"}
		_, r := runBoth(t, p, args, args)
		if len(r) != 1 || r[0]["checked"] != 30.0 || r[0]["bytes"] != 2*30*70001.0 || r[0]["mtu"] != 2048.0 {
			t.Errorf("pingpong: %v", r)
		}
		for _, c := range programs {
			args := []string{"perf", c.name, "-n", "40", "-s", "3000", "-x", gid, "--timeout", "10s"}
			table, r := runBoth(t, p, args, args)
			if len(r) != 1 || r[0]["size"] != 3000.0 || r[0]["iterations"] != 40.0 {
				t.Errorf("%s: %v", c.name, r)
			}
			want := 3 // the endpoints, the header and the row
			if c.name == "read-lat" {
				want = 1 // the server prints only the endpoints
			}
			if len(table) != want {
				t.Errorf("%s server: %v", c.name, table)
			}
		}
	}
	args := []string{"perf", "write-bw", "-D", "1", "--timeout", "10s"}
	if _, r := runBoth(t, p, args, args); len(r) != 1 || r[0]["iterations"].(float64) < 5 {
		t.Errorf("write-bw -D 1: %v", r)
	}
}

// TestUsage checks that wrong command lines end with the status of a usage error.
func TestUsage(t *testing.T) {
	netnstest.Require(t)
	p := netnstest.New(t, netnstest.Options{})
	for _, c := range []struct {
		args, says string
	}{
		{"pingpong a b", `expected one HOST, unexpected argument "b"`},
		{"pingpong -s 0", "out of range"},
		{"pingpong -m 1000", "choose 256"},
		{"pingpong -i 2", "only port 1"},
		{"perf write-bw -n 4", "at least 5"},
		{"perf write-bw -q 2", "one queue pair"},
		{"perf write-bw -a -D 1", "duration"},
		{"perf read-lat --timeout 0s", "must be more than 0"},
	} {
		_, err := runIn(t, p.A, strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), "exit status 2") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}
