// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// Descriptors of a process that connections may take: smcr serve needs up to four for each
// connection of a program, a stack in a Go program one.
const (
	fdsOfService  = 4
	fdsOfEmbedded = 1
	fdsSpare      = 1000 // for everything else
)

// fits returns how many of n connections the limit of open files allows.
func fits(n, each int) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	return min(n, int(min(limit.Max, 1<<30)-fdsSpare)/each), nil
}

// runOpen has many connections open at the same time: through smcr serve, and through a
// stack in a Go program.
func runOpen(ctx context.Context, flags *flag.FlagSet, args []string) (bool, error) {
	n := flags.Int("n", 10_000, "`number` of connections, or as many as the limit of open files allows")
	workers := flags.Int("workers", 32, "connections that are used at the same time")
	profile := flags.String("profile", "", "write heap profiles of the processes at the end to this `folder`")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	var rows []*Row
	for _, embedded := range []bool{true, false} {
		row, err := openAtOnce(ctx, embedded, *n, *workers, *profile)
		if err != nil {
			return false, err
		}
		rows = append(rows, row)
		if ctx.Err() != nil {
			break
		}
	}
	return summary(rows...), nil
}

// warm is how many connections are made and closed before the first sample: what has a bound, such as the memory of connections
// that have ended, has reached it then.
const warm = 5000

// openAtOnce opens n connections, or as many as the limit of open files allows, uses each
// twice, closes them, and compares what the processes have with what they had before.
func openAtOnce(ctx context.Context, embedded bool, n, workers int, profile string) (*Row, error) {
	b, err := newBed()
	if err != nil {
		return nil, err
	}
	defer b.close()
	pair, err := netnstest.Create(netnstest.Options{})
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	row := &Row{Fault: "none", Traffic: "open at once, smcr run", Times: 1}
	each := fdsOfService
	var extra, under []string
	if embedded {
		row.Traffic, each, extra = "open at once, Go API", fdsOfEmbedded, []string{"-stack"}
	}
	if n, err = fits(n, each); err != nil {
		return nil, err
	}
	address := pair.A.Addr() + ":7000"
	if !embedded {
		for _, h := range []*netnstest.Host{pair.A, pair.B} {
			if _, err := b.serve(h, "--group-idle", groupIdle.String()); err != nil {
				return nil, err
			}
		}
		under = b.under(pair.A, "--no-adapt")
	}
	server, err := b.server(pair.A, under, append(extra, address)...)
	if err != nil {
		return nil, err
	}
	if embedded {
		extra = append(extra, "-require")
	} else {
		under = b.under(pair.B, "--no-adapt")
	}
	c, err := b.client("client", pair.B, under, func(f traffic.Failure) {
		if row.count(f.Class) < 20 {
			say("%s: %s: %s", f.Kind, f.Class, f.Error)
		}
	}, append(extra, address)...)
	if err != nil {
		return nil, err
	}
	o := &openRun{bed: b, pair: pair, client: c, row: row, embedded: embedded, n: n, workers: workers}
	if err := o.run(ctx); err != nil {
		return nil, err
	}
	if profile != "" {
		if err := b.profiles(profile, "heap", gauge.HeapProfile); err != nil {
			return nil, err
		}
	}
	return row, errors.Join(c.finish(), server.end())
}

// openRun is one number of connections through one kind of stack.
type openRun struct {
	*bed
	pair       *netnstest.Pair
	client     *client
	row        *Row
	embedded   bool
	n, workers int
}

func (o *openRun) run(ctx context.Context) error {
	wait := time.Minute + time.Duration(max(o.n, warm))*100*time.Millisecond
	// The first round is not compared: Go keeps the memory of goroutines and maps for the
	// largest number there was. The second round must not add to that.
	for _, command := range []string{fmt.Sprintf("batch %d %d", warm, o.workers), fmt.Sprintf("hold %d %d", o.n, o.workers), fmt.Sprintf("release %d", o.workers)} {
		if err := o.client.do(ctx, wait, "%s", command); err != nil {
			return err
		}
	}
	if err := o.rest(); err != nil {
		return err
	}
	before, err := o.samples()
	if err != nil {
		return err
	}
	began := time.Now()
	for _, command := range []string{fmt.Sprintf("hold %d %d", o.n, o.workers), fmt.Sprintf("exchange %d", o.workers), fmt.Sprintf("exchange %d", o.workers)} {
		if err := o.client.do(ctx, wait, "%s", command); err != nil {
			return err
		}
		t := o.client.tally(traffic.Held)
		say("%s: %s: %d connections are open after %v", o.row.Traffic, command, t.Open, time.Since(began).Round(time.Second))
		if t.Open != int64(o.n) {
			o.row.leak("%d of %d connections are open", t.Open, o.n)
		}
	}
	if err := o.tell(); err != nil {
		return err
	}
	if !o.embedded {
		if err := o.wantSMC(); err != nil {
			return err
		}
	}
	if err := o.client.do(ctx, wait, "release %d", o.workers); err != nil {
		return err
	}
	t := o.client.tally(traffic.Held)
	o.row.Connections, o.row.Bytes = t.Conns, t.Bytes
	if err := o.rest(); err != nil {
		o.row.leak("%v", err)
	}
	after, err := o.samples()
	if err != nil {
		return err
	}
	for _, s := range after {
		s.say()
	}
	o.row.compare(before, after, margins)
	return nil
}

// tell prints what the processes have.
func (b *bed) tell() error {
	list, err := b.samples()
	for _, s := range list {
		s.say()
	}
	return err
}

func (s *sample) say() {
	say("  %-9s %5d descriptors, %3d threads, RSS %4d MiB, heap %6d KiB, %5d goroutines", s.name, s.Descriptors, s.Threads, s.RSS>>20, s.Heap>>10, s.Goroutines)
}

// wantSMC checks that the stack of the client has carried all connections over SMC-R.
func (o *openRun) wantSMC() error {
	st, err := o.stats(o.pair.B)
	if err != nil {
		return err
	}
	if smc := st.SMCR.ClientV1 + st.SMCR.ClientV2; smc < int64(o.n) {
		o.row.leak("only %d of %d connections are SMC-R", smc, o.n)
	}
	if st.Panics > 0 {
		o.row.leak("%d panics", st.Panics)
	}
	return nil
}

// rest waits until the stacks have neither connections nor link groups, and until memory
// that is not used has been given back.
func (o *openRun) rest() error {
	time.Sleep(groupIdle + trimTime)
	if o.embedded {
		return nil // its descriptors and goroutines tell
	}
	for _, h := range []*netnstest.Host{o.pair.A, o.pair.B} {
		if err := o.empty(h); err != nil {
			return err
		}
	}
	return nil
}

// empty waits until the stack of a host lists neither connections nor link groups.
func (b *bed) empty(h *netnstest.Host) error {
	return netnstest.Until(settleTime, func() error {
		for _, noun := range []string{"connection", "linkgroup"} {
			rows, err := b.rows(h, noun)
			if err != nil {
				return netnstest.Stop(err)
			}
			if len(rows) > 0 {
				return fmt.Errorf("%s lists %d of %s, the first one is %v", h.Name, len(rows), noun, rows[0])
			}
		}
		return nil
	})
}

// compare counts as leaked what processes have more than before.
func (r *Row) compare(before, after []sample, margins gauge.Sample) {
	first := map[gaugeAt]gauge.Sample{}
	for _, s := range before {
		first[s.gaugeAt] = s.Sample
	}
	for _, s := range after {
		for _, what := range grownBeyond(first[s.gaugeAt], s.Sample, margins) {
			r.leak("%s: %s", s.name, what)
		}
	}
}
