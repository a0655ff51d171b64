// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"smcr/internal/place"
	"smcr/internal/testing/adversary"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// soakRun is two hosts with all kinds of traffic, and a hostile one. One fault is made after
// the other. What happens from the begin of a fault to that of the next one is in the row
// of the fault.
type soakRun struct {
	floodBed // without its clients: its attacks are faults here
	random   *rand.Rand
	began    time.Time
	config   string // file of the stacks
	extra    *client
	clients  []*client
	servers  []*member
	base     map[*netnstest.Host]gauge.Sample

	rows  map[string]*Row
	order []string
	now   fault // of the row
	made  int   // faults so far
	was   traffic.Tally
}

// soakMargins are what a stack may have more at the end of a soak than before the faults.
// Maps of Go keep the memory of their largest size. What grows with time is found by the run of
// many connections.
var soakMargins = gauge.Sample{Descriptors: 16, Threads: 64, Goroutines: 16, Heap: 24 << 20, RSS: 96 << 20, Mapped: 2 << 30}

// runSoak mixes all of it.
func runSoak(ctx context.Context, flags *flag.FlagSet, args []string) (bool, error) {
	d := flags.Duration("time", 30*time.Minute, "`time` of the run")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()), "`number` that decides about faults and traffic")
	only := flags.String("run", "", "faults whose names match this `regexp`")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return false, err
	}
	say("seed %d", *seed)
	s := &soakRun{
		random: rand.New(rand.NewPCG(*seed, 1)), rows: map[string]*Row{}, base: map[*netnstest.Host]gauge.Sample{},
	}
	s.begin(fault{name: "none"})
	err = s.start(*seed)
	if err == nil {
		run, stop := context.WithTimeout(ctx, *d)
		err = s.run(run, match)
		stop()
	}
	err = errors.Join(err, s.end())
	var rows []*Row
	for _, name := range s.order {
		rows = append(rows, s.rows[name])
	}
	// What was found in a long time is printed also if the end of the run fails.
	return summary(rows...), err
}

// start starts the hosts, their stacks and the traffic.
func (s *soakRun) start(seed uint64) (err error) {
	s.began = time.Now()
	if s.bed, err = newBed(); err != nil {
		return err
	}
	if s.lan, err = netnstest.CreateLAN(3, 2); err != nil {
		return err
	}
	s.a, s.b = s.lan.Hosts[0], s.lan.Hosts[1]
	if s.hostile, err = adversary.Open(s.lan.Hosts[2]); err != nil {
		return err
	}
	s.config = filepath.Join(s.dir, "smcr.yaml")
	if err := s.writeConfig(0); err != nil {
		return err
	}
	for _, h := range []*netnstest.Host{s.a, s.b} {
		if err := s.startStack(h); err != nil {
			return err
		}
	}
	return s.startTraffic(seed)
}

// stackFlags are those of the stacks: limits that the faults can reach.
func (s *soakRun) stackFlags() []string {
	return []string{"--config", s.config, "--group-idle", groupIdle.String(), "--max-memory", fmt.Sprint(memoryLimit)}
}

// startStack starts the stack of a host, and samples it before it is used.
func (s *soakRun) startStack(h *netnstest.Host) error {
	m, err := s.serve(h, s.stackFlags()...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, old := range s.stacks {
		if old.host == h {
			s.stacks[i] = m
			return nil
		}
	}
	s.stacks = append(s.stacks, m)
	return nil
}

// stackSample returns what the stack of a host has.
func (s *soakRun) stackSample(h *netnstest.Host) (gauge.Sample, error) {
	return s.newest("serve", h)
}

// epollProgram is a client in Python.
//
//go:embed epoll.py
var epollProgram string

// crowd is a client of a soak: where it is, what it uses and what it does.
type crowd struct {
	from, to int // hosts, 0 or 1
	port     string
	stack    bool // with an embedded stack, else under smcr run
	python   bool // the C library and epoll
	start    []string
}

// Ports of the servers: under smcr run, and with an embedded stack.
const embeddedPort = ":7001"

// crowds are the clients of a soak.
var crowds = []crowd{
	{from: 0, to: 1, port: serverPort, start: []string{"stream 1", "request 2", "short 1", "half 1", "urgent 1", "idle 5", "udp 1"}},
	{from: 1, to: 0, port: serverPort, start: []string{"stream 1", "request 1", "short 1", "urgent 1", "udp 1"}},
	{from: 0, to: 0, port: serverPort, start: []string{"stream 1", "request 1", "short 1", "half 1"}},
	{from: 0, to: 1, port: serverPort, stack: true, start: []string{"stream 1", "request 1", "short 1", "half 1"}},
	{from: 0, to: 1, port: embeddedPort, start: []string{"request 1", "short 1", "half 1"}},
	{from: 1, to: 0, port: serverPort, python: true, start: []string{"epoll 8"}},
}

func (s *soakRun) startTraffic(seed uint64) error {
	hosts := []*netnstest.Host{s.a, s.b}
	for _, h := range hosts {
		m, err := s.server(h, s.under(h, "--no-adapt"), h.Addr()+serverPort)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, m)
	}
	m, err := s.server(s.b, nil, "-stack", s.b.Addr()+embeddedPort)
	if err != nil {
		return err
	}
	s.servers = append(s.servers, m)
	s.extra, err = s.client("extra", s.a, s.under(s.a, "--no-adapt"), s.failed, "-pause", "20ms", s.b.Addr()+serverPort)
	if err != nil {
		return err
	}
	if err := s.warmUp(); err != nil {
		return err
	}
	for i, w := range crowds {
		from, address := hosts[w.from], hosts[w.to].Addr()+w.port
		name := fmt.Sprintf("client%d", i)
		flags := []string{"-seed", fmt.Sprint(seed + uint64(i)), "-pause", "20ms"}
		var c *client
		switch {
		case w.python:
			c, err = s.script(name, from, append(s.under(from, "--no-adapt"), "python3", "-c", epollProgram, address), s.failed)
		case w.stack:
			c, err = s.client(name, from, nil, s.failed, append(flags, "-stack", address)...)
		default:
			c, err = s.client(name, from, s.under(from, "--no-adapt"), s.failed, append(flags, address)...)
		}
		if err != nil {
			return err
		}
		s.clients = append(s.clients, c)
		for _, kind := range w.start {
			if err := c.do(context.Background(), commandTime, "start %s", kind); err != nil {
				return err
			}
		}
	}
	return nil
}

// warmUp uses the stacks, so that their devices are open, waits until they are idle again,
// and samples them.
func (s *soakRun) warmUp() error {
	for _, command := range []string{"batch 200 8", "hold 50 8", "exchange 8", "release 8"} {
		if err := s.extra.do(context.Background(), 3*time.Minute, "%s", command); err != nil {
			return err
		}
	}
	for _, h := range []*netnstest.Host{s.a, s.b} {
		err := s.empty(h)
		if err != nil {
			return err
		}
		time.Sleep(trimTime)
		if s.base[h], err = s.stackSample(h); err != nil {
			return err
		}
	}
	return nil
}

// begin ends the period of the last fault, and begins that of the next one.
func (s *soakRun) begin(f fault) {
	total := s.total()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row != nil {
		s.row.Connections += total.Conns - s.was.Conns
		s.row.Bytes += total.Bytes - s.was.Bytes
	}
	s.was, s.now = total, f
	row := s.rows[f.name]
	if row == nil {
		row = &Row{Fault: f.name, Traffic: "all kinds"}
		s.rows[f.name], s.order = row, append(s.order, f.name)
	}
	row.Times++
	s.row = row
}

// total returns what the clients have counted.
func (s *soakRun) total() (sum traffic.Tally) {
	for _, c := range append(s.clients[:len(s.clients):len(s.clients)], s.extra) {
		if c != nil {
			sum.Add(c.total())
		}
	}
	return sum
}

// failed counts a failure in the row of the present fault, unless the fault may have it.
func (s *soakRun) failed(x traffic.Failure) {
	s.mu.Lock()
	row, f := s.row, s.now
	s.mu.Unlock()
	if x.Class == traffic.Ended && f.ends || x.Class == traffic.Refused && f.refuses {
		return
	}
	if row.count(x.Class) <= 20 {
		say("%s: %s: %s after %v: %s", row.Fault, x.Kind, x.Class, x.At.Sub(x.Began).Round(time.Millisecond), x.Error)
	}
}

// run makes faults until ctx is done, and prints a line each minute.
func (s *soakRun) run(ctx context.Context, match *regexp.Regexp) error {
	var list []fault
	for _, f := range s.faults() {
		if match.MatchString(f.name) {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		return fmt.Errorf("no fault matches %q", match)
	}
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			select {
			case <-minute.C:
				s.minute()
			case <-ctx.Done():
				return
			}
		}
	})
	defer telling.Wait()
	var todo []fault
	for ctx.Err() == nil {
		if len(todo) == 0 { // each once, in random order, and then again
			todo = append(todo, list...)
			s.random.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
		}
		f := todo[0]
		todo = todo[1:]
		if !pause(ctx, time.Duration(s.random.IntN(2000))*time.Millisecond) {
			return nil
		}
		s.begin(f)
		s.made++
		say("fault: %s", f.name)
		if err := f.make(ctx); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		// What the fault does may be seen some time later.
		pause(ctx, f.after())
	}
	return nil
}

// pause waits, and reports whether ctx is not done.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// minute prints how far the run is.
func (s *soakRun) minute() {
	t := s.total()
	s.mu.Lock()
	made := s.made
	s.mu.Unlock()
	var sum gauge.Sample
	for _, h := range []*netnstest.Host{s.a, s.b} {
		// A stack that does not run now is not counted.
		if g, err := s.stackSample(h); err == nil {
			sum.RSS += g.RSS
			sum.Descriptors += g.Descriptors
			sum.Threads += g.Threads
			sum.Goroutines += g.Goroutines
		}
	}
	say("%v: %d connections, %d open, %d MiB, %d faults; stacks: %d MiB, %d descriptors, %d threads, %d goroutines",
		time.Since(s.began).Round(time.Second), t.Conns, t.Open, t.Bytes>>20, made, sum.RSS>>20, sum.Descriptors, sum.Threads, sum.Goroutines)
}

// end ends the traffic and the stacks, and counts what remains.
func (s *soakRun) end() error {
	s.begin(fault{name: "none"})
	s.rows["none"].Times--
	var errs []error
	for _, c := range append(s.clients, s.extra) {
		if c != nil {
			errs = append(errs, c.do(context.Background(), 3*time.Minute, "stop"), c.finish())
		}
	}
	for _, m := range s.servers {
		errs = append(errs, m.end())
	}
	row := s.rows["none"]
	for _, m := range s.stacks {
		if err := s.empty(m.host); err != nil {
			row.leak("link groups or connections: %v", err)
		}
		time.Sleep(trimTime)
		now, err := s.stackSample(m.host)
		if errs = append(errs, err); err == nil {
			for _, what := range grownBeyond(s.base[m.host], now, soakMargins) {
				row.leak("stack of %s: %s", m.host.Name, what)
			}
		}
		st, err := s.stats(m.host)
		if errs = append(errs, err); st.Panics > 0 {
			row.leak("%d panics on %s", st.Panics, m.host.Name)
		}
		errs = append(errs, m.end())
		for _, name := range remaining(m.host) {
			row.leak("%s remains of %s", name, m.host.Name)
		}
	}
	s.begin(fault{name: "none"}) // count what the clients have done since
	s.rows["none"].Times--
	if s.hostile != nil {
		errs = append(errs, s.hostile.Close())
	}
	if s.lan != nil {
		errs = append(errs, s.lan.Close())
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/run/netns/smcr-%d-*", os.Getpid())); len(left) > 0 {
		row.leak("network namespaces: %s", strings.Join(left, " "))
	}
	if s.bed != nil {
		errs = append(errs, s.bed.close())
	}
	return errors.Join(errs...)
}

// remaining returns the files that the stack of a host has left, but for those that are to
// stay: its state, and the directory with the lock.
func remaining(h *netnstest.Host) (list []string) {
	entries, _ := files(h)
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 || strings.HasSuffix(e.Name(), ".tmp") {
			list = append(list, e.Name())
		}
	}
	return list
}

// files returns those of the stacks of a host.
func files(h *netnstest.Host) (entries []os.DirEntry, err error) {
	err = h.Do(func() error {
		dir, err := place.Dir()
		if err == nil {
			entries, err = os.ReadDir(dir)
		}
		return err
	})
	return entries, err
}
