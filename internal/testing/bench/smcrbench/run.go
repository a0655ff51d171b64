// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/bench"
)

type runner struct {
	options
	load   string // program load
	dir    string // for files of programs
	chosen map[string]bool
	beds   map[string]*bed

	redisRequests map[string]int

	// other measures with another build of smcr, on hosts of its own, and version is what that build says that it is. Both are empty
	// without -against.
	other   *runner
	version string

	// look and pause are bench.ReadSnapshot and sleep, except in tests.
	look  func() (bench.Snapshot, error)
	pause func(context.Context, time.Duration) error

	disturbed bool // others used the CPU, and -force was given
	othersMax float64
}

func (r *runner) close() (err error) {
	for _, b := range r.beds {
		err = errors.Join(err, b.Close())
	}
	if r.other != nil {
		err = errors.Join(err, r.other.close())
	}
	return err
}

// useOther makes the runner for the program of -against.
func (r *runner) useOther(ctx context.Context) error {
	other := *r
	var err error
	if other.smcr, err = filepath.Abs(r.against); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, other.smcr, "--version").Output()
	if err != nil {
		return fmt.Errorf("-against: %w", err)
	}
	other.beds, r.other, r.version = make(map[string]*bed), &other, strings.TrimSpace(string(out))
	return nil
}

// A measurement has one value for each row of a workload, the work that was done meanwhile, in the unit of the workload, or 0, and the CPU time
// that it took.
type measurement struct {
	values []float64
	work   float64
	used   bench.Used
}

// measured makes a measurement, over TCP or with the runner's smcr.
func (r *runner) measured(ctx context.Context, w workload, smc bool) (m measurement, err error) {
	var b *bed
	var stacks []int
	if w.bed != "" {
		if b, err = r.bed(ctx, w.bed); err != nil {
			return m, err
		}
		for _, p := range b.stacks {
			stacks = append(stacks, p.Pid())
		}
	}
	before, err := r.look()
	if err != nil {
		return m, err
	}
	if m.values, m.work, err = w.measure(ctx, r, b, smc); err != nil {
		return m, err
	}
	after, err := r.look()
	if err != nil {
		return m, err
	}
	m.used = bench.UsedBetween(before, after, os.Getpid(), stacks...)
	return m, nil
}

// round measures one workload once, and adds the values to its rows: over TCP, over SMC-R, and with the other build, which is
// before this one in every second round.
func (r *runner) round(ctx context.Context, n int, w workload, rows map[string]*bench.Row) error {
	var tcp, smc, against measurement
	sides := []struct {
		r    *runner
		smc  bool
		what string
		to   *measurement
	}{{r, false, transport(false), &tcp}, {r, true, transport(true), &smc}}
	compares := r.other != nil && !strings.HasSuffix(w.bed, "-api") // programs embed the stack of this tree
	if compares {
		sides = append(sides, sides[1])
		i := 2 - n%2
		sides[i].r, sides[i].what, sides[i].to = r.other, "SMC-R of the other build", &against
	}
	for _, side := range sides {
		err := r.undisturbed(ctx, w.rows[0]+" over "+side.what, func() (err error) {
			*side.to, err = side.r.measured(ctx, w, side.smc)
			return err
		})
		if err != nil {
			return err
		}
	}
	for i, id := range w.rows {
		row := rows[id]
		if row == nil {
			continue
		}
		row.Add(tcp.values[i], smc.values[i])
		row.CostTCP, row.CostSMC, row.CostUnit = row.CostTCP.Each(tcp.used, tcp.work, w.unit), row.CostSMC.Each(smc.used, smc.work, w.unit), w.unit
		if compares {
			row.Against = append(row.Against, bench.Round(against.values[i]))
			row.CostAgainst = row.CostAgainst.Each(against.used, against.work, w.unit)
		}
	}
	return nil
}

// tries is the largest number of attempts to measure without others.
const tries = 4

// quiet waits until others do not use the machine.
func (r *runner) quiet(ctx context.Context) error {
	if r.force {
		return nil
	}
	return r.undisturbed(ctx, "before the first measurement", func() error { return r.pause(ctx, time.Second) })
}

// sleep waits for d. If ctx ends, it returns an error.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// undisturbed calls f. If others used the CPU meanwhile, it calls f again, up to tries
// times.
func (r *runner) undisturbed(ctx context.Context, what string, f func() error) error {
	for n := 1; ; n++ {
		before, err := r.look()
		if err != nil {
			return err
		}
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		after, err := r.look()
		if err != nil {
			return err
		}
		others := bench.FindOthers(before, after, os.Getpid())
		if others.Quiet() || r.force {
			r.disturbed = r.disturbed || !others.Quiet()
			r.othersMax = max(r.othersMax, others.Share)
			return nil
		}
		if n == tries {
			return &bench.BusyError{What: what, Tries: tries, Others: others}
		}
		fmt.Fprintf(os.Stderr, "    %s: %v; once more\n", what, others)
		if err := r.pause(ctx, time.Duration(n)*2*time.Second); err != nil {
			return err
		}
	}
}

// adoptOrphans makes this process the parent of all descendants whose own parent ends
// (PR_SET_CHILD_SUBREAPER), so that bench.FindOthers does not count them as others. After
// their end, they remain zombies until this process ends.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	return nil
}

func transport(smc bool) string {
	if smc {
		return "SMC-R"
	}
	return "TCP"
}

// both measures over TCP and then over SMC-R. f returns one value for each row.
func (r *runner) both(ctx context.Context, what string, f func(smc bool) ([]float64, error)) (tcp, smc []float64, err error) {
	for _, over := range []bool{false, true} {
		err := r.undisturbed(ctx, what+" over "+transport(over), func() (err error) {
			values, err := f(over)
			if over {
				smc = values
			} else {
				tcp = values
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return tcp, smc, nil
}

// rowRounds measures the chosen rows, one round after the other, over TCP and
// SMC-R in turn.
func (r *runner) rowRounds(ctx context.Context) ([]*bench.Row, error) {
	rows := make(map[string]*bench.Row)
	var chosen []*bench.Row
	for _, row := range bench.Rows() {
		if r.chosen[row.ID] {
			rows[row.ID] = row
			chosen = append(chosen, row)
		}
	}
	if len(chosen) == 0 {
		return nil, nil
	}
	for round := range r.rounds {
		fmt.Fprintf(os.Stderr, "    round %d of %d\n", round+1, r.rounds)
		for _, w := range workloads {
			wanted := false
			for _, id := range w.rows {
				wanted = wanted || r.chosen[id]
			}
			if !wanted {
				continue
			}
			if err := r.round(ctx, round, w, rows); err != nil {
				return nil, err
			}
		}
	}
	for _, row := range chosen {
		row.Finish()
	}
	return chosen, nil
}
