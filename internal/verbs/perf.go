// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/output"
	"smcr/internal/verbs/perftest"
	"smcr/internal/verbs/rc"

	"github.com/spf13/cobra"
)

type perfOptions struct {
	common
	perftest.Options
	test    perftest.Test
	seconds int
	qps     int
	quiet   bool // -F
}

// programs are the tests with the programs that they speak to.
var programs = []struct {
	name, program, does string
	test                perftest.Test
	iters               int
}{
	{"write-bw", "ib_write_bw", "the bandwidth of RDMA WRITE", perftest.Test{Verb: perftest.Write}, 5000},
	{"write-lat", "ib_write_lat", "the latency of RDMA WRITE", perftest.Test{Verb: perftest.Write, Latency: true}, 1000},
	{"send-bw", "ib_send_bw", "the bandwidth of SEND", perftest.Test{Verb: perftest.Send}, 1000},
	{"send-lat", "ib_send_lat", "the latency of SEND", perftest.Test{Verb: perftest.Send, Latency: true}, 1000},
	{"read-bw", "ib_read_bw", "the bandwidth of RDMA READ", perftest.Test{Verb: perftest.Read}, 1000},
	{"read-lat", "ib_read_lat", "the latency of RDMA READ", perftest.Test{Verb: perftest.Read, Latency: true}, 1000},
}

func newPerf(f *cmdutil.Factory) *cobra.Command {
	cmd := cmdutil.Group(&cobra.Command{
		Use:     "perf",
		Short:   "Measure bandwidth and latency, as perftest does",
		Example: "  hostA# smcr verbs perf send-lat\n  hostB# smcr verbs perf send-lat hostA",
		Long: "Measure the bandwidth and latency of RDMA operations. The other side is the same\n" +
			"command, or the matching program of perftest 5.70 or later.",
	})
	for _, p := range programs {
		cmd.AddCommand(newTest(f, p.name, p.program, p.does, p.test, p.iters))
	}
	return cmd
}

func newTest(f *cmdutil.Factory, name, program, does string, test perftest.Test, iters int) *cobra.Command {
	o := &perfOptions{common: common{Factory: f}, test: test}
	size := 65536
	if test.Latency {
		size = 2
	}
	cmd := &cobra.Command{
		Use:   name + " [HOST]",
		Short: fmt.Sprintf("Measure %s, as %s does", does, program),
		Long: fmt.Sprintf("Measure %s. Without HOST, wait for one client. The other\n"+
			"side is the same command or %s, with the same size and number of\nmessages.", does, program),
		Example: fmt.Sprintf("  hostA# smcr verbs perf %s\n  hostB# %s -x 1 -F hostA", name, program),
		Args:    oneHost,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.take(args); err != nil {
				return err
			}
			if o.qps != 1 {
				return cmdutil.UsageError("--qp %d: only one queue pair can be measured at a time", o.qps)
			}
			o.Patience, o.MTU, o.Duration = o.patience, mtuCode(o.mtu), time.Duration(o.seconds)*time.Second
			if err := o.Check(o.test); err != nil {
				return cmdutil.UsageError("%v", err)
			}
			return o.run(cmd.Context())
		},
	}
	o.addFlags(cmd, "gid-index", "x", 0, "path MTU in `bytes`; the smaller value of the two sides counts; the default is the largest that the netdev carries")
	fl := cmd.Flags()
	fl.IntVarP(&o.Size, "size", "s", size, "`bytes` of a message, 1 to 2^30")
	fl.BoolVarP(&o.All, "all", "a", false, "measure all powers of two from 2 bytes to 8 MiB")
	fl.IntVarP(&o.Iters, "iters", "n", iters, "`number` of messages, 5 or more")
	fl.IntVarP(&o.qps, "qp", "q", 1, "`number` of queue pairs; must be 1")
	fl.Uint8VarP(&o.Timeout, "qp-timeout", "u", rc.Timeout, "local ACK timeout `exponent`, 4.096 µs · 2^exponent")
	fl.BoolVarP(&o.quiet, "CPU-freq", "F", false, "accepted, without effect: smcr does not check the CPU frequency")
	o.Depth, o.RxDepth = 1, 512
	if !test.Latency {
		fl.IntVarP(&o.Depth, "tx-depth", "t", 128, "`number` of messages outstanding, 1 to 8192")
		if test.Verb != perftest.Send {
			fl.IntVarP(&o.seconds, "duration", "D", 0, "measure for this many `seconds` instead of a number of messages")
		}
	}
	if test.Verb == perftest.Send {
		fl.IntVarP(&o.RxDepth, "rx-depth", "r", 512, "`number` of receives posted, 1 to 8192")
	}
	return cmd
}

// A bandwidthJSON is a row of a bandwidth test in JSON.
type bandwidthJSON struct {
	Size    int     `json:"size"`
	Iters   int     `json:"iterations"`
	Peak    float64 `json:"peak_mib_per_second"`
	Average float64 `json:"average_mib_per_second"`
	Rate    float64 `json:"million_messages_per_second"`
}

// A latencyJSON is a row of a latency test in JSON, in microseconds.
type latencyJSON struct {
	Size    int     `json:"size"`
	Iters   int     `json:"iterations"`
	Min     float64 `json:"min_usec"`
	Max     float64 `json:"max_usec"`
	Typical float64 `json:"typical_usec"`
	Average float64 `json:"average_usec"`
	Stdev   float64 `json:"stdev_usec"`
	P99     float64 `json:"p99_usec"`
	P999    float64 `json:"p999_usec"`
}

func (o *perfOptions) run(ctx context.Context) error {
	tcp, s, err := o.meet(ctx)
	if err != nil {
		return err
	}
	defer o.finish(tcp, s)
	progress := o.IO.Progress("measuring")
	r, err := perftest.Run(ctx, tcp, o.host != "", s, o.test, o.Options)
	progress.Stop()
	if err != nil {
		return err
	}
	o.describe(s, r.MTU, r.Remote.GID)
	if o.test.Latency {
		return o.printLatency(r.Latency)
	}
	return o.printBandwidth(r.Bandwidth)
}

func (o *perfOptions) printBandwidth(all []perftest.Bandwidth) error {
	var rows []bandwidthJSON
	t := output.NewTable(">Bytes", ">Iterations", ">Peak MiB/s", ">Average MiB/s", ">Million/s")
	for _, b := range all {
		rows = append(rows, bandwidthJSON(b))
		peak := "-"
		if b.Peak > 0 {
			peak = fmt.Sprintf("%.2f", b.Peak)
		}
		t.Add(b.Size, b.Iters, peak, fmt.Sprintf("%.2f", b.Average), fmt.Sprintf("%.6f", b.Rate))
	}
	if o.format == cmdutil.FormatJSON {
		return output.JSON(o.IO.Out, rows)
	}
	return t.Print(o.IO.Out)
}

func (o *perfOptions) printLatency(all []perftest.Latency) error {
	var rows []latencyJSON
	t := output.NewTable(">Bytes", ">Iterations", ">Min µs", ">Max µs", ">Typical µs", ">Average µs", ">Stdev µs", ">99% µs", ">99.9% µs")
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	for _, l := range all {
		j := latencyJSON{l.Size, l.Iters, us(l.Min), us(l.Max), us(l.Typical), us(l.Average), us(l.Stdev), us(l.P99), us(l.P999)}
		rows = append(rows, j)
		cells := []any{j.Size, j.Iters}
		for _, x := range []float64{j.Min, j.Max, j.Typical, j.Average, j.Stdev, j.P99, j.P999} {
			cells = append(cells, fmt.Sprintf("%.2f", x))
		}
		t.Add(cells...)
	}
	if o.format == cmdutil.FormatJSON {
		return output.JSON(o.IO.Out, rows)
	}
	if len(rows) == 0 {
		return nil // the server of reads: only the client measures
	}
	return t.Print(o.IO.Out)
}
