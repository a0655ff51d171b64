// SPDX-License-Identifier: Apache-2.0

package rdmainterop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

const (
	// runLimit bounds each pair of programs.
	runLimit = 2 * time.Minute

	netns      = "user"
	kernelAddr = "10.9.9.1"
	userAddr   = "10.9.9.2"
)

// bed is a guest with the kernel's rxe0 on k0 in the initial network namespace, and u0 in
// another one, where the device of this module is.
type bed struct {
	*guest.Guest
	smcr string
	port int // of the last pair of programs
	// lossy means that packets are lost.
	lossy bool
}

// A side is the place where a program runs.
type side struct {
	name   string
	addr   string
	prefix []string
}

var (
	kernel = side{name: "kernel", addr: kernelAddr}
	user   = side{name: "ours", addr: userAddr, prefix: []string{"ip", "netns", "exec", netns}}
)

// retryExceeded matches the message of a side that got no acknowledgement.
var retryExceeded = regexp.MustCompile(`(?i)transport retr(y|ies)`)

func needTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			msg := "needs " + name + ": scripts/setup-test-tools installs it"
			if os.Getenv("CI") == "true" {
				t.Fatal(msg)
			}
			t.Skip(msg)
		}
	}
}

func newBed(t *testing.T) *bed {
	t.Helper()
	guest.SkipShort(t) // also without the programs, which only `make test-all` installs
	needTools(t, "ibv_rc_pingpong", "ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_send_lat", "ib_read_bw", "ib_read_lat", "ss", "tc")
	g := guest.New(t, guest.Config{Name: "linux", Limit: 20 * time.Minute})
	t.Logf("Linux %s, boot took %v", g.Kernel(), g.BootTime())
	file, err := guest.Program(t.Context(), "smcr/cmd/smcr")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Guest: g, port: 18515}
	if b.smcr, err = g.Push(file); err != nil {
		t.Fatal(err)
	}
	b.must(t, "modprobe", "-a", "rdma_rxe", "ib_uverbs", "sch_netem")
	if err := g.AddVeth(t.Context(), "k0", "u0", netns); err != nil {
		t.Fatal(err)
	}
	b.must(t, "ip", "link", "set", "k0", "mtu", "9000")
	b.must(t, "ip", "-n", netns, "link", "set", "u0", "mtu", "9000")
	b.must(t, "ip", "addr", "add", kernelAddr+"/24", "dev", "k0")
	b.must(t, "ip", "-n", netns, "addr", "add", userAddr+"/24", "dev", "u0")
	if err := g.AddRXE(t.Context(), "rxe0", "k0"); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) must(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := b.Run(ctx, argv...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, r.Stdout)
	}
	return r.Stdout
}

// netem sets loss, delay and reordering for the packets that leave either end.
func (b *bed) netem(t *testing.T, args ...string) {
	t.Helper()
	for _, dev := range [][]string{{"tc", "qdisc"}, {"tc", "-n", netns, "qdisc"}} {
		name := "k0"
		if len(dev) > 2 {
			name = "u0"
		}
		b.must(t, append(append(dev, "replace", "dev", name, "root", "netem", "limit", "20000"), args...)...)
	}
}

// A program is a command line. The port and the host are added to it.
type program struct {
	side
	argv []string
}

// tool is a program of ibverbs-utils or perftest on rxe0.
func (b *bed) tool(argv ...string) program { return program{kernel, argv} }

// ours is smcr verbs.
func (b *bed) ours(argv ...string) program {
	return program{user, append(append([]string{b.smcr, "verbs"}, argv...), "--counters", "-o", "json")}
}

// pair runs a server and a client and returns their output.
//
// On a busy machine, a perftest program may fail to measure how fast the processor's counter
// is. All its results are then infinite or zero, so both run again.
func (b *bed) pair(t *testing.T, server, client program) (fromServer, fromClient string) {
	t.Helper()
	for range 10 {
		fromServer, fromClient, stderr := b.once(t, server, client)
		if !strings.Contains(stderr, "Correlation coefficient") {
			return fromServer, fromClient
		}
		t.Logf("once more, for the tool's clock: %s", stderr)
	}
	t.Fatalf("%q could not measure the processor's counter in 10 attempts", client.argv)
	return "", ""
}

// once is pair without another attempt.
func (b *bed) once(t *testing.T, server, client program) (fromServer, fromClient, stderr string) {
	t.Helper()
	b.port++
	at := fmt.Sprint(b.port)
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	line := func(p program, more ...string) []string {
		argv := append(append([]string{}, p.prefix...), p.argv...)
		return append(append(argv, "-p", at), more...)
	}
	s := b.Command(line(server)...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	// The guest waits until the server listens.
	look := "for i in $(seq 300); do ss -Hltn sport = :" + at + " | grep -q . && exit 0; sleep 0.1; done; exit 1"
	if _, err := b.Run(ctx, append(append([]string{}, server.prefix...), "sh", "-c", look)...); err != nil {
		r, werr := s.Wait(ctx)
		t.Fatalf("%q does not listen: %v, %v\n%s", server.argv, err, werr, r.Stdout)
	}
	start := time.Now()
	c, cerr := b.Run(ctx, line(client, server.addr)...)
	if cerr != nil {
		var stop context.CancelFunc
		// Real time: the test has failed, and the server would wait for a long time.
		ctx, stop = context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer stop()
	}
	r, serr := s.Wait(ctx)
	if all := r.Stdout + r.Stderr + c.Stdout + c.Stderr; (serr != nil || cerr != nil) && b.lossy && retryExceeded.MatchString(all) {
		// ibv_rc_pingpong and ib_write_lat end at once. If the last acknowledgement is
		// lost, the side that waits for it waits for ever.
		t.Logf("once more, the last acknowledgement may have been lost: %s", all)
		b.lossy = false
		defer func() { b.lossy = true }()
		return b.once(t, server, client)
	}
	if serr != nil || cerr != nil {
		t.Fatalf("server %q: %v\n%s%s\nclient %q: %v\n%s%s\nrxe0:\n%s", server.argv, serr, r.Stdout, r.Stderr, client.argv, cerr, c.Stdout, c.Stderr,
			b.must(t, "sh", "-c", "rdma -d res show qp; cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *"))
	}
	counters := r.Stderr
	if client.name == user.name {
		counters = c.Stderr
	}
	t.Logf("%s server, %s client, %v: %s\n%s", server.name, client.name, time.Since(start).Round(time.Millisecond), strings.Join(client.argv, " "), counters)
	return r.Stdout, c.Stdout, r.Stderr + c.Stderr
}
