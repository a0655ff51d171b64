// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// The programs that it starts end with this thread, also if it is killed.
	runtime.LockOSThread()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command runs the command line and returns the exit status.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("plan", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.goTool, "go", "go", "the `program` go")
	flags.IntVar(&o.seeds, "seeds", 3000, "run `N` seeds of the simulation in part sim")
	flags.IntVar(&o.guests, "guests", 2, "run `N` tests with a Linux kernel at the same time")
	flags.StringVar(&o.only, "run", "", "run only the tests that match this `regexp`; no result is kept")
	flags.StringVar(&o.results, "results", "bin/results", "the `folder` of the results")
	list := flags.Bool("list", false, "print the steps and run nothing")
	again := flags.Bool("again", false, "with all: also run the parts that this tree has passed")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: plan [flags] all | results | repeat … | %s\n", strings.Join(partNames(), " | "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var err error
	switch name := flags.Arg(0); {
	case name == "repeat":
		return repeatCommand(ctx, flags.Args()[1:], stdout, stderr)
	case flags.NArg() != 1:
		flags.Usage()
		return 2
	case name == "results":
		err = printResults(stdout, o.results)
	case name == "all":
		err = o.all(ctx, stdout, *again)
	default:
		p, ok := o.part(name)
		if !ok {
			flags.Usage()
			return 2
		}
		if *list {
			for i, s := range p.steps {
				fmt.Fprintf(stdout, "[%d/%d] %s\n", i+1, len(p.steps), s.name)
			}
			return 0
		}
		err = o.run(ctx, stdout, p)
	}
	if err != nil {
		fmt.Fprintf(stderr, "plan: %v\n", err)
		return 1
	}
	return 0
}
