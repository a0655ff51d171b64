// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// margins are what a process may have more at the end than after the first connections.
// The numbers of threads and goroutines depend on how many connections were in the same
// state at the same time. RSS includes pages of Go that are free. A stack has 16 to 32 sockets in stock.
var margins = gauge.Sample{Descriptors: 24, Threads: 8, Goroutines: 16, Heap: 2 << 20, RSS: 24 << 20, Mapped: 512 << 20}

// marginKernel is that of the memory of the kernel in bytes, for the whole machine.
const marginKernel = 64 << 20

// grown returns what a process has more than before, beyond the margins.
func grown(before, now gauge.Sample) []string { return grownBeyond(before, now, margins) }

func grownBeyond(before, now, margins gauge.Sample) (list []string) {
	for _, v := range []struct {
		what            string
		was, is, margin int64
	}{
		{"descriptors", int64(before.Descriptors), int64(now.Descriptors), int64(margins.Descriptors)},
		{"threads", int64(before.Threads), int64(now.Threads), int64(margins.Threads)},
		{"goroutines", int64(before.Goroutines), int64(now.Goroutines), int64(margins.Goroutines)},
		{"bytes of heap", before.Heap, now.Heap, margins.Heap},
		{"bytes of resident memory", before.RSS, now.RSS, margins.RSS},
		{"mapped bytes", before.Mapped, now.Mapped, margins.Mapped},
		{"entries of eBPF maps", int64(before.Entries), int64(now.Entries), int64(margins.Entries)},
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

const (
	// piece is how many connections the client makes with one command: a run that is
	// interrupted ends after that.
	piece = 1000
	// pieceTime bounds the time of a piece.
	pieceTime = 5 * time.Minute
)

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
			time.Sleep(trimTime) // the programs have started
			if err := e.profiles(*profile, "cpu", "profile 10s"); err != nil {
				say("%v", err)
			}
		})
	}
	began := time.Now()
	next, at, since := min(*first, *n), began, 0
	for done := 0; done < *n && ctx.Err() == nil; {
		some := min(piece, next-done)
		if err := e.client.do(context.WithoutCancel(ctx), pieceTime, "batch %d %d", some, *workers); err != nil {
			return false, err
		}
		done += some
		if done < next && ctx.Err() == nil {
			continue
		}
		rate := float64(done-since) / time.Since(at).Seconds()
		if err := e.sample(done, rate, done >= *n || ctx.Err() != nil); err != nil {
			return false, err
		}
		next, at, since = min(done-done%*step+*step, *n), time.Now(), done
	}
	t := e.client.tally(traffic.Batch)
	e.row.Times, e.row.Connections, e.row.Bytes = 1, t.Conns, t.Bytes
	say("%d connections in %v", t.Conns, time.Since(began).Round(time.Second))
	return e.finish(t)
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
		s.say()
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
func (e *endurance) finish(t traffic.Tally) (bool, error) {
	for _, h := range []*netnstest.Host{e.pair.A, e.pair.B} {
		st, err := e.stats(h)
		if err != nil {
			return false, err
		}
		if st.Panics > 0 {
			e.row.leak("%d panics on %s", st.Panics, h.Name)
		}
		if h == e.pair.A {
			continue
		}
		smc := st.SMCR.ClientV1 + st.SMCR.ClientV2
		say("%d of %d connections were SMC-R, %d fell back to TCP", smc, t.Conns, st.Fallbacks.Client)
		// A few may be TCP: the machine may be busy for longer than a handshake may take.
		if smc < t.Conns-t.Conns/1000 {
			e.row.leak("only %d of %d connections were SMC-R", smc, t.Conns)
		}
	}
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
	return summary(e.row), nil
}
