// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// A step is one part of a plan.
type step struct {
	name string
	run  func(ctx context.Context, r *report) error
}

func main() {
	var o options
	flag.StringVar(&o.goTool, "go", "go", "the `program` go")
	flag.IntVar(&o.seeds, "seeds", 3000, "run `N` seeds of the simulation; plan test runs a tenth of them")
	flag.IntVar(&o.guests, "guests", 2, "run `N` tests with a Linux kernel at the same time")
	flag.StringVar(&o.timeout, "timeout", "25m", "time `limit` for the tests of one package")
	flag.StringVar(&o.only, "run", "", "run the end-to-end tests that match this `regexp`")
	list := flag.Bool("list", false, "print the steps and run nothing")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: plan [flags] %s\n", strings.Join(planNames(), "|"))
		flag.PrintDefaults()
	}
	flag.Parse()
	steps := o.plan(flag.Arg(0))
	if steps == nil || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if *list {
		for i, s := range steps {
			fmt.Printf("[%d/%d] %s\n", i+1, len(steps), s.name)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r := newReport(os.Stdout)
	runSteps(ctx, r, steps)
	if !r.summary(flag.Arg(0)) {
		os.Exit(1)
	}
}

// runSteps runs all steps, also those after a failed one, until ctx is done.
func runSteps(ctx context.Context, r *report, steps []step) {
	for i, s := range steps {
		if ctx.Err() != nil {
			r.failStep(s.name, context.Cause(ctx))
			return
		}
		start, used := time.Now(), processorTime()
		r.say("[%d/%d] %s", i+1, len(steps), s.name)
		stop := r.watch()
		err := s.run(ctx, r)
		stop()
		r.endStep(s.name, time.Since(start), processorTime()-used, err)
	}
}

// processorTime returns the processor time of all programs that have run for the
// plan and ended. Unlike the time by the clock, it does not depend on what else the
// machine does.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0 // cannot happen: the arguments are valid
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
