// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// resets is the number of connections that TestResets resets, half of them by clients and
// half by servers.
func resets(t *testing.T) int {
	s := os.Getenv("SMCR_E2E_RESETS")
	if s == "" {
		return 6000
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 2 {
		t.Fatalf("SMCR_E2E_RESETS=%q: how many connections?", s)
	}
	return n
}

// process has the resources of the process of a stack.
type process struct {
	descriptors int
	rss         int // KiB
	panics      int
	groups      int
}

func (l *lab) process(h *netnstest.Host, stack *netnstest.Process) (p process, err error) {
	if p.descriptors, err = descriptors(stack.Pid()); err != nil {
		return p, err
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", stack.Pid()))
	if err != nil {
		return p, err
	}
	if m := regexp.MustCompile(`(?m)^VmRSS:\s*(\d+) kB`).FindSubmatch(b); m != nil {
		p.rss, _ = strconv.Atoi(string(m[1]))
	}
	out, err := l.try(h, "--backend", "user", "stats", "show", "--output", "json")
	if err != nil {
		return p, err
	}
	var rows []struct {
		Panics *int `json:"panics"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 || rows[0].Panics == nil {
		return p, netnstest.Stop(fmt.Errorf("no number of panics in %s: %v", out, err))
	}
	p.panics = *rows[0].Panics
	p.groups, _, err = l.groupConns(h)
	return p, err
}

// goroutines makes a stack end with its goroutines in the log. It returns their number
// and the log.
func goroutines(t *testing.T, stack *netnstest.Process) (int, string) {
	t.Helper()
	if err := stack.Signal(unix.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stack.Done():
	case <-time.After(endTime):
		t.Fatal("the stack does not end on SIGQUIT")
	}
	log := stack.Log()
	_, dump, _ := strings.Cut(log, "SIGQUIT: quit")
	return len(regexp.MustCompile(`(?m)^goroutine [1-9]\d* `).FindAllString(dump, -1)), dump
}

// TestResets: hosts on the LAN announce SMC and reset their connections at random moments
// of the handshake, as clients and as servers. The stack loses only these connections.
func TestResets(t *testing.T) {
	l := newLab(t)
	n := resets(t)
	limit := time.Minute + time.Duration(n)*10*time.Millisecond
	stack := l.serve(l.A, "--log-level", "warn")
	l.serve(l.B)

	// Warm up: this fills pools and opens devices.
	l.wantWorks()
	l.wantNoConnections(l.A)
	before, err := l.process(l.A, stack)
	if err != nil {
		t.Fatal(err)
	}
	clean := l.idleGoroutines()

	start := time.Now()
	seed := fmt.Sprint(start.UnixNano() % 1e6)
	run := func(args ...string) *netnstest.Process {
		// It runs without -v, which prints a line for each of the many reasons.
		return l.A.Go(t, bin("smcr"), append([]string{"run", "--mode", "user", "--no-adapt", "--", bin("resets")}, args...)...)
	}
	victim := run("listen", l.A.Addr()+":8001")
	if err := victim.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	servers := l.B.Go(t, bin("resets"), "attack-client", l.B.Addr()+":8002", seed)
	if err := servers.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	clients := l.B.Go(t, bin("resets"), "attack-server", l.A.Addr()+":8001", fmt.Sprint(n/2), seed)
	client := run("connect", l.B.Addr()+":8002", fmt.Sprint(n-n/2))
	for _, p := range []*netnstest.Process{clients, client} {
		select {
		case <-p.Done():
		case <-stack.Done():
			t.Fatalf("seed %s: the stack has ended:\n%s", seed, tail(stack.Log(), 8000))
		case <-time.After(limit):
		}
		if err := p.Wait(time.Second); err != nil {
			t.Fatalf("seed %s: %v\n%s\nthe stack:\n%s", seed, err, p.Log(), tail(stack.Log(), 4000))
		}
	}
	took := time.Since(start)
	terminate(t, servers)
	terminate(t, victim)
	select {
	case <-stack.Done():
		t.Fatalf("seed %s: the stack has ended:\n%s", seed, tail(stack.Log(), 8000))
	default:
	}
	if m := regexp.MustCompile(`(\d+) connections reset, (\d+) could`).FindStringSubmatch(clients.Log()); m == nil || m[1] == "0" || m[2] != "0" {
		t.Errorf("the clients: %s", clients.Log())
	}
	if m := regexp.MustCompile(`(\d+) connections reset`).FindStringSubmatch(servers.Log()); m == nil || m[1] == "0" {
		t.Errorf("the servers: %s", servers.Log())
	}
	l.wantNoConnections(l.A)
	// Link groups of first contacts without an answer exist for some seconds.
	var after process
	if err := netnstest.Until(time.Minute, func() error {
		if after, err = l.process(l.A, stack); err != nil {
			return err
		}
		if after.descriptors > before.descriptors+8 || after.groups > before.groups {
			return fmt.Errorf("the stack holds %+v, before it held %+v", after, before)
		}
		return nil
	}); err != nil {
		t.Errorf("seed %s: %v", seed, err)
	}
	if after.panics != 0 {
		t.Errorf("seed %s: %d panics\n%s", seed, after.panics, tail(stack.Log(), 8000))
	}
	// This allows for memory that a stack keeps for reuse, and for garbage.
	if grown := after.rss - before.rss; grown > 256<<10 {
		t.Errorf("seed %s: %d KiB of memory more than before", seed, grown)
	}
	l.wantWorks()
	l.wantNoConnections(l.A)
	left, dump := goroutines(t, stack)
	t.Logf("%d resets in %v (seed %s): before %+v, after %+v; goroutines %d, of a stack without resets %d\n%s%s", n, took.Round(time.Second), seed, before, after, left, clean, clients.Log(), client.Log()+servers.Log())
	if left > clean+8 {
		t.Errorf("%d goroutines are left, without resets it is %d:\n%s", left, clean, tail(dump, 12000))
	}
}

// idleGoroutines returns the number of goroutines of a stack after all its connections
// have ended.
func (l *lab) idleGoroutines() int {
	l.t.Helper()
	n := 0
	l.t.(*testing.T).Run("without resets", func(t *testing.T) {
		l := newLab(t)
		stack := l.serve(l.A, "--log-level", "warn")
		l.serve(l.B)
		l.wantWorks()
		l.wantNoConnections(l.A)
		n, _ = goroutines(t, stack)
	})
	return n
}
