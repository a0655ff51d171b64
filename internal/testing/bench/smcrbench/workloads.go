// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"smcr/internal/testing/bench"
)

// A measure returns the values of the rows of a workload, and the work that was done meanwhile, in the unit of the workload.
type measure func(ctx context.Context, r *runner, b *bed, smc bool) (values []float64, work float64, err error)

// A workload measures the values of one row or more, in the order of rows. It uses the
// bed with this name, or makes beds if the name is empty. unit is that of the CPU time of one unit of work.
type workload struct {
	rows    []string
	bed     string
	unit    string
	measure measure
}

var workloads = []workload{
	{[]string{"iperf3-1500", "cpu-1500"}, "1500", "s/GiB", iperf3},
	{[]string{"iperf3-9000"}, "9000", "s/GiB", iperf3},
	{[]string{"roundtrip"}, "1500", "µs/round trip", roundTrip},
	{[]string{"roundtrip-c"}, "1500", "µs/round trip", qperf},
	{[]string{"redis-1"}, "1500", "µs/request", redis("redis-1", 1, 1)},
	{[]string{"redis"}, "1500", "µs/request", redis("redis", 50, 1)},
	{[]string{"redis-p16"}, "1500", "µs/request", redis("redis-p16", 50, 16)},
	{[]string{"wrk-4"}, "1500", "µs/request", wrk(4)},
	{[]string{"wrk"}, "1500", "µs/request", wrk(50)},
	{[]string{"wrk-200"}, "1500", "µs/request", wrk(200)},
	{[]string{"close-4"}, "1500", "µs/connection", closing(4)},
	{[]string{"close"}, "1500", "µs/connection", closing(50)},
	{[]string{"close-200"}, "1500", "µs/connection", closing(200)},
	{[]string{"close-smc"}, "1500", "µs/connection", closingSMC},
	{[]string{"close-nopeer"}, "1500", "µs/connection", closingNoPeer},
	{[]string{"goapi"}, "9000-api", "s/GiB", goAPI},
	{[]string{"goapi-roundtrip"}, "9000-api", "µs/round trip", roundTrip},
	{[]string{"iperf3-v1"}, "9000-v1", "s/GiB", iperf3},
	{[]string{"containers-iperf3"}, "containers", "s/GiB", iperf3},
	{[]string{"containers-roundtrip"}, "containers", "µs/round trip", roundTrip},
	{[]string{"memory"}, "", "", memory},
	{[]string{"connect"}, "1500", "µs/connection", connect},
}

// limit is the time limit of a measurement of the usual duration.
func (r *runner) limit() time.Duration { return 2*r.time + 60*time.Second }

// seconds is the duration for programs that take only whole seconds.
func (r *runner) seconds() string { return strconv.Itoa(int(max(r.time, time.Second) / time.Second)) }

func (b *bed) iperf3Server(ctx context.Context, smc bool) (int, error) {
	return b.server(ctx, "iperf3", smc, func(port int) ([]string, error) {
		return []string{"iperf3", "-s", "-B", b.A.Addr(), "-p", strconv.Itoa(port)}, nil
	})
}

// iperf3 returns Gbit/s and the CPU seconds of all processes for each GiB.
func iperf3(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	port, err := b.iperf3Server(ctx, smc)
	if err != nil {
		return nil, 0, err
	}
	before, err := b.cpu("iperf3", smc)
	if err != nil {
		return nil, 0, err
	}
	c, err := b.client(ctx, smc, r.limit(), "iperf3", "-c", b.A.Addr(), "-p", strconv.Itoa(port), "-t", r.seconds(), "-J")
	if err != nil {
		return nil, 0, err
	}
	after, err := b.cpu("iperf3", smc)
	if err != nil {
		return nil, 0, err
	}
	bytes, seconds, err := bench.ParseIperf3(c.out.Bytes())
	if err != nil {
		return nil, 0, err
	}
	// smcr run has waited for the program, so this is the sum of both.
	state := c.Cmd.ProcessState
	cpu := after - before + state.UserTime() + state.SystemTime()
	return []float64{bytes * 8 / 1e9 / seconds, cpu.Seconds() / (bytes / (1 << 30))}, bytes / (1 << 30), nil
}

func (b *bed) loadServer(ctx context.Context, smc bool) (string, error) {
	port, err := b.server(ctx, "load", smc, func(port int) ([]string, error) {
		return b.loadArgv(smc, "server", address(b, port)), nil
	})
	return address(b, port), err
}

func address(b *bed, port int) string { return fmt.Sprintf("%s:%d", b.A.Addr(), port) }

// loadRate runs the load program and returns its count and its time in seconds.
func loadRate(ctx context.Context, r *runner, b *bed, smc bool, d time.Duration, what string, size int) (count, seconds float64, err error) {
	at, err := b.loadServer(ctx, smc)
	if err != nil {
		return 0, 0, err
	}
	c, err := b.client(ctx, smc, r.limit(), b.loadArgv(smc, "client", at, what, d.String(), strconv.Itoa(size))...)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(c.out.String(), &count, &seconds); err != nil || count == 0 || seconds == 0 {
		return 0, 0, fmt.Errorf("load: %v in %q", err, &c.out)
	}
	return count, seconds, nil
}

func roundTrip(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	count, seconds, err := loadRate(ctx, r, b, smc, r.time, "roundtrip", 1)
	return []float64{seconds * 1e6 / count}, count, err
}

func connect(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	count, seconds, err := loadRate(ctx, r, b, smc, r.time, "connect", 1)
	return []float64{count / seconds}, count, err
}

func goAPI(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	bytes, seconds, err := loadRate(ctx, r, b, smc, r.time, "write", 128<<10)
	return []float64{bytes / (1 << 20) / seconds}, bytes / (1 << 30), err
}

// qperf returns the round trip of one byte in µs. Its server listens on two ports, for
// commands and for data. The client chooses the port for data.
func qperf(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	port, err := b.server(ctx, "qperf", smc, func(port int) ([]string, error) {
		return []string{"qperf", "-lp", strconv.Itoa(port)}, nil
	})
	if err != nil {
		return nil, 0, err
	}
	c, err := b.client(ctx, smc, r.limit(), "qperf", "-lp", strconv.Itoa(port), "-ip", strconv.Itoa(port+1),
		"-t", r.seconds(), "-m", "1", "-uu", b.A.Addr(), "tcp_lat")
	if err != nil {
		return nil, 0, err
	}
	if c.smc { // one connection for commands and one for data
		if err := c.connections(2); err != nil {
			return nil, 0, err
		}
	}
	oneWay, err := bench.ParseQperf(c.out.Bytes())
	if err != nil {
		return nil, 0, err
	}
	return []float64{2 * oneWay * 1e6}, max(r.time, time.Second).Seconds() / (2 * oneWay), nil
}

// redis returns the requests per second of redis-benchmark with this number of
// connections, each with this number of requests in flight.
func redis(id string, connections, pipeline int) measure {
	return func(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
		port, err := b.server(ctx, "redis", smc, func(port int) ([]string, error) {
			return []string{"redis-server", "--bind", b.A.Addr(), "--port", strconv.Itoa(port), "--save", "", "--appendonly", "no",
				"--protected-mode", "no", "--dir", r.dir, "--daemonize", "no"}, nil
		})
		if err != nil {
			return nil, 0, err
		}
		rate := func(requests int) (float64, error) {
			c, err := b.client(ctx, smc, r.limit(), "redis-benchmark", "-h", b.A.Addr(), "-p", strconv.Itoa(port), "-c", strconv.Itoa(connections),
				"-n", strconv.Itoa(requests), "-P", strconv.Itoa(pipeline), "-d", "100", "-t", "set,get", "--csv")
			if err != nil {
				return 0, err
			}
			return bench.ParseRedis(c.out.Bytes())
		}
		// redis-benchmark takes a number of requests and no duration. A first run over
		// TCP shows how many requests take this time. Then the number is the same for
		// all.
		if r.redisRequests[id] == 0 {
			least := 4000 + 320*connections
			first, err := rate(least)
			if err != nil {
				return nil, 0, err
			}
			r.redisRequests[id] = max(least, int(first*r.time.Seconds()/2)) // two commands: SET and GET
		}
		got, err := rate(r.redisRequests[id])
		return []float64{got}, 2 * float64(r.redisRequests[id]), err
	}
}

// wrkArgv starts nginx and returns the command line of wrk.
func wrkArgv(ctx context.Context, r *runner, b *bed, smc bool, seconds string, clients int, more ...string) ([]string, error) {
	port, err := b.server(ctx, "nginx", smc, func(port int) ([]string, error) {
		dir := filepath.Join(r.dir, fmt.Sprintf("nginx-%d", port))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		conf := filepath.Join(dir, "nginx.conf")
		err := os.WriteFile(conf, fmt.Appendf(nil, `
daemon off;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log stderr;
events { worker_connections 4096; }
http {
	access_log off;
	keepalive_requests 1000000000;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	default_type text/plain;
	server { listen %[2]s backlog=1024; location / { return 200 "A page of a hundred bytes, near enough, which is what an answer of an interface is often made of.\n"; } }
}
`, dir, address(b, port)), 0o644)
		return []string{"nginx", "-e", "stderr", "-c", conf}, err
	})
	if err != nil {
		return nil, err
	}
	argv := append([]string{"wrk", "-c", strconv.Itoa(clients), "-d", seconds + "s"}, more...)
	return append(argv, "http://"+address(b, port)+"/"), nil
}

// wrk returns the requests per second with this number of connections.
func wrk(clients int) measure {
	return func(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
		argv, err := wrkArgv(ctx, r, b, smc, r.seconds(), clients, "-t", "1")
		if err != nil {
			return nil, 0, err
		}
		return wrkRate(b.client(ctx, smc, r.limit(), argv...))
	}
}

func wrkRate(c *client, err error) ([]float64, float64, error) {
	if err != nil {
		return nil, 0, err
	}
	rate, err := bench.ParseWrk(c.out.Bytes())
	return []float64{rate}, rate * max(c.b.r.time, time.Second).Seconds(), err
}

// closing returns the requests per second of this number of clients, with a new
// connection for each request. Most connections are TCP, because smcr run notices that
// they are short.
func closing(clients int) measure {
	return func(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
		argv, err := wrkArgv(ctx, r, b, smc, r.seconds(), clients, "-H", "Connection: close")
		if err != nil {
			return nil, 0, err
		}
		// At least none: the stack may have learnt of the client before.
		return wrkRate(b.adaptive(ctx, smc, -1, r.limit(), argv...))
	}
}

// closingSMC is closing with all connections over SMC-R.
func closingSMC(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	argv, err := wrkArgv(ctx, r, b, smc, r.seconds(), 50, "-H", "Connection: close")
	if err != nil {
		return nil, 0, err
	}
	return wrkRate(b.client(ctx, smc, r.limit(), argv...))
}

// closingNoPeer is closing with a server without SMC.
func closingNoPeer(ctx context.Context, r *runner, b *bed, smc bool) ([]float64, float64, error) {
	argv, err := wrkArgv(ctx, r, b, false, r.seconds(), 50, "-H", "Connection: close")
	if err != nil {
		return nil, 0, err
	}
	return wrkRate(b.adaptive(ctx, smc, 0, r.limit(), argv...))
}
