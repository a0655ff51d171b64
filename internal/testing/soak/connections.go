// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// Margins by which a process may have more at the end than after the first connections.
// The numbers of threads and goroutines depend on how many connections were in the same
// state at the same time. RSS includes pages of Go that are free.
const (
	marginDescriptors = 8
	marginThreads     = 8
	marginGoroutines  = 16
	marginHeap        = 2 << 20
	marginRSS         = 24 << 20
	marginKernel      = 64 << 20 // of the whole machine
)

// grown returns what the process has more than before, beyond the margins.
func grown(before, now gauge.Sample) (list []string) {
	for _, v := range []struct {
		what            string
		was, is, margin int64
	}{
		{"descriptors", int64(before.Descriptors), int64(now.Descriptors), marginDescriptors},
		{"threads", int64(before.Threads), int64(now.Threads), marginThreads},
		{"goroutines", int64(before.Goroutines), int64(now.Goroutines), marginGoroutines},
		{"bytes of heap", before.Heap, now.Heap, marginHeap},
		{"bytes of resident memory", before.RSS, now.RSS, marginRSS},
	} {
		if v.is > v.was+v.margin {
			list = append(list, fmt.Sprintf("%d %s, %d before", v.is, v.what, v.was))
		}
	}
	return list
}

// endurance is a run of many connections.
type endurance struct {
	*bed
	pair   *netnstest.Pair
	client *client
	row    *Row
	first  map[gaugeAt]gauge.Sample
	kernel int64
}

// runConnections opens and closes many connections through one stack on each of two
// hosts.
func runConnections(ctx context.Context, flags *flag.FlagSet, args []string) (bool, error) {
	n := flags.Int("n", 1_000_000, "`number` of connections")
	first := flags.Int("first", 10_000, "connections before the first sample")
	step := flags.Int("step", 50_000, "connections between two samples")
	workers := flags.Int("workers", 16, "connections at the same time")
	profile := flags.String("profile", "", "write CPU profiles of the processes, of 10 s, to this `folder`")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	b, err := newBed()
	if err != nil {
		return false, err
	}
	defer b.close()
	pair, err := netnstest.Create(netnstest.Options{})
	if err != nil {
		return false, err
	}
	defer pair.Close()
	e := &endurance{bed: b, pair: pair, first: map[gaugeAt]gauge.Sample{}, row: &Row{Fault: "none", Traffic: "connections opened and closed"}}
	if err := e.start(); err != nil {
		return false, err
	}
	var profiling sync.WaitGroup
	defer profiling.Wait()
	if *profile != "" {
		profiling.Go(func() {
			if err := e.profiles(*profile, 10*time.Second); err != nil {
				say("%v", err)
			}
		})
	}
	began := time.Now()
	for done := 0; done < *n && ctx.Err() == nil; {
		some := min(*step-done%*step, *n-done)
		if done == 0 {
			some = min(*first, *n)
		}
		at := time.Now()
		if err := e.client.do(ctx, time.Duration(some)*100*time.Millisecond+time.Minute, "batch %d %d", some, *workers); err != nil && ctx.Err() == nil {
			return false, err
		}
		if ctx.Err() != nil {
			break
		}
		took := time.Since(at)
		done += some
		if err := e.sample(done, float64(some)/took.Seconds(), done >= *n); err != nil {
			return false, err
		}
	}
	t := e.client.tally(traffic.Batch)
	e.row.Times, e.row.Connections, e.row.Bytes = 1, t.Conns, t.Bytes
	say("%d connections in %v", t.Conns, time.Since(began).Round(time.Second))
	return e.finish(ctx, t)
}

// start starts the stacks, the server and the client.
func (e *endurance) start() error {
	for _, h := range []*netnstest.Host{e.pair.A, e.pair.B} {
		if _, err := e.serve(h); err != nil {
			return err
		}
	}
	address := e.pair.A.Addr() + ":7000"
	if _, err := e.server(e.pair.A, e.under(e.pair.A, "--no-adapt"), address); err != nil {
		return err
	}
	var err error
	e.client, err = e.bed.client("client", e.pair.B, e.under(e.pair.B, "--no-adapt"), func(f traffic.Failure) {
		if e.row.count(f.Class) < 20 {
			say("%s: %s: %s", f.Kind, f.Class, f.Error)
		}
	}, address)
	return err
}

// sample compares what the processes have with the first sample.
func (e *endurance) sample(done int, rate float64, last bool) error {
	if err := e.quiet(); err != nil {
		e.row.leak("%v", err)
	}
	kernel, err := gauge.Kernel()
	if err != nil {
		return err
	}
	say("%d connections, %.0f/s, kernel %d MiB", done, rate, kernel>>20)
	list, err := e.samples()
	if err != nil {
		return err
	}
	for _, s := range list {
		say("  %-9s %4d descriptors, %3d threads, RSS %3d MiB, heap %6d KiB, %3d goroutines", s.name, s.Descriptors, s.Threads, s.RSS>>20, s.Heap>>10, s.Goroutines)
		first, ok := e.first[s.gaugeAt]
		if !ok {
			e.first[s.gaugeAt], e.kernel = s.Sample, kernel
			continue
		}
		if last {
			for _, what := range grown(first, s.Sample) {
				e.row.leak("%s: %s", s.name, what)
			}
		}
	}
	if last && kernel > e.kernel+marginKernel {
		e.row.leak("kernel: %d MiB, %d before", kernel>>20, e.kernel>>20)
	}
	return nil
}

// quiet waits until no stack has a connection, and until memory that is not used has been
// given back.
func (e *endurance) quiet() error {
	for _, h := range []*netnstest.Host{e.pair.A, e.pair.B} {
		if err := e.noConnections(h); err != nil {
			return err
		}
	}
	time.Sleep(trimTime)
	return nil
}

// trimTime is longer than the time after which a stack returns memory.
const trimTime = 4 * time.Second

// noConnections waits until the stack of a host lists no connection.
func (b *bed) noConnections(h *netnstest.Host) error {
	return netnstest.Until(settleTime, func() error {
		rows, err := b.rows(h, "connection")
		if err != nil {
			return netnstest.Stop(err)
		}
		if len(rows) > 0 {
			return fmt.Errorf("%d connections are listed on %s, the first one is %v", len(rows), h.Name, rows[0])
		}
		return nil
	})
}

// finish checks that the connections were SMC-R, and ends everything.
func (e *endurance) finish(ctx context.Context, t traffic.Tally) (bool, error) {
	smc, err := e.clientConns(e.pair.B)
	if err != nil {
		return false, err
	}
	// A few may be TCP: the machine may be busy for longer than a handshake may take.
	if most := t.Conns / 1000; int64(smc) < t.Conns-most {
		e.row.leak("only %d of %d connections were SMC-R", smc, t.Conns)
	}
	say("%d of %d connections were SMC-R", smc, t.Conns)
	if err := e.client.finish(); err != nil {
		return false, err
	}
	for _, m := range e.alive() {
		if m.name == "server" {
			if err := m.end(); err != nil {
				return false, err
			}
		}
	}
	for _, m := range e.alive() {
		if err := m.end(); err != nil {
			return false, err
		}
	}
	return summary(e.row), ctx.Err()
}

// clientConns returns how many connections of clients on a host were SMC-R.
func (b *bed) clientConns(h *netnstest.Host) (int, error) {
	out, err := b.ask(h, "stats", "show", "--output", "json")
	if err != nil {
		return 0, err
	}
	var rows []struct {
		SMCR struct {
			ClientV1 int `json:"client_v1"`
			ClientV2 int `json:"client_v2"`
		} `json:"smc_r"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		return 0, errors.Join(fmt.Errorf("no statistics in %.500s", out), err)
	}
	return rows[0].SMCR.ClientV1 + rows[0].SMCR.ClientV2, nil
}
