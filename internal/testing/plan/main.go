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
)

func main() {
	var o options
	flag.StringVar(&o.goTool, "go", "go", "the `program` go")
	flag.IntVar(&o.seeds, "seeds", 3000, "run `N` seeds of the simulation; plan test runs a tenth of them")
	flag.IntVar(&o.guests, "guests", 2, "run `N` tests with a Linux kernel at the same time")
	flag.StringVar(&o.timeout, "timeout", "35m", "time `limit` for the tests of one package")
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
		for _, l := range labels(steps) {
			fmt.Println(l)
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
