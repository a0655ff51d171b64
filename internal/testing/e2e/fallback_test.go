// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// holder is a server that sends a greeting on each connection and keeps the connection
// open.
const holder = `
import socket, sys
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
held = []
while True:
    c, _ = l.accept()
    c.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello\n")
    held.append(c)
`

// caller is a client that keeps its connection open.
const caller = `
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(c.recv(5), flush=True)
time.sleep(600)
`

// TestFallbackListed checks that connections of programs under smcr run that are plain
// TCP are listed with the reason while they exist: in smcr connection list, smcss,
// smc_chk and the counters.
func TestFallbackListed(t *testing.T) {
	t.Parallel()
	l := newLab(t, "curl", "python3", "setpriv")
	dir := t.TempDir()
	for _, name := range []string{"smcss", "smc_chk"} {
		if err := os.Symlink(bin("smcr"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	l.serve(l.B)
	remote := l.A.Addr() + ":8080"
	plain := l.A.Go(t, "python3", "-c", holder, l.A.Addr(), "8080") // without SMC
	server := l.under(l.B, "python3", "-c", holder, l.B.Addr(), "8081")
	for _, p := range []*netnstest.Process{plain, server} {
		if err := p.WaitOutput("listening", startTime); err != nil {
			t.Fatal(err)
		}
	}
	client := l.under(l.B, "curl", "-sN", "-m", "300", "http://"+remote+"/")
	in := l.A.Go(t, "python3", "-c", caller, l.B.Addr(), "8081")
	if err := errors.Join(client.WaitOutput("hello", startTime), in.WaitOutput("HTTP/", startTime)); err != nil {
		t.Fatal(err)
	}

	// rows returns the rows of a listing that have these values.
	rows := func(args []string, want map[string]string) (found []map[string]any, err error) {
		out, err := l.B.Output(t.Context(), args[0], args[1:]...)
		if err != nil {
			return nil, err
		}
		var all []map[string]any
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return nil, fmt.Errorf("%w in %q", err, out)
		}
		for _, r := range all {
			ok := true
			for k, v := range want {
				ok = ok && fmt.Sprint(r[k]) == v
			}
			if ok {
				found = append(found, r)
			}
		}
		return found, nil
	}
	list := []string{bin("smcr"), "--backend", "user", "connection", "list", "--all", "-o", "json"}
	reason := func(r map[string]any) string {
		f, _ := r["fallback"].(map[string]any)
		return fmt.Sprint(f["reason"], " ", f["text"])
	}
	one := func(args []string, want map[string]string) map[string]any {
		t.Helper()
		var row map[string]any
		if err := netnstest.Until(settleTime, func() error {
			found, err := rows(args, want)
			if err == nil && len(found) != 1 {
				err = fmt.Errorf("%d rows with %v", len(found), want)
			}
			if err == nil {
				row = found[0]
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return row
	}
	const noSMC = "0x03010000 the peer does not speak SMC"
	r := one(list, map[string]string{"remote": remote, "mode": "TCP", "state": "ACTIVE"})
	if reason(r) != noSMC || r["command"] != "curl" || fmt.Sprint(r["pid"]) == "<nil>" {
		t.Errorf("client: %v", r)
	}
	r = one(list, map[string]string{"local": l.B.Addr() + ":8081", "mode": "TCP", "state": "ACTIVE"})
	if reason(r) != noSMC || r["command"] != "python3" {
		t.Errorf("server: %v", r)
	}
	if r = one(list, map[string]string{"state": "LISTEN"}); r["local"] != l.B.Addr()+":8081" || r["fallback"] != nil || r["command"] != "python3" {
		t.Errorf("listener: %v", r)
	}
	if out := l.smcr(l.B, "connection", "list", "--backend", "user"); strings.Contains(out, "LISTEN") || strings.Count(out, "the peer does not speak SMC") != 2 {
		t.Errorf("connection list:\n%s", out)
	}

	// Another user sees the same as with ss.
	nobody := append([]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}, list...)
	if r = one(nobody, map[string]string{"remote": remote, "mode": "TCP"}); reason(r) != noSMC || r["pid"] != nil || r["command"] != nil {
		t.Errorf("seen by another user: %v", r)
	}

	// The programs of smc-tools.
	out, err := l.B.Output(t.Context(), filepath.Join(dir, "smcss"), "-a")
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"LISTEN", l.A.Addr() + ":8080", l.B.Addr() + ":8081"} {
		if !strings.Contains(out, want) {
			t.Errorf("smcss -a shows no %s:\n%s", want, out)
		}
	}
	if strings.Count(out, "0000 TCP 0x03010000\n") != 2 {
		t.Errorf("smcss -a:\n%s", out)
	}
	out, err = l.B.Output(t.Context(), filepath.Join(dir, "smc_chk"), "-C", l.A.Addr(), "-p", "8080")
	if want := "Failed  (TCP fallback), reasons:\n          Client:        0x03010000   the peer does not speak SMC\n"; err != nil || !strings.Contains(out, want) {
		t.Errorf("smc_chk -C: %v\n%s", err, out)
	}

	// There is no RoCE device. This reason needs no peer.
	l.smcr(l.B, "--backend", "user", "pnet", "add", "NET1", "-I", "eth0")
	l.smcr(l.B, "--backend", "user", "pnet", "add", "NET2", "-D", "soft-eth0")
	second := l.under(l.B, "curl", "-sN", "-m", "300", "http://"+remote+"/")
	if err := second.WaitOutput("hello", startTime); err != nil {
		t.Fatal(err)
	}
	var noDevice map[string]any
	if err := netnstest.Until(settleTime, func() error {
		found, err := rows(list, map[string]string{"remote": remote, "mode": "TCP"})
		for _, r := range found {
			if reason(r) == "0x03030002 no SMC-R device" {
				noDevice = r
			}
		}
		if err == nil && noDevice == nil {
			err = fmt.Errorf("none without device in %v", found)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	counts := map[string]int{}
	var stats []struct {
		Fallbacks struct {
			Reasons []struct {
				Side, Reason, Text string
				Count              int
			}
		}
	}
	if err := json.Unmarshal([]byte(l.smcr(l.B, "--backend", "user", "stats", "-o", "json")), &stats); err != nil || len(stats) != 1 {
		t.Fatal(err, stats)
	}
	for _, r := range stats[0].Fallbacks.Reasons {
		counts[r.Side+" "+r.Reason+" "+r.Text] = r.Count
	}
	// The clients are curl and the client of smc_chk. A server's that do not announce SMC are not counted.
	for what, n := range map[string]int{"client " + noSMC: 2, "server " + noSMC: 0, "client 0x03030002 no SMC-R device": 1} {
		if counts[what] != n {
			t.Errorf("%s: counted %d times, want %d: %v", what, counts[what], n, counts)
		}
	}

	// Connections that have ended are not listed.
	for _, p := range []*netnstest.Process{client, second, server, in} {
		if err := p.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		_ = p.Wait(endTime) // the programs end with the status of an interrupt
	}
	if err := netnstest.Until(settleTime, func() error {
		left, err := rows(list, nil)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("still listed: %v", left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
