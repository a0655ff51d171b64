// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	return err
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
			tcp, smc, err := r.both(ctx, w.rows[0], func(smc bool) ([]float64, error) {
				if w.bed == "" {
					return w.measure(ctx, r, nil, smc)
				}
				b, err := r.bed(ctx, w.bed)
				if err != nil {
					return nil, err
				}
				return w.measure(ctx, r, b, smc)
			})
			if err != nil {
				return nil, err
			}
			for i, id := range w.rows {
				if row := rows[id]; row != nil {
					row.Add(tcp[i], smc[i])
				}
			}
		}
	}
	for _, row := range chosen {
		row.Finish()
	}
	return chosen, nil
}
