// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// staticC builds a static C program of testdata.
func staticC(t *testing.T, name string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), cc, "-O2", "-Wall", "-Werror", "-static", "-o", path, filepath.Join("testdata", name+".c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// echo starts blockEcho on host A, and returns when it listens.
func (l *lab) echo() *netnstest.Process {
	l.t.Helper()
	p := l.under(l.A, "/usr/bin/python3", "-u", "-c", blockEcho, l.A.Addr())
	if err := p.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// TestTakeoverDrain: an old stack with --drain-timeout ends although it has a connection. That
// connection is reset, and new ones use the next stack.
func TestTakeoverDrain(t *testing.T) {
	l := newLab(t, "/usr/bin/python3")
	exchange := staticC(t, "exchange")
	old := l.serve(l.A, "--drain-timeout", "1s")
	l.serve(l.B)
	echo := l.echo()
	client := func() *netnstest.Process {
		t.Helper()
		p := l.under(l.B, exchange, l.A.Addr(), "7200")
		if err := p.WaitOutput("made", startTime); err != nil {
			t.Fatal(err)
		}
		return p
	}
	held := client()
	begin := time.Now()
	l.takeOver(l.A)
	if err := old.Wait(endTime); err != nil || !strings.Contains(old.Log(), "drain timeout is over") {
		t.Errorf("the old stack: %v\n%s", err, old.Log())
	}
	if d := time.Since(begin); d < time.Second {
		t.Errorf("the old stack has ended after %v", d)
	}
	if err := held.Wait(endTime); err == nil || !strings.Contains(held.Log(), "Connection reset by peer") {
		t.Errorf("the connection of the old stack: %v\n%s", err, held.Log())
	}
	next := client()
	terminate(t, next)
	wantSummary(t, next.Log(), 1)
	echo.Kill()
}

// TestTakeoverEndsFirst: a stack ends in order while an older one still has a connection, which
// goes on.
func TestTakeoverEndsFirst(t *testing.T) {
	l := newLab(t, "/usr/bin/python3")
	exchange := staticC(t, "exchange")
	old := l.serve(l.A)
	l.serve(l.B)
	echo := l.echo()
	held := l.under(l.B, exchange, l.A.Addr(), "7200")
	if err := held.WaitOutput("made", startTime); err != nil {
		t.Fatal(err)
	}
	next := l.takeOver(l.A)
	terminate(t, next)
	if err := next.Wait(endTime); err != nil || !strings.Contains(next.Log(), "the stack has ended") {
		t.Errorf("the next stack: %v\n%s", err, next.Log())
	}
	if n := countPrefix(l.placeOf(l.A), "part-"); n != 1 {
		t.Errorf("%d parts after the end of the next stack, want that of the old one", n)
	}
	terminate(t, held)
	wantSummary(t, held.Log(), 1)
	terminate(t, old)
	echo.Kill()
}

// TestTakeoverKilled kills the old stack at different times of a takeover. The new one serves in
// any case, and so does the next one after it.
func TestTakeoverKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	old := l.serve(l.A)
	l.serve(l.B)
	how := map[bool]int{}
	for n := range 10 {
		next := l.A.Go(t, bin("smcr"), "serve", "--takeover", "--no-default-eid")
		time.Sleep(time.Duration(n) * 10 * time.Millisecond) // Real time: it is killed at another time in each round.
		if err := old.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-old.Done()
		how[strings.Contains(old.Log(), saysOver)]++
		if err := next.WaitOutput(saysServing, startTime); err != nil {
			t.Fatalf("killed after %d ms: %v\n%s\nlog of the old stack:\n%s", 10*n, err, next.Log(), old.Log())
		}
		l.wantWorks()
		old = next
	}
	t.Logf("killed after it had handed over: %d times, before: %d times", how[true], how[false])
	if names := l.placeOf(l.A); countPrefix(names, "ending-")+countPrefix(names, "part-") > 12 {
		t.Errorf("killed stacks have left: %q", names)
	}
	terminate(t, old)
}
