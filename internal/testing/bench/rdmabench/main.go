// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"smcr/internal/testing/bench"
	"smcr/internal/testing/guest"
)

// runLimit bounds each measurement.
const runLimit = 2 * time.Minute

type test struct {
	tool, ours, what string
	latency          bool
}

// tests are the operations, with their names on both sides.
var tests = []test{
	{"ib_write_bw", "write-bw", "WRITE", false},
	{"ib_send_bw", "send-bw", "SEND", false},
	{"ib_read_bw", "read-bw", "READ", false},
	{"ib_write_lat", "write-lat", "WRITE latency", true},
	{"ib_send_lat", "send-lat", "SEND latency", true},
}

type options struct {
	smcr      string
	sizes     []int
	rounds    int
	iters     int
	mtu, cpus int
	only      map[string]bool // the chosen operations; empty means all
}

func main() {
	var o options
	flag.StringVar(&o.smcr, "smcr", "bin/smcr", "the smcr `program`")
	sizes := flag.String("sizes", "64,4096,65536,1048576,8388608", "`bytes` of the messages, comma-separated")
	only := flag.String("only", "", "`operations` to measure, comma-separated names of smcr verbs perf, such as write-bw; the default is all")
	flag.IntVar(&o.rounds, "rounds", 3, "`number` of rounds")
	flag.IntVar(&o.iters, "iters", 200, "`number` of messages in a measurement, fewer of large ones")
	flag.IntVar(&o.mtu, "mtu", 9000, "MTU of the veth pairs in `bytes`")
	flag.IntVar(&o.cpus, "cpus", 2, "`number` of processors of the guest")
	flag.Parse()
	err := parse(&o, *sizes, *only)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rdmabench:", err)
		os.Exit(1)
	}
}

func parse(o *options, sizes, only string) error {
	o.only = map[string]bool{}
	for s := range strings.SplitSeq(only, ",") {
		if s == "" {
			continue
		}
		if !slices.ContainsFunc(tests, func(t test) bool { return t.ours == s }) {
			return fmt.Errorf("operation %q: unknown", s)
		}
		o.only[s] = true
	}
	for s := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("size %q: a positive number of bytes", s)
		}
		o.sizes = append(o.sizes, n)
	}
	return nil
}

// A lane is a veth pair with devices of one kind at both ends.
type lane struct {
	server, client         []string // the beginning of a command line there
	serverArgs, clientArgs []string // device and GID
	addr                   string   // of the server
}

type bed struct {
	*guest.Guest
	smcr string
	port int
	rxe  lane
	soft lane
}

func run(ctx context.Context, o options) (err error) {
	g, err := guest.Boot(ctx, guest.Config{Name: "bench", CPUs: o.cpus, TrustTSC: true, Limit: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	b := &bed{Guest: g, port: 20000}
	file, err := filepath.Abs(o.smcr)
	if err != nil {
		return err
	}
	if b.smcr, err = g.Push(file); err != nil {
		return err
	}
	if err := b.setUp(ctx, o.mtu); err != nil {
		return err
	}
	fmt.Printf("Linux %s in QEMU, %d processors, emulated; veth, MTU %d; %d rounds\n", g.Kernel(), o.cpus, o.mtu, o.rounds)
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer func() { err = errors.Join(err, tw.Flush()) }() // prints the results before an error, too
	fmt.Fprintln(tw, "operation\tbytes\trxe\tsoftroce\tunit\tratio\tbetter is\t")
	for _, t := range tests {
		if len(o.only) > 0 && !o.only[t.ours] {
			continue
		}
		for _, size := range o.sizes {
			if t.latency && size > 1<<16 {
				continue
			}
			iters := max(5, min(o.iters, 32<<20/size))
			var rxe, soft []float64
			for range o.rounds {
				r, err := b.tool(ctx, t.tool, size, iters, t.latency)
				if err != nil {
					return err
				}
				s, err := b.ours(ctx, t.ours, size, iters, t.latency)
				if err != nil {
					return err
				}
				rxe, soft = append(rxe, r), append(soft, s)
			}
			unit, better := "MiB/s", "more"
			if t.latency {
				unit, better = "µs", "less"
			}
			m, n := bench.Median(rxe), bench.Median(soft)
			fmt.Fprintf(tw, "%s\t%d\t%.2f\t%.2f\t%s\t%.2f\t%s\t\n", t.what, size, m, n, unit, n/m, better)
		}
	}
	return b.overWire(ctx)
}

// overWire checks that the packets of rxe were sent over the wire.
func (b *bed) overWire(ctx context.Context) error {
	r, err := b.Run(ctx, "cat", "/sys/class/net/r1/statistics/rx_bytes")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
	if err != nil || n < 1<<20 {
		return fmt.Errorf("only %q bytes of rxe went over the veth pair: the kernel looped the rest, its figures are worthless", strings.TrimSpace(r.Stdout))
	}
	return nil
}

// setUp makes the two lanes.
func (b *bed) setUp(ctx context.Context, mtu int) error {
	const (
		a1, a2 = "10.8.1.1", "10.8.1.2"
		n      = "ip netns exec "
	)
	script := fmt.Sprintf(`set -e
modprobe -a rdma_rxe ib_uverbs
ip link add r1 mtu %[1]d type veth peer name r2 mtu %[1]d
for d in all r1 r2; do
  sysctl -qw net.ipv4.conf.$d.rp_filter=0 net.ipv4.conf.$d.accept_local=1 net.ipv4.conf.$d.arp_ignore=1
done
ip addr add %[2]s/32 dev r1
ip addr add %[3]s/32 dev r2
ip link set r1 up
ip link set r2 up
ip neigh replace %[3]s lladdr $(cat /sys/class/net/r2/address) dev r1 nud permanent
ip neigh replace %[2]s lladdr $(cat /sys/class/net/r1/address) dev r2 nud permanent
ip route add %[3]s dev r1 src %[2]s table 101
ip route add %[2]s dev r2 src %[3]s table 102
ip rule add pref 10 oif r1 lookup 101
ip rule add pref 11 oif r2 lookup 102
ip rule add pref 100 lookup local
ip rule del pref 0
rdma link add rxe1 type rxe netdev r1
rdma link add rxe2 type rxe netdev r2
ip netns add s1
ip netns add s2
ip link add e0 netns s1 mtu %[1]d type veth peer name e0 netns s2 mtu %[1]d
for i in 1 2; do
  ip -n s$i addr add 10.8.2.$i/24 dev e0
  ip -n s$i link set e0 up
  ip -n s$i link set lo up
done
`, mtu, a1, a2)
	if r, err := b.Run(ctx, "sh", "-c", script); err != nil {
		return fmt.Errorf("%w\n%s", err, r.Stdout)
	}
	b.rxe = lane{addr: "127.0.0.1", serverArgs: []string{"-d", "rxe1", "-x", "1"}, clientArgs: []string{"-d", "rxe2", "-x", "1"}}
	b.soft = lane{addr: "10.8.2.1", server: strings.Fields(n + "s1"), client: strings.Fields(n + "s2")}
	return nil
}

// pair runs a server and a client and returns the output of the client.
func (b *bed) pair(ctx context.Context, l lane, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	b.port++
	at := strconv.Itoa(b.port)
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	argv = append(argv, "-p", at)
	s := b.Command(join(l.server, argv, l.serverArgs)...)
	if err := s.Start(); err != nil {
		return "", err
	}
	look := "for i in $(seq 300); do ss -Hltn sport = :" + at + " | grep -q . && exit 0; sleep 0.1; done; exit 1"
	if _, err := b.Run(ctx, join(l.server, []string{"sh", "-c", look})...); err != nil {
		return "", fmt.Errorf("%q does not listen: %w", argv, err)
	}
	c, err := b.Run(ctx, join(l.client, argv, l.clientArgs, []string{l.addr})...)
	if err != nil {
		return "", fmt.Errorf("%w\n%s%s", err, c.Stdout, c.Stderr)
	}
	if r, err := s.Wait(ctx); err != nil {
		return "", fmt.Errorf("%w\n%s%s", err, r.Stdout, r.Stderr)
	}
	return c.Stdout, nil
}

// Both sides have a local ACK timeout of 537 ms. The programs poll without a pause, so in
// an emulated machine the default of 67 ms can pass without any loss.
const timeout = "17"

var row = regexp.MustCompile(`(?m)^ *\d+ +\d+ +(\d+\.\d+)\s+(\d+\.\d+)\s+(\d+\.\d+)`)

// tool measures rxe: the average bandwidth in MiB/s or the typical latency in µs.
func (b *bed) tool(ctx context.Context, name string, size, iters int, latency bool) (float64, error) {
	for range toolTries {
		out, err := b.pair(ctx, b.rxe, name, "-F", "-u", timeout, "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters))
		if err != nil {
			return 0, err
		}
		if noClock.MatchString(out) {
			continue
		}
		m := row.FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("%s wrote no result:\n%s", name, out)
		}
		if latency {
			return strconv.ParseFloat(m[3], 64)
		}
		return strconv.ParseFloat(m[2], 64)
	}
	return 0, fmt.Errorf("%s did not learn the frequency of the processor in %d runs: the machine is too busy", name, toolTries)
}

// perftest counts ticks of the processor. On a busy machine it may not find out the
// length of a tick, and then prints infinite results. Such a run is repeated.
// long one is, and writes infinite results: such a run is repeated.
const toolTries = 5

var noClock = regexp.MustCompile(`(?m)^ *\d+ +\d+ .*\binf\b`)

// ours measures softroce in the same way.
func (b *bed) ours(ctx context.Context, name string, size, iters int, latency bool) (float64, error) {
	argv := []string{b.smcr, "verbs", "perf", name, "-u", timeout, "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters), "-o", "json"}
	out, err := b.pair(ctx, b.soft, argv...)
	if err != nil {
		return 0, err
	}
	var r []struct {
		Average float64 `json:"average_mib_per_second"`
		Typical float64 `json:"typical_usec"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r) != 1 {
		return 0, fmt.Errorf("%s wrote %d results: %v\n%s", name, len(r), err, out)
	}
	if latency {
		return r[0].Typical, nil
	}
	return r[0].Average, nil
}
