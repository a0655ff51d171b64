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
	"syscall"
	"text/tabwriter"
	"time"

	"smcr/internal/netnstest"
)

type runner struct {
	smcr, load string // programs
	few, many  int    // connections whose difference makes the slope
	burst      int
	bytes      int
	idle       time.Duration
	serve      []string // more options of the stacks

	pair  *netnstest.Pair
	procs []proc // that count
	out   *tabwriter.Writer
}

// proc is a process whose memory counts.
type proc struct {
	name string
	pid  int
}

func main() {
	var r runner
	flag.StringVar(&r.smcr, "smcr", "bin/smcr", "the smcr `program`")
	flag.IntVar(&r.few, "few", 100, "lower `number` of connections of the slope")
	flag.IntVar(&r.many, "many", 400, "higher `number` of connections of the slope")
	flag.IntVar(&r.burst, "burst", 2000, "`number` of connections of the burst")
	flag.IntVar(&r.bytes, "bytes", 1024, "`bytes` each way on a connection, at most 64 KiB")
	flag.DurationVar(&r.idle, "idle", 10*time.Second, "`time` without traffic before memory is read")
	flag.Parse()
	r.serve = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "memorybench:", err)
		os.Exit(1)
	}
}

func (r *runner) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root to make network namespaces")
	}
	if r.smcr, err = filepath.Abs(r.smcr); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "smcr-memory-")
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
	if r.pair, err = netnstest.Create(netnstest.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.pair.Close()) }()

	for _, h := range []*netnstest.Host{r.pair.A, r.pair.B} {
		stack, err := h.Start(h.Command(ctx, r.smcr, append([]string{"serve"}, r.serve...)...))
		if err != nil {
			return err
		}
		defer stack.Kill()
		err = netnstest.Until(20*time.Second, func() error {
			_, err := h.Output(ctx, r.smcr, "--backend", "user", "info")
			return err
		})
		if err != nil {
			return fmt.Errorf("%w\n%s", err, stack.Log())
		}
		r.procs = append(r.procs, proc{map[bool]string{true: "server's stack", false: "client's stack"}[h == r.pair.A], stack.Pid()})
	}
	addr := r.pair.A.Addr() + ":9001"
	server, err := r.start(ctx, r.pair.A, "server", addr)
	if err != nil {
		return err
	}
	defer server.Kill()
	if err := server.WaitOutput("listening", 20*time.Second); err != nil {
		return err
	}
	r.procs = append(r.procs, proc{"server's launcher", server.Pid()}, proc{"client's launcher", 0})

	r.out = tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(r.out, "KiB\t")
	for _, p := range r.procs {
		fmt.Fprint(r.out, p.name, "\t")
	}
	fmt.Fprintln(r.out, "all\t")
	if err := r.measure(ctx, addr); err != nil {
		return err
	}
	return r.out.Flush()
}

func (r *runner) measure(ctx context.Context, addr string) error {
	fresh, err := r.slope(ctx, addr)
	if err != nil {
		return err
	}
	r.row("a connection, fresh stacks", fresh)
	// One connection first: what a stack needs for any.
	if _, err := r.hold(ctx, addr, 1); err != nil {
		return err
	}
	before, err := r.memory(0)
	if err != nil {
		return err
	}
	held, err := r.hold(ctx, addr, r.burst)
	if err != nil {
		return err
	}
	after, err := r.memory(0)
	if err != nil {
		return err
	}
	used, err := r.slope(ctx, addr)
	if err != nil {
		return err
	}
	r.row("a connection, used stacks", used)
	r.row("all, before the burst", before)
	r.row(fmt.Sprintf("all, %d connections", r.burst), held)
	r.row(fmt.Sprintf("all, %v after it", r.idle), after)
	return nil
}

// slope returns what one connection costs.
func (r *runner) slope(ctx context.Context, addr string) ([]float64, error) {
	few, err := r.hold(ctx, addr, r.few)
	if err != nil {
		return nil, err
	}
	many, err := r.hold(ctx, addr, r.many)
	if err != nil {
		return nil, err
	}
	for i := range many {
		many[i] = (many[i] - few[i]) / float64(r.many-r.few)
	}
	return many, nil
}

// hold returns the memory while a program has n connections.
func (r *runner) hold(ctx context.Context, addr string, n int) ([]float64, error) {
	p, err := r.start(ctx, r.pair.B, "client", addr, "hold", strconv.Itoa(n), strconv.Itoa(r.bytes))
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	if err := p.WaitOutput("holding", time.Minute); err != nil {
		return nil, err
	}
	if err := r.checkSMC(ctx, n); err != nil {
		return nil, err
	}
	m, err := r.memory(p.Pid())
	if err != nil {
		return nil, err
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	if err := p.Wait(30 * time.Second); err != nil {
		return nil, err
	}
	return m, netnstest.Until(30*time.Second, func() error { return r.checkSMC(ctx, 0) })
}

// memory waits until all is idle and returns the memory of each process in KiB.
// That of the client's launcher is 0 if there is none.
func (r *runner) memory(launcher int) ([]float64, error) {
	time.Sleep(r.idle)
	out := make([]float64, len(r.procs))
	for i, p := range r.procs {
		if p.pid == 0 {
			p.pid = launcher
		}
		if p.pid == 0 {
			continue
		}
		pss, err := resident(p.pid)
		if err != nil {
			return nil, err
		}
		out[i] = pss
	}
	return out, nil
}

// start starts the load program under smcr run.
func (r *runner) start(ctx context.Context, h *netnstest.Host, args ...string) (*netnstest.Process, error) {
	return h.Start(h.Command(ctx, r.smcr, append([]string{"run", "--mode", "user", "--", r.load}, args...)...))
}

// row prints one line of the table.
func (r *runner) row(what string, values []float64) {
	fmt.Fprint(r.out, what, "\t")
	var sum float64
	for _, v := range values {
		fmt.Fprintf(r.out, "%.1f\t", v)
		sum += v
	}
	fmt.Fprintf(r.out, "%.1f\t\n", sum)
}

// checkSMC makes sure that n connections use SMC-R.
func (r *runner) checkSMC(ctx context.Context, n int) error {
	out, err := r.pair.B.Output(ctx, r.smcr, "--backend", "user", "linkgroup", "list", "--output", "json")
	if err != nil {
		return err
	}
	var groups []struct{ Conns int }
	if err := json.Unmarshal([]byte(out), &groups); err != nil {
		return fmt.Errorf("smcr linkgroup list: %w in %q", err, out)
	}
	got := 0
	for _, g := range groups {
		got += g.Conns
	}
	if got != n {
		return fmt.Errorf("%d connections use SMC-R, not %d", got, n)
	}
	return nil
}
