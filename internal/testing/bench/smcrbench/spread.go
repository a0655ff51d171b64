// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/bench"
)

const (
	// filesWanted is the number of descriptors that programs should have, if permitted.
	filesWanted = 200000
	// filesEach is the number of descriptors for one connection in a stack, which has the
	// most.
	filesEach = 4
	// filesSpare is the number of descriptors for everything else.
	filesSpare = 1000
	// mostPairs is the largest number of pairs of hosts.
	mostPairs = 4
)

// raiseFiles raises the limit of descriptors of this process, which programs inherit.
// Beyond the hard limit, this needs CAP_SYS_RESOURCE, which root in a container may lack.
func raiseFiles() error {
	want := uint64(filesWanted)
	if b, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		if most, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			want = min(want, most)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if limit.Max < want && unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: want}) == nil {
		return nil
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	return nil
}

// perPair returns the number of connections that the limit of open files allows for one
// pair of hosts.
func perPair() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int((min(limit.Cur, 1<<30) - min(limit.Cur, filesSpare)) / filesEach)
}

// pairsFor returns the number of pairs of hosts for n connections, with at most this
// number on each.
func pairsFor(n, most int) int { return (n + most - 1) / max(1, most) }

// share returns the number of connections of pair i, of n in all: each pair is filled
// before the next.
func share(n, most, i int) int { return min(max(0, n-i*most), most) }

// spread has a number of connections on several pairs of hosts, each with separate stacks
// and programs.
type spread struct {
	crowds []*crowd
	most   int // the largest number of connections of each
}

// newSpread makes a spread for n connections. done ends it.
func (r *runner) newSpread(ctx context.Context, smc bool, n, most int) (s *spread, done func() error, err error) {
	s = &spread{most: most}
	var ends []func() error
	done = func() (err error) {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}
	for range max(1, pairsFor(n, most)) {
		c, end, err := r.newCrowd(ctx, smc)
		if err != nil {
			return nil, nil, errors.Join(err, done())
		}
		s.crowds, ends = append(s.crowds, c), append(ends, end)
	}
	return s, done, nil
}

// each calls f for all pairs at the same time and returns the sum of the results.
func (s *spread) each(f func(i int, c *crowd) (float64, error)) (sum float64, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, c := range s.crowds {
		wg.Go(func() {
			v, ferr := f(i, c)
			mu.Lock()
			defer mu.Unlock()
			sum, err = sum+v, errors.Join(err, ferr)
		})
	}
	wg.Wait()
	return sum, err
}

// open opens n connections and returns how many there are.
func (s *spread) open(n int) (int, error) {
	got, err := s.each(func(i int, c *crowd) (float64, error) {
		got, err := c.open(share(n, s.most, i))
		return float64(got), err
	})
	return int(got), err
}

// requests returns the requests per second on all n connections.
func (s *spread) requests(n int, d time.Duration) (float64, error) {
	return s.each(func(i int, c *crowd) (float64, error) {
		if share(n, s.most, i) == 0 {
			return 0, nil
		}
		return c.requests(d)
	})
}

// memory returns the memory of the processes of all pairs in bytes.
func (s *spread) memory() (float64, error) {
	return s.each(func(_ int, c *crowd) (float64, error) {
		n, err := c.memory()
		return float64(n), err
	})
}

// Idle connections are measured for idleTime, but not at once: after the last requests,
// memory is returned for about twenty seconds.
const (
	idleTime   = 10 * time.Second
	settleTime = 30 * time.Second
)

// idle returns the CPU time of the processes of all pairs without traffic, in percent of
// a core.
func (s *spread) idle(ctx context.Context) (float64, error) {
	var roots []int
	for _, c := range s.crowds {
		roots = append(roots, c.roots()...)
	}
	var used [2]time.Duration
	var at [2]time.Time
	for i, wait := range []time.Duration{settleTime, idleTime} {
		if err := sleep(ctx, wait); err != nil {
			return 0, err
		}
		snapshot, err := bench.ReadSnapshot()
		if err != nil {
			return 0, err
		}
		used[i], at[i] = snapshot.Time(roots...), time.Now()
	}
	return 100 * (used[1] - used[0]).Seconds() / at[1].Sub(at[0]).Seconds(), nil
}

// end ends the clients and checks the transport of their n connections.
func (s *spread) end(n int) error {
	_, err := s.each(func(i int, c *crowd) (float64, error) { return 0, c.end(share(n, s.most, i)) })
	return err
}
