// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"smcr/internal/testing/adversary"
	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// Users without privileges. The others must be served while the hostile one attacks.
const (
	honestUser  = "1000"
	hostileUser = "65534"
)

// serverPort is where the traffic servers listen.
const serverPort = ":7000"

// floodBed is two hosts with stacks and traffic between them, and a hostile host.
type floodBed struct {
	*bed
	lan     *netnstest.LAN
	a, b    *netnstest.Host
	hostile *adversary.Host
	// clients are on a and b, each with a server on the other host.
	clients []*client
	servers []*member
	stacks  []*member

	load load

	mu  sync.Mutex
	row *Row // of the flood that runs
	// refused counts connections that were not made, by the row.
	refused atomic.Int64
}

// load is what there is beside a flood, and how fast that is.
type load struct {
	held  int           // connections that each client keeps open during all floods
	busy  []string      // traffic besides these: kinds and workers
	pause time.Duration // between two times that each of these is used
	rate  int           // of the floods, things a second; 0: as fast as the machine can
}

// Loads: many kinds of traffic, to find what breaks, and what tells losses and delays.
var (
	allTraffic = load{held: 20, busy: []string{"short 2", "request 2", "stream 1"}, pause: time.Second}
	victims    = load{held: 250, busy: []string{"short 1"}, pause: 100 * time.Millisecond, rate: 5000}
)

// wholeElement is how many bytes a connection carries until its RMB elements were written to from one end to the other.
const wholeElement = 300 << 10

// connectBound is the time in which a connection must be made and used once.
const connectBound = 10 * time.Second

// runFlood makes each kind of flood for some time.
func runFlood(ctx context.Context, flags *flag.FlagSet, args []string) (bool, error) {
	d := flags.Duration("time", 5*time.Minute, "`time` of each flood")
	only := flags.String("run", "", "floods whose names match this `regexp`")
	table := flags.Bool("table", false, "print losses and delays of 500 connections beside each flood, as the table of docs/reliability.md")
	rate := flags.Int("rate", victims.rate, "with -table: things that a flood sends `a second`; 0 is as fast as the machine can")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return false, err
	}
	beside := allTraffic
	if *table {
		beside = victims
		beside.rate = *rate
	}
	f, err := newFloodBed(ctx, beside)
	if err != nil {
		return false, err
	}
	rows, err := f.floods(ctx, match, *d)
	err = errors.Join(err, f.close())
	ok := summary(rows...)
	if *table {
		printFigures(os.Stdout, rows)
	}
	return ok, err
}

func newFloodBed(ctx context.Context, beside load) (_ *floodBed, err error) {
	b, err := newBed()
	if err != nil {
		return nil, err
	}
	f := &floodBed{bed: b, load: beside, row: &Row{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if err := built.Programs(ctx, b.dir, "smcr/internal/testing/programs/hostile"); err != nil {
		return nil, err
	}
	if f.lan, err = netnstest.CreateLAN(3, 1); err != nil {
		return nil, err
	}
	f.a, f.b = f.lan.Hosts[0], f.lan.Hosts[1]
	if f.hostile, err = adversary.Open(f.lan.Hosts[2]); err != nil {
		return nil, err
	}
	for _, h := range []*netnstest.Host{f.a, f.b} {
		s, err := b.serve(h, "--group-idle", "1m")
		if err != nil {
			return nil, err
		}
		f.stacks = append(f.stacks, s)
		m, err := b.server(h, b.under(h, "--no-adapt"), h.Addr()+serverPort)
		if err != nil {
			return nil, err
		}
		f.servers = append(f.servers, m)
	}
	for _, d := range [][2]*netnstest.Host{{f.a, f.b}, {f.b, f.a}} {
		c, err := b.client("client", d[0], append(as(honestUser), b.under(d[0], "--no-adapt")...), f.failed,
			"-connect-time", connectBound.String(), "-pause", "20ms", d[1].Addr()+serverPort)
		if err != nil {
			return nil, err
		}
		f.clients = append(f.clients, c)
	}
	return f, f.all(ctx, "hold %d 4", f.load.held)
}

// all has all clients execute a command at the same time.
func (f *floodBed) all(ctx context.Context, format string, args ...any) error {
	errs := make([]error, len(f.clients))
	var wg sync.WaitGroup
	for i, c := range f.clients {
		wg.Go(func() { errs[i] = c.do(ctx, 3*time.Minute, format, args...) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// failed counts a failure in the row of the flood that runs.
func (f *floodBed) failed(x traffic.Failure) {
	f.mu.Lock()
	row := f.row
	f.mu.Unlock()
	n := int64(0)
	if x.Class == traffic.Refused {
		n = f.refused.Add(1)
	} else {
		n = row.count(x.Class)
	}
	if n < 10 {
		say("%s: %s: %s after %v: %s", row.Fault, x.Kind, x.Class, x.At.Sub(x.Began).Round(time.Millisecond), x.Error)
	}
}

// close ends everything.
func (f *floodBed) close() error {
	var errs []error
	for _, c := range f.clients {
		errs = append(errs, c.finish())
	}
	for _, m := range append(f.servers, f.stacks...) {
		errs = append(errs, m.end())
	}
	if f.hostile != nil {
		errs = append(errs, f.hostile.Close())
	}
	if f.lan != nil {
		errs = append(errs, f.lan.Close())
	}
	return errors.Join(append(errs, f.bed.close())...)
}

// floods makes the floods that match, one after the other.
func (f *floodBed) floods(ctx context.Context, match *regexp.Regexp, d time.Duration) (rows []*Row, err error) {
	for _, a := range attacks {
		if !match.MatchString(a.name) || ctx.Err() != nil {
			continue
		}
		row, err := f.flood(ctx, a, d)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", a.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// flood makes one flood.
func (f *floodBed) flood(ctx context.Context, a attack, d time.Duration) (*Row, error) {
	row := &Row{Fault: a.name, Traffic: "held, requests, streams, connects"}
	f.mu.Lock()
	f.row = row
	f.mu.Unlock()
	f.refused.Store(0)
	// Those that the last flood has ended are made again. Each has the memory then that it will ever have: an RMB
	// element is written to from one end to the other, and its pages stay while the connection is open.
	for _, command := range []string{fmt.Sprintf("hold %d 4", f.load.held), fmt.Sprintf("fill %d 4", wholeElement)} {
		if err := f.all(ctx, "%s", command); err != nil {
			return nil, err
		}
	}
	was := f.sum()
	// What one flood leaves, such as the memory of maps that were large, is no growth if
	// the next one of the same kind does not add to it.
	var times atomic.Int64
	if err := f.attack(ctx, a, max(d/10, shortest), &times); err != nil {
		return nil, err
	}
	time.Sleep(trimTime)
	before, err := f.calm(ctx)
	if err != nil {
		return nil, err
	}
	logs, figures := f.logs(), f.look(ctx, &times)
	if err := f.attack(ctx, a, d, &times); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	row.Figures = f.look(ctx, &times).since(figures)
	now := f.sum()
	grew := f.logs() - logs
	row.note("the logs of the stacks grew by %d bytes in %v", grew, d)
	if grew > logBurst+int(d.Seconds())*logSecond {
		row.leak("the logs grew by more than %d bytes, and %d a second", logBurst, logSecond)
	}
	row.Times, row.Connections, row.Bytes = times.Load(), now.Conns-was.Conns, now.Bytes-was.Bytes
	f.judge(row, now.Tried-was.Tried, now.Slowest)
	say("%s: %d times, %s", row.Fault, row.Times, strings.Join(row.Notes, "; "))
	return row, f.recovered(ctx, row, before)
}

// logs returns the size of what the stacks have written.
func (f *floodBed) logs() (n int) {
	for _, m := range f.stacks {
		n += len(m.Log())
	}
	return n
}

// logBurst and logSecond are what the logs of both stacks may grow by in a flood, in bytes: what others
// cause is limited for each kind of line.
const logBurst, logSecond = 1 << 20, 8 << 10

// shortest is how long the first flood of a kind takes at least.
const shortest = 3 * time.Second

// attack makes a flood beside the traffic of the clients.
func (f *floodBed) attack(ctx context.Context, a attack, d time.Duration, times *atomic.Int64) error {
	for _, kind := range f.load.busy {
		if err := f.all(ctx, "start %s", kind); err != nil {
			return err
		}
	}
	attack, stop := context.WithTimeout(ctx, d)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- a.run(attack, f, times) }()
	ctx = context.WithoutCancel(ctx) // the end is in order
	for attack.Err() == nil {
		if err := f.all(ctx, "exchange 4"); err != nil {
			return err
		}
		select {
		case <-time.After(f.load.pause):
		case <-attack.Done():
		}
	}
	// Connections must live, also after the flood.
	return errors.Join(<-ended, f.all(ctx, "exchange 4"), f.all(ctx, "stop"))
}

// sum returns what the clients have counted.
func (f *floodBed) sum() (sum traffic.Tally) {
	for _, c := range f.clients {
		sum.Add(c.total())
	}
	return sum
}

// judge compares the connections that were not made with their limit, one of 1000.
func (f *floodBed) judge(row *Row, tried int64, slowest time.Duration) {
	refused := f.refused.Load()
	row.note("%d of %d connects failed, the slowest so far took %v", refused, tried, slowest.Round(time.Millisecond))
	if refused*1000 > tried {
		row.Lost += refused
	}
	for _, c := range f.clients {
		if open := c.tally(traffic.Held).Open; open != int64(f.load.held) {
			row.note("%d of %d connections that were open at the beginning live", open, f.load.held)
		}
	}
	for i, m := range f.stacks {
		select {
		case <-m.Done():
			row.leak("stack %d has ended:\n%s", i, lastOf(m.Log(), 4000))
		default:
		}
	}
}

// calm waits until only the held connections use the stacks, and samples the processes.
func (f *floodBed) calm(ctx context.Context) ([]sample, error) {
	if err := f.all(ctx, "exchange 4"); err != nil {
		return nil, err
	}
	time.Sleep(trimTime)
	return f.samples()
}

// recovered waits until what the flood took was given back.
func (f *floodBed) recovered(ctx context.Context, row *Row, before []sample) error {
	var left *Row
	err := netnstest.Until(settleTime, func() error {
		now, err := f.calm(ctx)
		if err != nil {
			return netnstest.Stop(err)
		}
		left = &Row{}
		if left.compare(before, now, floodMargins); left.Leaked > 0 {
			return errGrown
		}
		return nil
	})
	if errors.Is(err, errGrown) {
		for _, note := range left.Notes {
			row.leak("%s", note)
		}
		err = nil
	}
	for _, h := range []*netnstest.Host{f.a, f.b} {
		st, serr := f.stats(h)
		if err = errors.Join(err, serr); st.Panics > 0 {
			row.leak("%d panics on %s", st.Panics, h.Name)
		}
	}
	return err
}

// floodMargins are what a process may have more after a flood than after a short one, which may not
// reach the bounds of what is remembered.
var floodMargins = func() gauge.Sample { m := margins; m.Heap = 8 << 20; return m }()

var errGrown = errors.New("the processes have more than before")

// user runs the hostile program on host a as a user.
func (f *floodBed) user(ctx context.Context, kind string, times *atomic.Int64) error {
	argv := append(as(hostileUser), f.exe, asSMCR, noGauge, "run", "--mode", "user", "--", filepath.Join(f.dir, "hostile"), "exhaust", kind, f.b.Addr()+serverPort)
	cmd := f.a.Command(ctx, argv[0], argv[1:]...)
	p, err := f.a.Start(cmd)
	if err != nil {
		return err
	}
	defer p.Kill()
	select {
	case <-ctx.Done():
		times.Add(lastTimes(p.Log()))
		return nil
	case <-p.Done():
		if ctx.Err() != nil {
			times.Add(lastTimes(p.Log()))
			return nil
		}
		return fmt.Errorf("the hostile program ended:\n%s", lastOf(p.Log(), 2000))
	}
}
