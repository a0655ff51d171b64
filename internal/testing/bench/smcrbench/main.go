// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"smcr/internal/testing/bench"
)

// options are the flags.
type options struct {
	smcr       string
	against    string
	rows       string
	rounds     int
	time       time.Duration
	serveFlags string
	force      bool
	out        string
	maxConns   int
}

func main() {
	var o options
	flag.StringVar(&o.smcr, "smcr", "bin/smcr", "the smcr `program`")
	flag.StringVar(&o.against, "against", "", "another smcr `program`, measured in turn with the first")
	flag.StringVar(&o.rows, "rows", "all", "measure only these rows and sweeps: `names`, comma-separated; a name selects those that begin with it, too")
	flag.IntVar(&o.rounds, "rounds", 5, "`number` of rounds")
	flag.DurationVar(&o.time, "time", 2*time.Second, "`duration` of each measurement; whole seconds for iperf3 and wrk")
	flag.StringVar(&o.serveFlags, "serve-flags", "", "further `flags` of smcr serve, separated by spaces")
	flag.BoolVar(&o.force, "force", false, "measure even if others use the CPU; the result is marked")
	flag.StringVar(&o.out, "out", "", "write the result as JSON into this `directory` (default: "+resultDir+" if nothing is left out, else none)")
	flag.IntVar(&o.maxConns, "max-connections", 10000, "largest `number` of connections in the sweep")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 1 || o.time <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "smcrbench:", err)
		os.Exit(1)
	}
}

// resultDir is the directory of the results.
const resultDir = "bench/results"

func run(ctx context.Context, o options) (err error) {
	chosen, err := bench.Select(o.rows)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root to make network namespaces: sudo make bench")
	}
	// Programs are killed together with smcr run, which waits for them.
	if err := adoptOrphans(); err != nil {
		return err
	}
	r := &runner{
		options: o, chosen: chosen, beds: make(map[string]*bed), redisRequests: make(map[string]int),
		look: bench.ReadSnapshot, pause: sleep,
	}
	if r.smcr, err = filepath.Abs(o.smcr); err != nil {
		return err
	}
	if o.against != "" {
		if err := r.useOther(ctx); err != nil {
			return err
		}
	}
	if err := r.needTools(); err != nil {
		return err
	}
	if err := raiseFiles(); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "smcr-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	// The workers of nginx do not run as root.
	if err := os.Chmod(r.dir, 0o755); err != nil {
		return err
	}
	r.load = filepath.Join(r.dir, "load")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", r.load, "smcr/internal/testing/programs/load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build load: %w\n%s", err, out)
	}

	if r.other != nil {
		r.other.dir, r.other.load = r.dir, r.load
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.quiet(ctx); err != nil {
		return err
	}
	result, err := r.all(ctx)
	if err != nil {
		return err
	}
	if err := result.Print(os.Stdout); err != nil {
		return err
	}
	dir := o.out
	if dir == "" && bench.Whole(chosen) {
		dir = resultDir
	}
	if dir == "" {
		fmt.Fprintln(os.Stderr, "    not all rows were measured: no file in "+resultDir+" (-out DIRECTORY writes one)")
		return nil
	}
	name, err := result.Write(dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "    result:", name)
	return nil
}

// all makes the chosen measurements.
func (r *runner) all(ctx context.Context) (*bench.Result, error) {
	result := &bench.Result{
		Schema: bench.Schema, Commit: commit(ctx), Command: command(r.options), Machine: machine(),
		Rounds: r.rounds, Seconds: r.time.Seconds(), ServeFlags: r.serveFlags, Against: r.version,
	}
	var err error
	if result.Rows, err = r.rowRounds(ctx); err != nil {
		return nil, err
	}
	for _, sweep := range []struct {
		name    string
		measure func(context.Context, *bench.Result) error
	}{{"sizes", r.sizes}, {"connections", r.connections}, {"shares", r.shares}} {
		if !r.chosen[sweep.name] {
			continue
		}
		if err := sweep.measure(ctx, result); err != nil {
			return nil, fmt.Errorf("%s: %w", sweep.name, err)
		}
	}
	result.Date = time.Now().UTC().Truncate(time.Second)
	result.Forced, result.OthersMax = r.disturbed, bench.Round(r.othersMax)
	return result, nil
}

// command returns the flags that repeat the run, without paths.
func command(o options) string {
	argv := []string{"smcrbench", "-rows", o.rows, "-rounds", fmt.Sprint(o.rounds), "-time", o.time.String()}
	if o.serveFlags != "" {
		argv = append(argv, "-serve-flags", fmt.Sprintf("%q", o.serveFlags))
	}
	if o.against != "" {
		argv = append(argv, "-against", filepath.Base(o.against))
	}
	if o.force {
		argv = append(argv, "-force")
	}
	return strings.Join(argv, " ")
}
