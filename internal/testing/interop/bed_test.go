// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

const (
	// commandLimit bounds each command in the guest.
	commandLimit = 2 * time.Minute

	// settleLimit bounds what happens by itself, in moments unless the machine
	// is busy.
	settleLimit = time.Minute

	// guestLimit bounds the life of a guest: more than a test takes on a
	// machine that is busy with others.
	guestLimit = 20 * time.Minute

	netns      = "user"
	kernelAddr = "10.7.2.1"
	userAddr   = "10.7.2.2"
	eid        = "SMCV2-EXAMPLE-UEID"
)

// bed is a guest with the kernel's SMC at one end of a veth pair and the stack
// in user space at the other.
type bed struct {
	*guest.Guest
	smcr, peer string // programs, by their names in the guest
	stack      *guest.Cmd
}

// A side of the veth pair.
type side struct {
	*bed
	backend string
	addr    string
	prefix  []string // begins every command there
	under   []string // begins the commands that make connections
	sockets []string // option of the peer
}

// A setup says what both sides have.
type setup struct {
	devices  int  // soft-RoCE devices on the LAN, each
	version1 bool // of SMC-R, and no enterprise ID
	mtu      int  // of the LAN: of 1500, the default, RoCE makes a path MTU of 1024, of 9000 one of 4096

	// kernelIdle is how long link groups of the kernel live on unused, as a
	// server; as a client guest.IdleClient longer. 0: Linux's ten minutes.
	kernelIdle time.Duration

	short bool // boots in the short form of tests, too

	options []string // of smcr serve
}

// newBed makes both sides, on one LAN with the given number of devices each,
// for SMC-R version 2.
func newBed(t *testing.T, devices int) (kernel, user *side) {
	t.Helper()
	return newBedOf(t, setup{devices: devices})
}

func newBedOf(t *testing.T, with setup) (kernel, user *side) {
	t.Helper()
	mtu := cmp.Or(with.mtu, 1500)
	g := guest.New(t, guest.Config{Name: "linux", Limit: guestLimit, Short: with.short})
	t.Logf("Linux %s, boot took %v", g.Kernel(), g.BootTime())
	b := &bed{Guest: g}
	b.programs(t)
	kernel = &side{bed: b, backend: "kernel", addr: kernelAddr, sockets: []string{"-smc"}}
	// Signals by which the Go runtime preempts goroutines interrupt a connect.
	kernel.under = []string{"env", "GODEBUG=asyncpreemptoff=1"}
	user = &side{bed: b, backend: "user", addr: userAddr, prefix: []string{"ip", "netns", "exec", netns}}
	user.under = []string{b.smcr, "run", "--mode", "user", "--no-adapt", "--"}

	if err := g.LoadChangedSMC(t.Context(), guest.SMCOptions{Version1: with.version1, Idle: with.kernelIdle}); err != nil {
		t.Fatal(err)
	}
	b.batch(t, nil, "link add lan type bridge\nnetns add "+netns+"\n")
	// The bridge must not answer ARP for the addresses of k0 and k1.
	kernel.run(t, "sysctl", "-qw", "net.ipv4.conf.lan.arp_ignore=8")
	b.batch(t, nil, "link set lan up\n")
	b.batch(t, user.prefix, "link set lo up\n")
	for i := range with.devices {
		// The kernel's end of its own wire to the bridge is k0, k1.
		b.wire(t, kernel, fmt.Sprintf("k%d", i), addrOf(kernelAddr, i), mtu)
		b.wire(t, user, fmt.Sprintf("u%d", i), addrOf(userAddr, i), mtu)
		rxe := fmt.Sprintf("rxe%d", i)
		if err := g.AddRXE(t.Context(), rxe, fmt.Sprintf("k%d", i)); err != nil {
			t.Fatal(err)
		}
		kernel.smcrun(t, "pnet", "add", "SMC1", "-I", fmt.Sprintf("k%d", i), "-D", rxe)
	}
	if !with.version1 {
		kernel.smcrun(t, "ueid", "add", eid)
	}

	user.serve(t, with.options...)
	if !with.version1 {
		user.smcrun(t, "ueid", "add", eid)
	}
	return kernel, user
}

// serve starts the stack of the user's side.
func (s *side) serve(t *testing.T, args ...string) {
	t.Helper()
	c := s.Command(append(append(append([]string{}, s.prefix...), s.smcr, "serve", "--no-default-eid", "--roce", "v2", "--log-level", "debug"), args...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	s.stack = c
	t.Cleanup(func() {
		r := s.stop(t, c)
		if t.Failed() {
			t.Logf("log of the stack:\n%s", r.Stderr[max(0, len(r.Stderr)-200<<10):])
		}
	})
	eventually(t, "the stack answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
		defer cancel()
		_, err := s.try(ctx, s.smcr, "--backend", "user", "info")
		return err == nil
	})
}

// programs brings the programs into the guest.
func (b *bed) programs(t *testing.T) {
	t.Helper()
	push := func(pkg string) string {
		file, err := guest.Program(t.Context(), pkg)
		if err != nil {
			t.Fatal(err)
		}
		name, err := b.Push(file)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	b.smcr, b.peer = push("smcr/cmd/smcr"), push("smcr/internal/testing/programs/peer")
}

// addrOf returns the address of a side's device.
func addrOf(first string, i int) string {
	a := netip.MustParseAddr(first).As4()
	a[3] += byte(10 * i)
	return netip.AddrFrom4(a).String()
}

// wire gives a side a netdev on the LAN.
func (b *bed) wire(t *testing.T, s *side, name, addr string, mtu int) {
	t.Helper()
	port := "p" + name
	lines := fmt.Sprintf("link add %[1]s mtu %[3]d type veth peer name %[2]s mtu %[3]d\nlink set %[1]s master lan up\n", port, name, mtu)
	if len(s.prefix) > 0 {
		lines += fmt.Sprintf("link set %s netns %s\n", name, netns)
	}
	b.batch(t, nil, lines)
	// Two netdevs in one subnet: each answers for its own address only.
	sysctl := []string{"sysctl", "-qw"}
	for _, set := range []string{"arp_ignore=1", "arp_announce=2", "rp_filter=0"} {
		sysctl = append(sysctl, "net.ipv4.conf."+name+"."+set)
	}
	s.run(t, sysctl...)
	b.batch(t, s.prefix, fmt.Sprintf("addr add %[2]s/24 dev %[1]s\nlink set %[1]s up\n", name, addr))
}

// batch runs ip once for all lines: in the guest, beginning a process takes
// longer than what it does.
func (b *bed) batch(t *testing.T, prefix []string, lines string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	c := b.Command(append(append([]string{}, prefix...), "ip", "-batch", "-")...)
	c.Stdin = []byte(lines)
	if r, err := c.Run(ctx); err != nil {
		t.Fatalf("%v\n%s%s", err, lines, r.Stdout)
	}
}

// try runs a command on a side.
func (s *side) try(ctx context.Context, argv ...string) (guest.Result, error) {
	return s.Run(ctx, append(append([]string{}, s.prefix...), argv...)...)
}

// run runs a command that must succeed and returns what it wrote.
func (s *side) run(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	r, err := s.try(ctx, argv...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", s.backend, err, r.Stdout)
	}
	return r.Stdout
}

// smcrun runs an smcr command about this side's stack.
func (s *side) smcrun(t *testing.T, args ...string) string {
	t.Helper()
	return s.run(t, append([]string{s.smcr, "--backend", s.backend}, args...)...)
}

// peerArgs is the command line of a peer that uses this side's stack.
func (s *side) peerArgs(command string, args ...string) []string {
	argv := append(append([]string{}, s.under...), s.peer, command)
	return append(append(argv, s.sockets...), args...)
}

// connect runs a peer to its end, against the server on the other side.
func (s *side) connect(t *testing.T, command string, to netip.AddrPort, args ...string) {
	t.Helper()
	t.Logf("%s: %s", s.backend, s.run(t, s.peerArgs(command, append(args, to.String())...)...))
}

// start starts a peer and waits until it has written ready. stop ends it and
// returns what it wrote.
func (s *side) start(t *testing.T, ready, command string, args ...string) (stop func() guest.Result) {
	t.Helper()
	c := s.Command(append(append([]string{}, s.prefix...), s.peerArgs(command, args...)...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var r *guest.Result
	stop = func() guest.Result {
		if r == nil {
			x := s.stop(t, c)
			r = &x
		}
		return *r
	}
	t.Cleanup(func() { stop() })
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	if err := c.WaitStdout(ctx, ready); err != nil {
		t.Fatalf("%s: %v", s.backend, err)
	}
	return stop
}

// stop ends a command by SIGTERM.
func (b *bed) stop(t *testing.T, c *guest.Cmd) guest.Result {
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), settleLimit)
	defer cancel()
	r, _ := c.Wait(ctx) // its status is that of the signal, for some programs
	return r
}

// query asks a side for the rows of a list.
func query[T any](t *testing.T, s *side, args ...string) []T {
	t.Helper()
	out := s.smcrun(t, append(args, "-o", "json")...)
	var rows []T
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%s: %q: %v\n%s", s.backend, args, err, out)
	}
	return rows
}

// How long eventually waits before it looks again: at first, and at most. A look often
// starts a program in the guest, which takes the processor from what is waited for.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 400 * time.Millisecond
)

// eventually waits until ok reports true. The test fails if this takes longer than
// settleLimit.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	pause := firstPause
	for deadline := time.Now().Add(settleLimit); !ok(); {
		if time.Now().After(deadline) {
			t.Errorf("not within %v: %s", settleLimit, what)
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}
