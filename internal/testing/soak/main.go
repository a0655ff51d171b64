// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"smcr/internal/cli"
	"smcr/internal/cmdutil"
	smcrrun "smcr/internal/run"
	"smcr/internal/testing/soak/gauge"
)

// Words with which this program starts itself.
const (
	asSMCR   = "as-smcr"   // GAUGE ARGUMENT...
	asServer = "as-server" // GAUGE [-stack] ADDRESS
	asClient = "as-client" // GAUGE [-stack] ADDRESS

	noGauge = "-" // in place of the path of a gauge
)

func main() {
	maybeChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// maybeChild does the work of a process that this program has started from itself, and does
// not return then.
func maybeChild() {
	smcrrun.MaybeChild()
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case asSMCR, asServer, asClient:
			os.Exit(child(os.Args[1], os.Args[2], os.Args[3:]))
		}
	}
}

// runs are the runs by the first argument. Each returns whether nothing was found.
var runs = map[string]func(context.Context, *flag.FlagSet, []string) (bool, error){
	"":            runSoak,
	"connections": runConnections,
	"open":        runOpen,
	"flood":       runFlood,
	"rounds":      runRounds,
}

func run(ctx context.Context, args []string) (bool, error) {
	name := ""
	if len(args) > 0 && runs[args[0]] != nil {
		name, args = args[0], args[1:]
	}
	return runs[name](ctx, flag.NewFlagSet("soak "+name, flag.ContinueOnError), args)
}

// child is what this program does when it has started itself.
func child(as, path string, args []string) int {
	var err error
	if path != noGauge {
		err = gauge.Serve(path)
	}
	if err == nil {
		switch as {
		case asSMCR:
			return cli.Program(context.Background(), cmdutil.NewFactory("soak"), append([]string{"smcr"}, args...))
		case asServer:
			err = trafficServer(args)
		case asClient:
			err = trafficClient(args)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	return 0
}
