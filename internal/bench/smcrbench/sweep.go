// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/bench"
)

// sweepRounds is the number of rounds of each point of a plot at most: there
// are many points.
const sweepRounds = 3

// pointTime is the duration of each point of a plot at most.
const pointTime = 500 * time.Millisecond

// messageSizes are in bytes; a round trip is measured up to the size that the
// limit names.
var messageSizes = []int{1, 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20}

const roundTripSizes = 32 << 10

// sizes measures messages from 1 byte to 64 MiB.
func (r *runner) sizes(ctx context.Context, result *bench.Result) error {
	b, err := r.bed(ctx, "1500")
	if err != nil {
		return err
	}
	d := min(r.time, pointTime)
	for _, size := range messageSizes {
		result.Sizes = append(result.Sizes, &bench.Size{Bytes: size})
	}
	for round := range min(r.rounds, sweepRounds) {
		fmt.Fprintf(os.Stderr, "    message sizes, round %d of %d\n", round+1, min(r.rounds, sweepRounds))
		for _, s := range result.Sizes {
			what := fmt.Sprintf("messages of %d bytes", s.Bytes)
			tcp, smc, err := r.both(ctx, what, func(smc bool) ([]float64, error) {
				count, seconds, err := loadRate(ctx, r, b, smc, d, "write", s.Bytes)
				return []float64{count / (1 << 20) / seconds}, err
			})
			if err != nil {
				return err
			}
			s.ThroughputTCP = append(s.ThroughputTCP, bench.Round(tcp[0]))
			s.ThroughputSMC = append(s.ThroughputSMC, bench.Round(smc[0]))
			if s.Bytes > roundTripSizes {
				continue
			}
			tcp, smc, err = r.both(ctx, "round trip of "+what, func(smc bool) ([]float64, error) {
				count, seconds, err := loadRate(ctx, r, b, smc, d, "roundtrip", s.Bytes)
				return []float64{seconds * 1e6 / count}, err
			})
			if err != nil {
				return err
			}
			s.RoundTripTCP = append(s.RoundTripTCP, bench.Round(tcp[0]))
			s.RoundTripSMC = append(s.RoundTripSMC, bench.Round(smc[0]))
		}
	}
	return nil
}

// crowds are the numbers of connections of the sweep.
var crowds = []int{1, 10, 100, 1000, 4000, 10000}

const (
	// filesEach is what one connection takes of the descriptors of the process
	// that has the most, a stack.
	filesEach = 4
	// filesSpare is left for all else that the process opens.
	filesSpare = 1000
	// memoryEach is what is reckoned for a connection, both ends, in bytes, so
	// that the sweep does not take all memory of a small machine.
	memoryEach = 1200 << 10
)

// connections measures requests and memory with 1 to 10,000 connections. The
// stacks of each transport are new, and serve all numbers in turn: the memory
// is what the processes grow by from the start of the client on.
func (r *runner) connections(ctx context.Context, result *bench.Result) error {
	for _, n := range crowds {
		if n <= r.maxConns {
			result.Connections = append(result.Connections, &bench.Population{Connections: n})
		}
	}
	for round := range min(r.rounds, sweepRounds) {
		fmt.Fprintf(os.Stderr, "    connections, round %d of %d\n", round+1, min(r.rounds, sweepRounds))
		tcp, smc, err := r.both(ctx, "connections", func(smc bool) ([]float64, error) {
			return r.crowdSweep(ctx, smc, result.Connections)
		})
		if err != nil {
			return err
		}
		for i, p := range result.Connections {
			if p.Skipped != "" {
				continue
			}
			p.RequestsTCP = append(p.RequestsTCP, bench.Round(tcp[2*i]))
			p.MemoryTCP = append(p.MemoryTCP, bench.Round(tcp[2*i+1]))
			p.RequestsSMC = append(p.RequestsSMC, bench.Round(smc[2*i]))
			p.MemorySMC = append(p.MemorySMC, bench.Round(smc[2*i+1]))
		}
	}
	return nil
}

// crowdSweep returns two values for each number of connections: requests per
// second and MiB.
func (r *runner) crowdSweep(ctx context.Context, smc bool, points []*bench.Population) (values []float64, err error) {
	c, done, err := r.newCrowd(ctx, smc)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := c.open(0); err != nil {
		return nil, err
	}
	base, err := c.memory()
	if err != nil {
		return nil, err
	}
	held := 0
	for _, p := range points {
		if p.Skipped == "" {
			p.Skipped = lacking(p.Connections)
		}
		if p.Skipped != "" {
			fmt.Fprintf(os.Stderr, "    %d connections left out: %s\n", p.Connections, p.Skipped)
			values = append(values, 0, 0)
			continue
		}
		if err := c.open(p.Connections); err != nil {
			return nil, err
		}
		held = p.Connections
		used, err := c.memory()
		if err != nil {
			return nil, err
		}
		rate, err := c.requests(min(r.time, 2*pointTime))
		if err != nil {
			return nil, err
		}
		values = append(values, rate, max(0, float64(used-base)/(1<<20)))
	}
	return values, c.end(held)
}

// lacking says what the machine lacks for so many connections, or nothing.
func lacking(n int) string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && uint64(n)*filesEach+filesSpare > limit.Cur {
		return fmt.Sprintf("the limit of open files is %d", limit.Cur)
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "" // it is there, or nothing that is measured would be
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil && int64(n)*memoryEach > kib<<10 {
			return fmt.Sprintf("%d MiB of memory are free", kib>>10)
		}
	}
	return ""
}

// launcherName is the program name of launchers and stacks.
func (r *runner) launcherName() string { return filepath.Base(r.smcr) }
