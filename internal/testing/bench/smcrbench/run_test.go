// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/bench"
	"smcr/internal/testing/testkind"
)

// machineOf returns a runner on a machine where others use these shares of the CPU during
// the measurements, one after the other.
func machineOf(shares ...float64) *runner {
	const other = 1 << 30 // no process has this number
	var passed, used time.Duration
	looks := 0
	return &runner{
		look: func() (bench.Snapshot, error) {
			// Each measurement has two looks. Time passes before the second one.
			if looks%2 == 1 {
				passed += 10 * time.Second
				used += time.Duration(shares[looks/2] * float64(10*time.Second))
			}
			looks++
			return bench.Snapshot{
				CPU: bench.CPU{Busy: used, Idle: passed - used},
				Procs: map[int]bench.Proc{
					os.Getpid(): {PID: os.Getpid(), Name: "smcrbench"},
					other:       {PID: other, Name: "compiler", User: used},
				},
			}, nil
		},
		pause: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	}
}

func TestUndisturbed(t *testing.T) {
	const what = "redis over TCP"
	for _, test := range []struct {
		name   string
		shares []float64
		force  bool
		calls  int
		busy   bool // an error is expected
		marked bool
	}{
		{name: "quiet", shares: []float64{0.02}, calls: 1},
		{name: "disturbed twice", shares: []float64{0.5, 0.04, 0.01}, calls: 3},
		{name: "disturbed always", shares: []float64{0.5, 0.4, 0.3, 0.2}, calls: 4, busy: true},
		{name: "forced", shares: []float64{0.5}, force: true, calls: 1, marked: true},
		{name: "forced, but quiet", shares: []float64{0.01}, force: true, calls: 1},
	} {
		r := machineOf(test.shares...)
		r.force = test.force
		calls := 0
		err := r.undisturbed(t.Context(), what, func() error { calls++; return nil })
		if calls != test.calls || r.disturbed != test.marked {
			t.Errorf("%s: measured %d times, marked %t", test.name, calls, r.disturbed)
		}
		var busy *bench.BusyError
		if errors.As(err, &busy) != test.busy || !test.busy && err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if test.busy && (busy.What != what || busy.Tries != tries || busy.Others.Who[0].Name != "compiler") {
			t.Errorf("%s: %+v", test.name, busy)
		}
	}
}

// TestUndisturbedFails: an error of a measurement is returned, even if others used the
// CPU.
func TestUndisturbedFails(t *testing.T) {
	fail := errors.New("no")
	if err := machineOf(0.9).undisturbed(t.Context(), "x", func() error { return fail }); !errors.Is(err, fail) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := machineOf(0.9, 0.9).undisturbed(ctx, "x", func() error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// TestAdoptOrphans: a program whose parent has ended is a descendant, while it runs and
// after its end.
func TestAdoptOrphans(t *testing.T) {
	testkind.System(t)
	if err := adoptOrphans(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	// The shell ends at once. Its child has none of its pipes.
	out, err := exec.Command("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []unix.Signal{0, unix.SIGKILL} {
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		s, err := bench.ReadSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		if p := s.Tree(os.Getpid())[pid]; p.Parent != os.Getpid() {
			t.Errorf("after signal %d: %+v is not ours", sig, s.Procs[pid])
		}
	}
	if got, err := unix.Wait4(pid, nil, 0, nil); err != nil || got != pid {
		t.Errorf("waited for %d: %d, %v", pid, got, err)
	}
}

// TestOrder: each round measures TCP first, then SMC-R.
func TestOrder(t *testing.T) {
	r := machineOf(0, 0)
	var order []bool
	tcp, smc, err := r.both(t.Context(), "x", func(smc bool) ([]float64, error) {
		order = append(order, smc)
		return []float64{float64(len(order))}, nil
	})
	if err != nil || len(order) != 2 || order[0] || !order[1] || tcp[0] != 1 || smc[0] != 2 {
		t.Errorf("%v: tcp %v, smc %v, %v", order, tcp, smc, err)
	}
}
