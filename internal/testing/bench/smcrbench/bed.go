// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"smcr/internal/testing/bench"
	"smcr/internal/testing/netnstest"
)

// Time limits, each several times what a busy machine needs.
const (
	startTime = 20 * time.Second
	endTime   = 20 * time.Second
)

// bed is two hosts, the server on A and the client on B.
type bed struct {
	*netnstest.Pair
	r      *runner
	stacks []*netnstest.Process // empty if programs embed their stacks
	// servers by name and transport.
	servers map[string]*netnstest.Process
	local   bool
}

// bedSpec describes a bed.
type bedSpec struct {
	mtu   int
	stack bool // smcr serve on both hosts
	flags []string
	local bool // both hosts are one machine for their stacks
}

var bedSpecs = map[string]bedSpec{
	"1500":     {mtu: 1500, stack: true},
	"9000":     {mtu: 9000, stack: true},
	"9000-v1":  {mtu: 9000, stack: true, flags: []string{"--roce", "v1"}},
	"9000-api": {mtu: 9000},
	// Two containers of one machine.
	"containers": {mtu: 1500, stack: true, local: true},
}

// bed returns the bed with this name. It is made on first use.
func (r *runner) bed(ctx context.Context, name string) (*bed, error) {
	if b := r.beds[name]; b != nil {
		return b, nil
	}
	b, err := r.newBed(ctx, bedSpecs[name])
	if err != nil {
		return nil, err
	}
	r.beds[name] = b
	return b, nil
}

// newBed makes a bed. The caller closes it.
func (r *runner) newBed(ctx context.Context, spec bedSpec) (*bed, error) {
	pair, err := netnstest.Create(netnstest.Options{MTU: spec.mtu, OneMachine: spec.local})
	if err != nil {
		return nil, err
	}
	b := &bed{Pair: pair, r: r, servers: make(map[string]*netnstest.Process), local: spec.local}
	for _, h := range []*netnstest.Host{b.A, b.B} {
		// Rows with many short connections must not run out of ports.
		if _, err := h.Output(ctx, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/tcp_max_tw_buckets; echo 1024 65535 >/proc/sys/net/ipv4/ip_local_port_range"); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	hosts := []*netnstest.Host{b.A, b.B}
	if !spec.stack {
		return b, nil
	}
	for _, h := range hosts {
		args := append([]string{"serve"}, spec.flags...)
		args = append(args, strings.Fields(r.serveFlags)...)
		stack, err := h.Start(h.Command(ctx, r.smcr, args...))
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		b.stacks = append(b.stacks, stack)
	}
	for i, h := range hosts {
		if err := b.waitStack(ctx, h, b.stacks[i]); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// waitStack waits until the stack of a host answers.
func (b *bed) waitStack(ctx context.Context, h *netnstest.Host, stack *netnstest.Process) error {
	return netnstest.Until(startTime, func() error {
		select {
		case <-stack.Done():
			return netnstest.Stop(fmt.Errorf("smcr serve ended:\n%s", stack.Log()))
		case <-ctx.Done():
			return netnstest.Stop(ctx.Err())
		default:
		}
		_, err := h.Output(ctx, b.r.smcr, "--backend", "user", "info")
		return err
	})
}

// embedded reports whether programs embed their stacks on this bed.
func (b *bed) embedded() bool { return len(b.stacks) == 0 }

// argv returns the command line that runs a program with all connections over a
// transport.
func (b *bed) argv(smc bool, argv ...string) []string {
	if !smc || b.embedded() {
		return argv
	}
	return b.runArgv(append([]string{"--no-adapt", "--"}, argv...)...)
}

// runArgv returns the command line of smcr run with further arguments.
func (b *bed) runArgv(args ...string) []string {
	return append([]string{b.r.smcr, "run", "--mode", "user", "-v"}, args...)
}

// loadArgv returns the command line of the load program.
func (b *bed) loadArgv(smc bool, args ...string) []string {
	argv := []string{b.r.load}
	if smc && b.embedded() {
		argv = append(argv, "-stack")
	}
	return append(argv, args...)
}

// server starts a server on host A, once for each transport, and waits until it listens.
// f returns its command line for a port.
func (b *bed) server(ctx context.Context, name string, smc bool, f func(port int) ([]string, error)) (port int, err error) {
	key := serverKey(name, smc)
	port = serverPorts[name]
	if smc {
		port += 1000
	}
	if b.servers[key] != nil {
		return port, nil
	}
	argv, err := f(port)
	if err != nil {
		return 0, err
	}
	argv = b.argv(smc, argv...)
	p, err := b.A.Start(b.A.Command(ctx, argv[0], argv[1:]...))
	if err != nil {
		return 0, err
	}
	if err := b.A.WaitListen(port, startTime); err != nil {
		p.Kill()
		return 0, fmt.Errorf("%s: %w\n%s", name, err, p.Log())
	}
	b.servers[key] = p
	return port, nil
}

// serverKey is the key of a server in bed.servers.
func serverKey(name string, smc bool) string { return fmt.Sprintf("%s-%t", name, smc) }

// serverPorts are the ports over TCP. Those over SMC-R are larger by 1000.
var serverPorts = map[string]int{"iperf3": 5201, "redis": 6379, "nginx": 8080, "load": 9000, "qperf": 19765}

// client is a running client with its output.
type client struct {
	*netnstest.Process
	b        *bed
	smc      bool
	out, err bytes.Buffer // complete when Done is closed
}

// start starts a client.
func (b *bed) start(ctx context.Context, smc bool, in io.Reader, argv ...string) (*client, error) {
	return b.startClient(ctx, &client{b: b, smc: smc}, in, b.argv(smc, argv...))
}

func (b *bed) startClient(ctx context.Context, c *client, in io.Reader, argv []string) (*client, error) {
	cmd := b.B.Command(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &c.out, &c.err
	var err error
	if c.Process, err = b.B.Start(cmd); err != nil {
		return nil, err
	}
	return c, nil
}

// wait waits for the end of the client and checks that its connections used the right
// transport.
func (c *client) wait(d time.Duration) error {
	defer c.Kill()
	if err := c.Process.Wait(d); err != nil {
		c.Kill()
		return fmt.Errorf("%w\n%s%s", err, &c.out, &c.err)
	}
	if !c.smc || c.b.embedded() { // an embedded stack refuses TCP
		return nil
	}
	return c.connections(1)
}

// connections checks that smcr run of the client, which has ended, has counted enough
// connections.
func (c *client) connections(least int) error { return c.b.counted(c.err.Bytes(), least) }

// counted checks that smcr run has counted at least this number of connections over
// SMC-R (on one machine, of those within it), and no others.
func (b *bed) counted(log []byte, least int) error {
	s, err := bench.ParseSummary(log)
	if err != nil {
		return err
	}
	want, other := s.SMC, s.Local
	if b.local {
		want, other = other, want
	}
	if want < least || other+s.TCP != 0 {
		return fmt.Errorf("%d connections were SMC-R, %d local, %d TCP:\n%s", s.SMC, s.Local, s.TCP, log)
	}
	return nil
}

// client runs a client to its end and returns it with its output.
func (b *bed) client(ctx context.Context, smc bool, limit time.Duration, argv ...string) (*client, error) {
	c, err := b.start(ctx, smc, nil, argv...)
	if err != nil {
		return nil, err
	}
	if err := c.wait(limit); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(argv[0]), err)
	}
	return c, nil
}

// adaptive runs a client with the default of smcr run, which leaves connections to TCP
// that gain nothing from SMC-R. At least this number must use SMC-R, or any if it is negative; 0 means none, as on one
// machine.
func (b *bed) adaptive(ctx context.Context, smc bool, least int, limit time.Duration, argv ...string) (*client, error) {
	name := argv[0]
	if smc {
		argv = b.runArgv(append([]string{"--"}, argv...)...)
	}
	c, err := b.startClient(ctx, &client{b: b}, nil, argv)
	if err != nil {
		return nil, err
	}
	if err := c.wait(limit); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !smc {
		return c, nil
	}
	s, err := bench.ParseSummary(c.err.Bytes())
	if b.local {
		if err == nil && (s.Local+s.TCP == 0 || s.SMC > 0) {
			err = fmt.Errorf("%s: %d connections were SMC-R, %d local, %d TCP:\n%s", name, s.SMC, s.Local, s.TCP, &c.err)
		}
		return c, err
	}
	if err == nil && (s.TCP == 0 || s.SMC < least || least == 0 && s.SMC > 0) {
		err = fmt.Errorf("%s: %d connections were SMC-R, %d TCP:\n%s", name, s.SMC, s.TCP, &c.err)
	}
	return c, err
}

// cpu returns the CPU time of all processes of a measurement except the client: the
// server and both stacks.
func (b *bed) cpu(server string, smc bool) (time.Duration, error) {
	s, err := bench.ReadSnapshot()
	if err != nil {
		return 0, err
	}
	return s.Time(b.roots(server, smc)...), nil
}

// roots are the first processes of a measurement, without its client.
func (b *bed) roots(server string, smc bool) []int {
	var pids []int
	if p := b.servers[serverKey(server, smc)]; p != nil {
		pids = append(pids, p.Pid())
	}
	if smc {
		for _, p := range b.stacks {
			pids = append(pids, p.Pid())
		}
	}
	return pids
}

// needTools returns an error with the programs that are missing.
func (r *runner) needTools() error {
	want := []string{"nsenter"}
	for row, programs := range map[string][]string{
		"iperf3-1500": {"iperf3"}, "iperf3-9000": {"iperf3"}, "iperf3-v1": {"iperf3"}, "cpu-1500": {"iperf3"}, "containers-iperf3": {"iperf3"},
		"roundtrip-c": {"qperf"},
		"redis":       {"redis-server", "redis-benchmark"}, "redis-1": {"redis-server", "redis-benchmark"}, "redis-p16": {"redis-server", "redis-benchmark"},
		"wrk": {"nginx", "wrk"}, "wrk-4": {"nginx", "wrk"}, "wrk-200": {"nginx", "wrk"},
		"close": {"nginx", "wrk"}, "close-4": {"nginx", "wrk"}, "close-200": {"nginx", "wrk"}, "close-smc": {"nginx", "wrk"}, "close-nopeer": {"nginx", "wrk"},
		"shares": {"iperf3", "nginx", "wrk"},
	} {
		if r.chosen[row] {
			want = append(want, programs...)
		}
	}
	for _, name := range want {
		_, err := exec.LookPath(name)
		if err != nil {
			_, err = exec.LookPath(filepath.Join("/usr/sbin", name))
		}
		if err != nil {
			return fmt.Errorf("no program %s: make bench-tools installs what the bench needs", name)
		}
	}
	return nil
}
