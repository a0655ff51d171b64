// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"smcr/internal/bench"
	"smcr/internal/netnstest"
)

// held connections show the memory of one.
const held = 100

type runner struct {
	smcr, load string // programs
	mtu        int
	rounds     int
	buf        int // 0: the default
	time       time.Duration

	pair *netnstest.Pair

	throughput, cpu, roundTrip, rate, memory *bench.Measure
}

func main() {
	var r runner
	flag.StringVar(&r.smcr, "smcr", "bin/smcr", "the smcr `program`")
	flag.IntVar(&r.mtu, "mtu", 1500, "MTU of the veth pair in `bytes`")
	flag.IntVar(&r.buf, "buf", 0, "size of send and receive buffers of the stacks in `bytes` (default: theirs)")
	flag.IntVar(&r.rounds, "rounds", 5, "`number` of rounds")
	flag.DurationVar(&r.time, "time", 2*time.Second, "`duration` of each measurement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(r.rounds)*(8*r.time+30*time.Second))
	defer cancel()
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "smcrbench:", err)
		os.Exit(1)
	}
}

func (r *runner) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root to make network namespaces: sudo make bench")
	}
	if r.smcr, err = filepath.Abs(r.smcr); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "smcr-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r.load = filepath.Join(dir, "load")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", r.load, "./internal/bench/load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build load: %w\n%s", err, out)
	}
	if r.pair, err = netnstest.Create(netnstest.Options{MTU: r.mtu}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.pair.Close()) }()

	r.throughput = &bench.Measure{Name: "throughput, writes of 1 MiB", Unit: "MiB/s"}
	r.cpu = &bench.Measure{Name: "CPU for that", Unit: "s/GiB", LessIsBetter: true}
	r.roundTrip = &bench.Measure{Name: "round trip, 1 byte", Unit: "µs", LessIsBetter: true}
	r.rate = &bench.Measure{Name: "connections", Unit: "1/s"}
	r.memory = &bench.Measure{Name: "memory of a connection, both ends", Unit: "KiB", LessIsBetter: true}

	if r.buf != 0 {
		// Before the programs start stacks of their own.
		for _, h := range []*netnstest.Host{r.pair.A, r.pair.B} {
			size := strconv.Itoa(r.buf)
			stack, err := h.Start(h.Command(ctx, r.smcr, "serve", "--rcvbuf", size, "--sndbuf", size))
			if err != nil {
				return err
			}
			defer stack.Kill()
			if err := r.waitStack(ctx, h); err != nil {
				return errors.Join(err, errors.New(stack.Log()))
			}
		}
	}

	// Both servers stay for all rounds; so do the stacks that they start.
	addrs := map[bool]string{false: r.pair.A.Addr() + ":9001", true: r.pair.A.Addr() + ":9002"}
	for _, smc := range []bool{false, true} {
		server, err := r.start(ctx, r.pair.A, smc, "server", addrs[smc])
		if err != nil {
			return err
		}
		defer server.Kill()
		if err := server.WaitOutput("listening", 20*time.Second); err != nil {
			return err
		}
	}
	for round := range r.rounds {
		fmt.Fprintf(os.Stderr, "    round %d of %d\n", round+1, r.rounds)
		for _, smc := range []bool{false, true} {
			if err := r.round(ctx, smc, addrs[smc]); err != nil {
				return fmt.Errorf("%s: %w", map[bool]string{false: "kernel TCP", true: "SMC-R"}[smc], err)
			}
		}
	}
	fmt.Printf("veth, MTU %d bytes, %d rounds of %v, medians\n", r.mtu, r.rounds, r.time)
	return bench.Print(os.Stdout, []*bench.Measure{r.throughput, r.cpu, r.roundTrip, r.rate, r.memory})
}

// waitStack waits until the stack of a host answers.
func (r *runner) waitStack(ctx context.Context, h *netnstest.Host) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		_, err := h.Output(ctx, r.smcr, "--backend", "user", "info")
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// start starts the load program, under smcr run or not.
func (r *runner) start(ctx context.Context, h *netnstest.Host, smc bool, args ...string) (*netnstest.Process, error) {
	argv := append([]string{r.load}, args...)
	if smc {
		argv = append([]string{r.smcr, "run", "--mode", "user", "--"}, argv...)
	}
	return h.Start(h.Command(ctx, argv[0], argv[1:]...))
}

// round makes each measurement once over one transport.
func (r *runner) round(ctx context.Context, smc bool, addr string) error {
	into := func(m *bench.Measure) *[]float64 {
		if smc {
			return &m.SMC
		}
		return &m.TCP
	}
	add := func(m *bench.Measure, v float64) {
		list := into(m)
		*list = append(*list, v)
	}

	// Memory first: it also makes the link group, so that no measurement of
	// time pays for the first contact.
	before, err := r.resident()
	if err != nil {
		return err
	}
	p, err := r.start(ctx, r.pair.B, smc, "client", addr, "hold", strconv.Itoa(held))
	if err != nil {
		return err
	}
	defer p.Kill()
	if err := p.WaitOutput("holding", 30*time.Second); err != nil {
		return err
	}
	if smc {
		if err := r.checkSMC(ctx); err != nil {
			return err
		}
	}
	after, err := r.resident()
	if err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.Wait(10 * time.Second); err != nil {
		return err
	}
	// What a previous round left for reuse serves this one: the first tells.
	if grown := float64(after-before) / held / 1024; len(*into(r.memory)) == 0 {
		add(r.memory, max(0, grown))
	}

	cpu, err := r.cpuTime()
	if err != nil {
		return err
	}
	bytes, seconds, clientCPU, err := r.measure(ctx, smc, addr, "write")
	if err != nil {
		return err
	}
	later, err := r.cpuTime()
	if err != nil {
		return err
	}
	add(r.throughput, bytes/(1<<20)/seconds)
	add(r.cpu, (later-cpu+clientCPU).Seconds()/(bytes/(1<<30)))

	n, seconds, _, err := r.measure(ctx, smc, addr, "roundtrip")
	if err != nil {
		return err
	}
	add(r.roundTrip, seconds*1e6/n)
	if n, seconds, _, err = r.measure(ctx, smc, addr, "connect"); err != nil {
		return err
	}
	add(r.rate, n/seconds)
	return nil
}

// measure runs a client to its end and returns the count and the seconds it
// printed, and the CPU time of it and its launcher.
func (r *runner) measure(ctx context.Context, smc bool, addr, what string) (count, seconds float64, cpu time.Duration, err error) {
	p, err := r.start(ctx, r.pair.B, smc, "client", addr, what, r.time.String())
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.Kill()
	if err := p.Wait(r.time + 30*time.Second); err != nil {
		return 0, 0, 0, fmt.Errorf("%s: %w\n%s", what, err, p.Log())
	}
	if _, err := fmt.Sscan(p.Log(), &count, &seconds); err != nil || count == 0 || seconds == 0 {
		return 0, 0, 0, fmt.Errorf("%s: %v in %q", what, err, p.Log())
	}
	// The launcher waited for the program, so this is the sum of both.
	state := p.Cmd.ProcessState
	return count, seconds, state.UserTime() + state.SystemTime(), nil
}

// checkSMC makes sure that what is measured as SMC-R is SMC-R.
func (r *runner) checkSMC(ctx context.Context) error {
	out, err := r.pair.B.Output(ctx, r.smcr, "--backend", "user", "linkgroup", "list", "--output", "json")
	if err != nil {
		return err
	}
	var groups []struct{ Conns int }
	if err := json.Unmarshal([]byte(out), &groups); err != nil {
		return fmt.Errorf("smcr linkgroup list: %w in %q", err, out)
	}
	n := 0
	for _, g := range groups {
		n += g.Conns
	}
	if n != held {
		return fmt.Errorf("%d of %d connections use SMC-R", n, held)
	}
	return nil
}

// eachPid calls f for each process on both hosts.
func (r *runner) eachPid(f func(pid int) error) error {
	for _, h := range []*netnstest.Host{r.pair.A, r.pair.B} {
		pids, err := h.Pids()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			// One that ended meanwhile is none of ours.
			if err := f(pid); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// resident returns the resident memory of all processes in bytes.
func (r *runner) resident() (sum int64, err error) {
	err = r.eachPid(func(pid int) error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return err
		}
		var size, pages int64
		if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
			return err
		}
		sum += pages * int64(os.Getpagesize())
		return nil
	})
	return sum, err
}

// tick is the unit of times in /proc/PID/stat, 1/USER_HZ s on every Linux.
const tick = 10 * time.Millisecond

// cpuTime returns the user and system time of all running processes.
func (r *runner) cpuTime() (sum time.Duration, err error) {
	err = r.eachPid(func(pid int) error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The second field, the name in parentheses, may hold anything.
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(f) < 13 {
			return fmt.Errorf("/proc/%d/stat: %q", pid, s)
		}
		for _, field := range f[11:13] { // utime, stime
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return err
			}
			sum += time.Duration(n) * tick
		}
		return nil
	})
	return sum, err
}
