// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// TestMain: the runs start this program, which is the test here.
func TestMain(m *testing.M) {
	maybeChild()
	os.Exit(m.Run())
}

// find makes a run, and fails if it finds anything.
func find(t *testing.T, args ...string) {
	t.Helper()
	netnstest.Require(t, "nsenter", "setpriv", "python3")
	ok, err := run(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Error("the run has found something: see the summary")
	}
}

// TestConnections: what the processes have does not grow with the number of connections.
func TestConnections(t *testing.T) {
	if testing.Short() {
		find(t, "connections", "-n", "300", "-first", "100", "-step", "300") // two samples
		return
	}
	find(t, "connections", "-n", "9000", "-first", "3000", "-step", "3000")
}

// TestOpen: connections that are open at the same time carry bytes, and nothing remains of
// them.
func TestOpen(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	find(t, "open", "-n", "1000")
}

// TestFloods: whatever one source sends, others connect, and no connection is lost. One flood
// each of a host, a peer and a user; `make flood` has all of them.
func TestFloods(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	find(t, "flood", "-time", "6s", "-run", "PROPOSALs never|LLC|requests")
}

// TestFigures: what a flood costs others, of one that the kernel answers and one that the stack does.
func TestFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	find(t, "flood", "-time", "6s", "-table", "-rate", "500", "-run", "nothing|SYN-ACKs|200 addresses")
}

// TestRounds: of what comes and goes, nothing is left that grows from round to round: connections that carry bytes, are reset,
// declined, refused or time out, first contacts that are left, and takeovers.
func TestRounds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	for _, k := range roundKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			find(t, "rounds", "-rounds", "4", "-warm", "2", "-run", "^"+regexp.QuoteMeta(k.name)+"$")
		})
	}
}

// TestCells: the cells of the table are those of its head, and say what was counted.
func TestCells(t *testing.T) {
	var out strings.Builder
	printFigures(&out, []*Row{{Fault: "none"}, {Fault: "one", Figures: &figures{
		took: 2 * time.Second, sent: 1000, trips: traffic.Times{40: 3}, made: 4, smc: 3, connects: traffic.Times{80: 4}, lost: 1, hung: 1, stacks: time.Second, busy: 1, allClock: 4,
	}}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || strings.Count(lines[0], "|") != strings.Count(lines[2], "|") || strings.Count(lines[1], "|") != strings.Count(lines[2], "|") {
		t.Fatalf("%q", lines)
	}
	for _, want := range []string{"| one | 500 | 3 | ", " | 0 | 4 | 75 % | ", " | 2 | 50 % | 25 % |"} {
		if !strings.Contains(lines[2], want) {
			t.Errorf("%q is not in %q", want, lines[2])
		}
	}
}

// TestSoak: traffic under faults for a minute.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two minutes")
	}
	find(t, "-time", "1m", "-seed", "14")
}

// TestGrown: growth beyond a margin is found, and nothing else.
func TestGrown(t *testing.T) {
	before := gauge.Sample{Descriptors: 50, Threads: 10, RSS: 40 << 20, Mapped: 200 << 20, Goroutines: 20, Heap: 3 << 20, Entries: 5}
	if list := grown(before, before); len(list) > 0 {
		t.Errorf("nothing has grown: %q", list)
	}
	for what, change := range map[string]func(*gauge.Sample, int64){
		"descriptors":              func(s *gauge.Sample, n int64) { s.Descriptors += margins.Descriptors + int(n) },
		"threads":                  func(s *gauge.Sample, n int64) { s.Threads += margins.Threads + int(n) },
		"goroutines":               func(s *gauge.Sample, n int64) { s.Goroutines += margins.Goroutines + int(n) },
		"bytes of heap":            func(s *gauge.Sample, n int64) { s.Heap += margins.Heap + n },
		"bytes of resident memory": func(s *gauge.Sample, n int64) { s.RSS += margins.RSS + n },
		"mapped bytes":             func(s *gauge.Sample, n int64) { s.Mapped += margins.Mapped + n },
		"entries of eBPF maps":     func(s *gauge.Sample, n int64) { s.Entries += margins.Entries + int(n) },
	} {
		for n := range int64(2) {
			now := before
			change(&now, n)
			list := grown(before, now)
			if len(list) != int(n) || n == 1 && !strings.Contains(list[0], what) {
				t.Errorf("%s, %d beyond the margin: %q", what, n, list)
			}
		}
	}
}

// TestRow: a row counts each class of failures in its column, and has the fields that
// docs/reliability.md is made of.
func TestRow(t *testing.T) {
	r := &Row{Fault: "none", Traffic: "all", Times: 2, Connections: 3, Bytes: 4}
	if !r.ok() {
		t.Error("a row without a failure is not ok")
	}
	for _, c := range []traffic.Class{traffic.Corrupt, traffic.Hung, traffic.Ended, traffic.Refused} {
		r.count(c)
	}
	r.note("this is no failure")
	if r.leak("a thing"); r.ok() {
		t.Error("a row with failures is ok")
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"fault":"none","traffic":"all","times":2,"connections":3,"bytes":4,"corrupted":1,"hung":1,"lost":2,"leaked":1,"notes":["this is no failure","a thing"]}`
	if string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
}

// TestFailedOfFault: a fault that may end connections excuses that, and never other bytes or
// a connection that hangs.
func TestFailedOfFault(t *testing.T) {
	for _, c := range []struct {
		f    fault
		x    traffic.Failure
		find bool
	}{
		{fault{}, traffic.Failure{Class: traffic.Ended}, true},
		{fault{}, traffic.Failure{Class: traffic.Refused}, true},
		{fault{refuses: true}, traffic.Failure{Class: traffic.Refused}, false},
		{fault{refuses: true}, traffic.Failure{Class: traffic.Ended}, true},
		{fault{ends: true}, traffic.Failure{Class: traffic.Ended}, false},
		{fault{ends: true}, traffic.Failure{Class: traffic.Refused}, true},
		{fault{ends: true, refuses: true}, traffic.Failure{Class: traffic.Corrupt}, true},
		{fault{ends: true, refuses: true}, traffic.Failure{Class: traffic.Hung}, true},
	} {
		s := &soakRun{rows: map[string]*Row{}}
		s.begin(c.f)
		s.failed(c.x)
		if found := !s.row.ok(); found != c.find {
			t.Errorf("ends %v, refuses %v, %+v: found is %v", c.f.ends, c.f.refuses, c.x, found)
		}
	}
}

// TestFaultNames: no two faults, no two floods and no two kinds of rounds share a row.
func TestFaultNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range (&soakRun{}).faults() {
		if seen[f.name] || f.make == nil {
			t.Errorf("fault %q is there twice, or does nothing", f.name)
		}
		seen[f.name] = true
	}
	clear(seen)
	for _, k := range roundKinds {
		if seen[k.name] || k.run == nil {
			t.Errorf("kind %q is there twice, or does nothing", k.name)
		}
		seen[k.name] = true
	}
	clear(seen)
	for _, a := range attacks {
		if seen[a.name] || a.run == nil {
			t.Errorf("attack %q is there twice, or does nothing", a.name)
		}
		seen[a.name] = true
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-time", "x"}, {"-run", "("}, {"flood", "-run", "("}, {"connections", "-n", "x"}, {"open", "-n", "x"}, {"-unknown"},
		{"rounds", "-run", "("}, {"rounds", "-run", "^no such kind$"}, {"rounds", "-rounds", "3", "-warm", "3"}, {"rounds", "-n", "0"}} {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.SetOutput(&strings.Builder{})
		name := ""
		if runs[args[0]] != nil {
			name, args = args[0], args[1:]
		}
		if ok, err := runs[name](context.Background(), flags, args); ok || err == nil {
			t.Errorf("%s: %v, %v, want an error", fmt.Sprint(name, args), ok, err)
		}
	}
}
