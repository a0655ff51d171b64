// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"smcr/internal/testing/bench"
)

// sweepRounds is the largest number of rounds for a point of a plot: there are many
// points.
const sweepRounds = 3

// pointTime is the longest time for a point of a plot.
const pointTime = 500 * time.Millisecond

// messageSizes are in bytes. Round trips are measured up to roundTripSizes.
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

// memoryEach is the assumed memory of a connection, for both ends, in bytes. The sweep
// must not use all memory of a small machine.
const memoryEach = 1200 << 10

// connections measures requests and memory with 1 to 10,000 connections, and the CPU time
// of the largest number without traffic. The stacks of each transport are new, and serve
// all numbers in turn. Memory is what the processes grow by after the start of the
// client.
//
// Connections for which a stack has too few descriptors are on further pairs of hosts,
// also over TCP.
func (r *runner) connections(ctx context.Context, result *bench.Result) error {
	most := perPair()
	for _, n := range crowds {
		if n > r.maxConns {
			continue
		}
		p := &bench.Population{Connections: n, Skipped: lacking(n, most)}
		if p.Skipped != "" {
			fmt.Fprintf(os.Stderr, "    %d connections left out: %s\n", n, p.Skipped)
		} else if pairs := pairsFor(n, most); pairs > 1 {
			p.Pairs = pairs
		}
		result.Connections = append(result.Connections, p)
	}
	for round := range min(r.rounds, sweepRounds) {
		fmt.Fprintf(os.Stderr, "    connections, round %d of %d\n", round+1, min(r.rounds, sweepRounds))
		var points []*bench.Population
		for _, p := range result.Connections {
			if p.Skipped == "" {
				points = append(points, p)
			}
		}
		if len(points) == 0 {
			return nil
		}
		tcp, smc, err := r.both(ctx, "connections", func(smc bool) ([]float64, error) {
			return r.crowdSweep(ctx, smc, points, most)
		})
		if err != nil {
			return err
		}
		for i, p := range points {
			if p.Skipped != "" {
				break
			}
			p.RequestsTCP = append(p.RequestsTCP, bench.Round(tcp[2*i]))
			p.MemoryTCP = append(p.MemoryTCP, bench.Round(tcp[2*i+1]))
			p.RequestsSMC = append(p.RequestsSMC, bench.Round(smc[2*i]))
			p.MemorySMC = append(p.MemorySMC, bench.Round(smc[2*i+1]))
		}
		if last := points[len(points)-1]; last.Skipped == "" {
			last.IdleTCP = append(last.IdleTCP, bench.Round(tcp[len(tcp)-1]))
			last.IdleSMC = append(last.IdleSMC, bench.Round(smc[len(smc)-1]))
		}
	}
	return nil
}

// crowdSweep returns two values for each number of connections, requests per second and
// MiB, and at the end the percentage of a core that the last number uses without traffic.
// If opening connections takes too long, it ends early and sets Skipped.
func (r *runner) crowdSweep(ctx context.Context, smc bool, points []*bench.Population, most int) (values []float64, err error) {
	s, done, err := r.newSpread(ctx, smc, points[len(points)-1].Connections, most)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if _, err := s.open(0); err != nil {
		return nil, err
	}
	base, err := s.memory()
	if err != nil {
		return nil, err
	}
	held := 0
	for _, p := range points {
		if p.Skipped != "" { // for the other transport
			break
		}
		if held, err = s.open(p.Connections); err != nil {
			return nil, err
		}
		if held < p.Connections {
			p.Skipped = fmt.Sprintf("only %d connections over %s in %v", held, transport(smc), openTime)
			fmt.Fprintf(os.Stderr, "    %d connections left out: %s\n", p.Connections, p.Skipped)
			break
		}
		used, err := s.memory()
		if err != nil {
			return nil, err
		}
		rate, err := s.requests(held, min(r.time, 2*pointTime))
		if err != nil {
			return nil, err
		}
		values = append(values, rate, max(0, (used-base)/(1<<20)))
	}
	idle, err := s.idle(ctx)
	if err != nil {
		return nil, err
	}
	return append(values, idle), s.end(held)
}

// lacking returns what the machine lacks for n connections, or "". most is the number of
// connections for which a pair of hosts has enough descriptors.
func lacking(n, most int) string {
	if most < 1 || pairsFor(n, most) > mostPairs {
		return fmt.Sprintf("the limit of open files allows %d connections on each of %d pairs of hosts", most, mostPairs)
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "" // without /proc, all measurements fail
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil && int64(n)*memoryEach > kib<<10 {
			return fmt.Sprintf("%d MiB of memory are free", kib>>10)
		}
	}
	return ""
}
