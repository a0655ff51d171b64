// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"smcr/internal/bench"
	"smcr/internal/netnstest"
)

// options are those of all three processes.
type options struct {
	mtu, rounds, block int
	time               time.Duration
	noEngine           bool
	spin               time.Duration
	profile            string
}

func main() {
	var o options
	flag.IntVar(&o.mtu, "mtu", 9000, "MTU of the veth pair in `bytes`")
	flag.IntVar(&o.rounds, "rounds", 5, "`number` of rounds")
	flag.IntVar(&o.block, "block", 128<<10, "size of a write in `bytes`")
	flag.DurationVar(&o.time, "time", time.Second, "`duration` of each measurement")
	flag.BoolVar(&o.noEngine, "no-engine", false, "stacks without an engine")
	flag.DurationVar(&o.spin, "spin", 0, "the stacks' Config.Spin")
	flag.StringVar(&o.profile, "profile", "", "write CPU profiles of the SMC-R processes to `PREFIX`.server and .client")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := flag.Args(); {
	case len(args) == 0:
		err = o.run(ctx)
	case args[0] == "server" && len(args) == 3:
		err = o.serve(ctx, args[1] == "smc", args[2])
	case args[0] == "client" && len(args) == 4:
		err = o.client(ctx, args[1] == "smc", args[2], args[3])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apibench:", err)
		os.Exit(1)
	}
}

// forward returns the flags for a process on one of the hosts.
func (o *options) forward(who string) []string {
	args := []string{
		"-time", o.time.String(), "-block", strconv.Itoa(o.block), "-spin", o.spin.String(),
		"-no-engine=" + strconv.FormatBool(o.noEngine),
	}
	if o.profile != "" {
		args = append(args, "-profile", o.profile+"."+who)
	}
	return args
}

func (o *options) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root to make network namespaces")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	pair, err := netnstest.Create(netnstest.Options{MTU: o.mtu})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	start := func(h *netnstest.Host, args ...string) (*netnstest.Process, error) {
		return h.Start(h.Command(ctx, self, append(o.forward(args[0]), args...)...))
	}
	addr := map[string]string{"tcp": pair.A.Addr() + ":9001", "smc": pair.A.Addr() + ":9002"}
	for kind, at := range addr {
		server, err := start(pair.A, "server", kind, at)
		if err != nil {
			return err
		}
		defer server.Kill()
		if err := server.WaitOutput("listening", 20*time.Second); err != nil {
			return err
		}
		defer func() { // it writes its profile
			_ = server.Signal(syscall.SIGTERM)
			_ = server.Wait(10 * time.Second)
		}()
	}
	ms := map[string]*bench.Measure{
		"write":     {Name: fmt.Sprintf("throughput, writes of %d KiB", o.block>>10), Unit: "MiB/s"},
		"lent":      {Name: "throughput, lent buffers", Unit: "MiB/s"},
		"roundtrip": {Name: "round trip, 1 byte", Unit: "µs", LessIsBetter: true},
	}
	order := []string{"write", "lent", "roundtrip"}
	for round := range o.rounds {
		fmt.Fprintf(os.Stderr, "    round %d of %d\n", round+1, o.rounds)
		for _, what := range order {
			for _, kind := range []string{"tcp", "smc"} {
				p, err := start(pair.B, "client", kind, addr[kind], what)
				if err != nil {
					return err
				}
				defer p.Kill()
				if err := p.Wait(o.time + 30*time.Second); err != nil {
					return fmt.Errorf("%s over %s: %w\n%s", what, kind, err, p.Log())
				}
				var v float64
				if _, err := fmt.Sscan(p.Log(), &v); err != nil {
					return fmt.Errorf("%s over %s: %w in %q", what, kind, err, p.Log())
				}
				if kind == "tcp" {
					ms[what].TCP = append(ms[what].TCP, v)
				} else {
					ms[what].SMC = append(ms[what].SMC, v)
				}
			}
		}
	}
	fmt.Printf("veth, MTU %d bytes, %d rounds of %v, medians; without copies kernel TCP is Write and Read\n", o.mtu, o.rounds, o.time)
	var list []*bench.Measure
	for _, what := range order {
		list = append(list, ms[what])
	}
	return bench.Print(os.Stdout, list)
}
