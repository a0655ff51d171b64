// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"smcr/internal/testing/bench"
)

// traffic is the traffic of a breakdown of the CPU time.
type traffic struct {
	row, server, unit string
	// argv returns the client's command line. The client runs for about the time d.
	argv func(ctx context.Context, r *runner, b *bed, smc bool, d time.Duration) ([]string, error)
	// rate returns the units of work per second in the output of the client, and the
	// factor from seconds of CPU to the unit.
	rate func(out []byte) (perSecond, factor float64, err error)
}

var traffics = []traffic{
	{"iperf3-1500", "iperf3", "s/GiB",
		func(ctx context.Context, _ *runner, b *bed, smc bool, d time.Duration) ([]string, error) {
			port, err := b.iperf3Server(ctx, smc)
			return []string{"iperf3", "-c", b.A.Addr(), "-p", strconv.Itoa(port), "-t", wholeSeconds(d), "-J"}, err
		},
		func(out []byte) (float64, float64, error) {
			bytes, seconds, err := bench.ParseIperf3(out)
			return bytes / (1 << 30) / seconds, 1, err
		}},
	{"roundtrip", "load", "µs/request",
		func(ctx context.Context, _ *runner, b *bed, smc bool, d time.Duration) ([]string, error) {
			at, err := b.loadServer(ctx, smc)
			return b.loadArgv(smc, "client", at, "roundtrip", d.String()), err
		},
		func(out []byte) (float64, float64, error) {
			var count, seconds float64
			if _, err := fmt.Sscan(string(out), &count, &seconds); err != nil || seconds == 0 {
				return 0, 0, fmt.Errorf("load: %v in %q", err, out)
			}
			return count / seconds, 1e6, nil
		}},
	{"wrk", "nginx", "µs/request",
		func(ctx context.Context, r *runner, b *bed, smc bool, d time.Duration) ([]string, error) {
			return wrkArgv(ctx, r, b, smc, wholeSeconds(d), 50, "-t", "1")
		},
		func(out []byte) (float64, float64, error) {
			rate, err := bench.ParseWrk(out)
			return rate, 1e6, err
		}},
}

// wholeSeconds rounds up to whole seconds.
func wholeSeconds(d time.Duration) string {
	return strconv.Itoa(int((d + time.Second - 1) / time.Second))
}

// lead is how long a client runs before and after the measured time, so that all
// processes exist at both ends.
const lead = 500 * time.Millisecond

// shares measures the CPU time of each kind of process, in user space and in the kernel.
func (r *runner) shares(ctx context.Context, result *bench.Result) error {
	b, err := r.bed(ctx, "1500")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "    where the time goes")
	for _, t := range traffics {
		for _, smc := range []bool{false, true} {
			var shares []*bench.Share
			err := r.undisturbed(ctx, "where the time of "+t.row+" goes over "+transport(smc), func() (err error) {
				shares, err = r.share(ctx, b, t, smc)
				return err
			})
			if err != nil {
				return err
			}
			result.Shares = append(result.Shares, shares...)
		}
	}
	return r.areas(ctx, result)
}

func (r *runner) share(ctx context.Context, b *bed, t traffic, smc bool) ([]*bench.Share, error) {
	window := max(r.time, time.Second)
	argv, err := t.argv(ctx, r, b, smc, window+2*lead)
	if err != nil {
		return nil, err
	}
	c, err := b.start(ctx, smc, nil, argv...)
	if err != nil {
		return nil, err
	}
	defer c.Kill()
	var at [2]bench.Snapshot
	var when [2]time.Time
	for i, wait := range []time.Duration{lead, window} {
		select {
		case <-time.After(wait):
		case <-c.Done():
			return nil, fmt.Errorf("%s ended early:\n%s%s", argv[0], &c.out, &c.err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		when[i] = time.Now()
		if at[i], err = bench.ReadSnapshot(); err != nil {
			return nil, err
		}
	}
	if err := c.wait(r.limit()); err != nil {
		return nil, err
	}
	perSecond, factor, err := t.rate(c.out.Bytes())
	if err != nil {
		return nil, err
	}
	units := perSecond * when[1].Sub(when[0]).Seconds()
	name := "tcp"
	if smc {
		name = "smc"
	}
	var shares []*bench.Share
	server := b.servers[serverKey(t.server, smc)].Pid()
	for i, side := range []struct {
		name string
		root int
	}{{"server", server}, {"client", c.Pid()}} {
		parts := map[string]int{"program": side.root}
		order := []string{"program"}
		if smc && !b.embedded() {
			parts["stack"] = b.stacks[i].Pid()
			order = []string{"program", "stack"}
		}
		for _, part := range order {
			s := &bench.Share{Row: t.row, Transport: name, Side: side.name, Component: part, Unit: t.unit}
			for pid, p := range at[1].Tree(parts[part]) { // that of a program has smcr run, which waits
				before := at[0].Procs[pid]
				s.User += (p.User - before.User).Seconds() * factor / units
				s.System += (p.System - before.System).Seconds() * factor / units
			}
			s.User, s.System = bench.Round(s.User), bench.Round(s.System)
			shares = append(shares, s)
		}
	}
	return shares, nil
}
