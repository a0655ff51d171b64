// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/output"
	"smcr/internal/testing/guest"
)

// guestTime bounds each command in a guest.
const guestTime = 90 * time.Second

// node is a guest with the programs of the test.
type node struct {
	*guest.Guest
	t                  *testing.T
	smcr, probe, tests string // programs, by the names of their files in the guest
	addr               string
}

// TestGuest runs programs over the SMC of a Linux kernel, in two guests on one Ethernet
// link.
func TestGuest(t *testing.T) {
	guest.SkipShort(t)
	a, b := nodes(t)
	t.Run("sockets", func(t *testing.T) { sockets(t, a) })
	t.Run("no device", func(t *testing.T) { noDevice(t, a) })
	a.setUp()
	b.setUp()
	// Static Go programs. smcr chooses the mode.
	t.Run("go", func(t *testing.T) { goPrograms(t, a, b) })
	t.Run("buffers", func(t *testing.T) { buffers(t, a, b) })
	t.Run("iperf3", func(t *testing.T) { iperf3(t, a, b) })
	t.Run("curl", func(t *testing.T) { curl(t, a, b) })
	t.Run("ipv6", func(t *testing.T) { ipv6(t, a, b) })
	t.Run("plain peer", func(t *testing.T) { plainPeer(t, a, b) })
	t.Run("tcp", func(t *testing.T) { forcedTCP(t, a) })
}

// nodes boots the guests and gives them their programs.
func nodes(t *testing.T) (a, b *node) {
	t.Helper()
	ga, gb := guest.Pair(t)
	dir := t.TempDir()
	build := func(name string, f func(context.Context, string, string) error, pkg string) string {
		file := filepath.Join(dir, name)
		if err := f(t.Context(), pkg, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	files := []string{
		build("smcr", guest.Build, "smcr/cmd/smcr"),
		build("probe", guest.Build, "smcr/internal/testing/programs/probe"),
		build("kernelsmc.test", guest.BuildTest, "smcr/internal/kernelsmc"),
	}
	newNode := func(g *guest.Guest, addr string) *node {
		n := &node{Guest: g, t: t, addr: addr}
		for i, to := range []*string{&n.smcr, &n.probe, &n.tests} {
			var err error
			if *to, err = g.Push(files[i]); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	return newNode(ga, "10.7.1.1"), newNode(gb, "10.7.1.2")
}

// setUp makes a guest an SMC-Rv2 node on eth0.
func (n *node) setUp() {
	n.t.Helper()
	ctx := n.t.Context()
	if err := errors.Join(n.LoadSMC(ctx), n.AddAddr(ctx, "eth0", n.addr+"/24"), n.AddRXE(ctx, "rxe0", "eth0")); err != nil {
		n.t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"pnet", "add", "SMC1", "-I", "eth0", "-D", "rxe0"},
		{"ueid", "add", "SMCV2-EXAMPLE-UEID"},
	} {
		n.run(n.t, append([]string{n.smcr, "--backend", "kernel"}, argv...)...)
	}
}

// run runs a command that must succeed and returns what it wrote.
func (n *node) run(t *testing.T, argv ...string) guest.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guestTime)
	defer cancel()
	r, err := n.Run(ctx, argv...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", n.Name(), err, r.Stdout)
	}
	return r
}

// start starts a command and waits until it has written ready. stop ends it by
// SIGTERM and returns what it wrote.
func (n *node) start(t *testing.T, ready string, argv ...string) (stop func() guest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), guestTime)
	c := n.Command(argv...)
	if err := c.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_, _ = c.Wait(ctx) // the error is that the command was killed, or the one that stop has reported
	})
	if err := c.WaitStdout(ctx, ready); err != nil {
		r, err2 := c.Wait(ctx)
		t.Fatalf("%s: %v, %v\n%s%s", n.Name(), err, err2, r.Stdout, r.Stderr)
	}
	return func() guest.Result {
		t.Helper()
		if err := c.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		r, _ := c.Wait(ctx) // some programs end with the status of the signal
		return r
	}
}

// under returns a command under smcr run.
func (n *node) under(flags []string, argv ...string) []string {
	return append(append(append([]string{n.smcr, "run"}, flags...), "--"), argv...)
}

// conn has the fields of a row of smcr connection list that the tests check.
type conn struct {
	State string `json:"state"`
	Mode  string `json:"mode"`
	Local string `json:"local"`
	Info  struct {
		RMBE   int `json:"rmbe_bytes"`
		Sndbuf int `json:"sndbuf_bytes"`
	} `json:"info"`
}

// active lists the connections that are up.
func (n *node) active(t *testing.T) (list []conn) {
	t.Helper()
	var all []conn
	out := n.run(t, n.smcr, "--backend", "kernel", "connection", "list", "-o", "json").Stdout
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range all {
		if strings.EqualFold(c.State, "active") {
			list = append(list, c)
		}
	}
	return list
}

// allSMCR checks that there are exactly count active connections, all over SMC-R.
func (n *node) allSMCR(t *testing.T, count int) []conn {
	t.Helper()
	list := n.active(t)
	for _, c := range list {
		if c.Mode != "SMCR" {
			t.Errorf("%s: %+v is not over SMC-R", n.Name(), c)
		}
	}
	if len(list) != count {
		t.Errorf("%s: %d connections %+v, want %d", n.Name(), len(list), list, count)
	}
	return list
}

// summaryLine is the first line of the summary of mode kernel.
var summaryLine = regexp.MustCompile(`smcr: (\d+) connections? over SMC-R, (\d+) over SMC-D, (\d+) over TCP`)

// counted checks the first line of a summary.
func counted(t *testing.T, stderr string, smcr, tcp int) {
	t.Helper()
	want := fmt.Sprintf("smcr: %s over SMC-R, 0 over SMC-D, %d over TCP", output.Count(smcr, "connection"), tcp)
	if got := summaryLine.FindString(stderr); got != want {
		t.Errorf("summary %q, want %q in\n%s", got, want, stderr)
	}
}

// sockets runs the tests of package kernelsmc that need a kernel with SMC.
func sockets(t *testing.T, n *node) {
	out := n.run(t, n.tests, "-test.v", "-test.run=^Test(Sockets|Limit|Storm|Owner|Buffers|Landlock)$").Stdout
	for _, bad := range []string{"--- SKIP", "--- FAIL", "smcr: warning: ", "smcr: error: ", "level=WARN", "level=ERROR"} {
		if strings.Contains(out, bad) {
			t.Errorf("%s in\n%s", bad, out)
		}
	}
	for _, name := range []string{"Sockets", "Limit", "Storm", "Owner", "Buffers", "Landlock"} {
		if !strings.Contains(out, "--- PASS: Test"+name) {
			t.Errorf("Test%s did not run:\n%s", name, out)
		}
	}
}

// noDevice: the kernel has SMC but no device for it.
func noDevice(t *testing.T, n *node) {
	r := n.run(t, n.under([]string{"--mode", "kernel"}, "true")...)
	if !strings.Contains(r.Stderr, errNoDevice.Error()) {
		t.Errorf("mode kernel says nothing of a device: %q", r.Stderr)
	}
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	r = n.run(t, append(nobody, n.under(nil, "echo", "ran")...)...)
	if r.Stdout != "ran\n" || !strings.Contains(r.Stderr, "smcr: all connections over TCP: "+errNoDevice.Error()) || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("mode auto: %q, %q", r.Stdout, r.Stderr)
	}
}

func goPrograms(t *testing.T, a, b *node) {
	for _, flags := range [][]string{nil, {"--mode", "kernel", "--ipproto-smc"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			flags := append([]string{"-v"}, flags...)
			server := a.start(t, "listening", a.under(flags, a.probe, "server", a.addr+":5001")...)
			client := b.start(t, "holding 3 connections", b.under(flags, b.probe, "client", a.addr+":5001", "3")...)
			a.allSMCR(t, 3)
			b.allSMCR(t, 3)
			r := client()
			if !strings.Contains(r.Stdout, "closed") || strings.Contains(r.Stdout, "failed") {
				t.Errorf("client: %s", r.Stdout)
			}
			counted(t, r.Stderr, 3, 0)
			if !strings.Contains(r.Stderr, "smcr: 3 sockets of the program used the kernel's SMC, 0 used TCP\n") {
				t.Errorf("client: %s", r.Stderr)
			}
			counted(t, server().Stderr, 3, 0)
		})
	}
}

// buffers: each connection has the buffer sizes that the flags give, also a connection
// that was accepted.
func buffers(t *testing.T, a, b *node) {
	const rcv, snd = 512 << 10, 256 << 10
	flags := []string{"--mode", "kernel", "-r", strconv.Itoa(rcv>>10) + "k", "-t", strconv.Itoa(snd)}
	server := a.start(t, "listening", a.under(flags, a.probe, "server", a.addr+":5002")...)
	// The client uses the name and the flags of smc-tools.
	b.run(t, "ln", "-sf", b.smcr, "/tmp/smc_run")
	client := b.start(t, "holding 1 connections", "/tmp/smc_run", "-r", strconv.Itoa(rcv), "-t", strconv.Itoa(snd>>10)+"k", b.probe, "client", a.addr+":5002", "1")
	for _, n := range []*node{a, b} {
		for _, c := range n.allSMCR(t, 1) {
			if c.Info.RMBE != rcv || c.Info.Sndbuf != snd {
				t.Errorf("%s: %+v, want RMBE %d, send buffer %d", n.Name(), c, rcv, snd)
			}
		}
	}
	client()
	server()
}

func iperf3(t *testing.T, a, b *node) {
	server := a.start(t, "Server listening", a.under([]string{"--mode", "kernel", "-v"}, "iperf3", "-s", "--forceflush")...)
	r := b.run(t, b.under([]string{"-v"}, "iperf3", "-c", a.addr, "-t", "2", "--json")...)
	var result struct {
		End struct {
			Received struct {
				Bytes float64 `json:"bytes"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &result); err != nil || result.End.Received.Bytes == 0 {
		t.Errorf("%v\n%s", err, r.Stdout)
	}
	t.Logf("%.0f MiB in 2 s", result.End.Received.Bytes/(1<<20))
	counted(t, r.Stderr, 2, 0) // one connection for control and one for data
	counted(t, server().Stderr, 2, 0)
}

// curl: dynamically linked programs, threads, fork and exec.
func curl(t *testing.T, a, b *node) {
	// http.server looks up the name of its host.
	a.run(t, "sh", "-c", "echo "+a.addr+" a >>/etc/hosts; mkdir -p /tmp/www && head -c 3000000 /dev/urandom >/tmp/www/file")
	server := a.start(t, "Serving", a.under([]string{"-v"}, "/usr/bin/python3", "-u", "-m", "http.server", "-d", "/tmp/www", "-b", a.addr, "8080")...)
	url := "http://" + a.addr + ":8080/file"
	r := b.run(t, b.under([]string{"-v"}, "sh", "-c", "curl -sS --fail --noproxy '*' "+url+" | sha256sum; (curl -sS --fail --noproxy '*' "+url+") | sha256sum")...)
	counted(t, r.Stderr, 2, 0)
	sum := strings.Fields(a.run(t, "sha256sum", "/tmp/www/file").Stdout)[0]
	if strings.Count(r.Stdout, sum) != 2 {
		t.Errorf("got %q, want twice %s", r.Stdout, sum)
	}
	counted(t, server().Stderr, 2, 0)
}

// plainPeer: a peer without SMC, as server and as client.
func plainPeer(t *testing.T, a, b *node) {
	server := a.start(t, "listening", a.probe, "server", a.addr+":5003")
	r := b.run(t, b.under([]string{"-v"}, b.probe, "halfclose", a.addr+":5003", "100000")...)
	counted(t, r.Stderr, 0, 1)
	if !strings.Contains(r.Stderr, "as client") {
		t.Errorf("no reason: %s", r.Stderr)
	}
	server()
	server = a.start(t, "listening", a.under([]string{"-v"}, a.probe, "server", a.addr+":5003")...)
	b.run(t, b.probe, "halfclose", a.addr+":5003", "100000")
	r = server()
	counted(t, r.Stderr, 0, 1)
	if !strings.Contains(r.Stderr, "as server") {
		t.Errorf("no reason: %s", r.Stderr)
	}
}

// ipv6: the SMC socket of a TCP socket for IPv6.
func ipv6(t *testing.T, a, b *node) {
	a.run(t, "ip", "addr", "add", "fd07::1/64", "dev", "eth0", "nodad")
	b.run(t, "ip", "addr", "add", "fd07::2/64", "dev", "eth0", "nodad")
	server := a.start(t, "listening", a.under([]string{"--mode", "kernel", "-v"}, a.probe, "server", "[fd07::1]:5006")...)
	client := b.start(t, "holding 2 connections", b.under([]string{"--mode", "kernel", "-v"}, b.probe, "client", "[fd07::1]:5006", "2")...)
	// Linux looks for a RoCEv2 path by IPv4 only, so these sockets fall back.
	list := append(a.active(t), b.active(t)...)
	for _, c := range list {
		if !strings.HasPrefix(c.Local, "[fd07::") {
			t.Errorf("local address %s", c.Local)
		}
	}
	if len(list) != 4 {
		t.Errorf("SMC sockets %+v, want 4", list)
	}
	if r := client(); !strings.Contains(r.Stderr, "smcr: 2 sockets of the program used the kernel's SMC, 0 used TCP\n") {
		t.Errorf("client: %s", r.Stderr)
	}
	server()
}

func forcedTCP(t *testing.T, n *node) {
	r := n.run(t, n.under([]string{"--mode", "tcp", "-v"}, n.probe, "halfclose", n.echo(t)+":5004", "1000")...)
	if r.Stderr != "smcr: all connections over TCP\n" {
		t.Errorf("%q", r.Stderr)
	}
}

// echo starts a native server on port 5004 and returns its address.
func (n *node) echo(t *testing.T) string {
	t.Helper()
	n.start(t, "listening", n.probe, "server", n.addr+":5004")
	return n.addr
}
