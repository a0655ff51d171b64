// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/testkind"
)

const (
	// commandLimit bounds each command in the guest.
	commandLimit = 2 * time.Minute

	// settleLimit is the time for what happens without a command, which takes moments
	// unless the machine is busy.
	settleLimit = testkind.Patience

	// guestLimit is the time limit of a guest: more than a test takes on a busy machine.
	guestLimit = 20 * time.Minute

	netns      = "user"
	kernelAddr = "10.7.2.1"
	userAddr   = "10.7.2.2"
	eid        = "SMCV2-EXAMPLE-UEID"
)

// bed is a guest with the kernel's SMC at one end of a veth pair and the user-space stack
// at the other.
type bed struct {
	*guest.Guest
	smcr, peer string // programs, by the names of their files in the guest
	stack      *guest.Cmd
}

// A side is one end of the veth pair.
type side struct {
	*bed
	backend string
	addr    string
	prefix  []string // the beginning of every command line on this side
	under   []string // the beginning of command lines that make connections
	sockets []string // options of program peer
}

// A setup is the configuration of both sides.
type setup struct {
	devices  int  // soft-RoCE devices of each side on the LAN
	apart    bool // the second device of each side is on a LAN and in a subnet of its own
	version1 bool // version 1 of SMC-R, without an enterprise ID
	mtu      int  // of the LAN: 1500 is the default; the path MTU of RoCE is 1024 then, and 4096 for 9000

	// kernelIdle is how long unused link groups of the kernel exist if the kernel is the
	// server. If it is the client, guest.IdleClient is added. 0 means ten minutes, as in
	// Linux.
	kernelIdle time.Duration

	short bool // the guest boots in the short form of tests, too

	options []string // of smcr serve
}

// newBed makes both sides for SMC-R version 2, on one LAN with this number of devices
// each.
func newBed(t *testing.T, devices int) (kernel, user *side) {
	t.Helper()
	return newBedOf(t, setup{devices: devices})
}

func newBedOf(t *testing.T, with setup) (kernel, user *side) {
	t.Helper()
	mtu := cmp.Or(with.mtu, 1500)
	if with.short {
		// While the guest boots. A guest has one processor, and the gate has nothing for the others.
		go func() {
			for _, pkg := range guestPrograms {
				_, _ = guest.Program(t.Context(), pkg) // b.programs says what is wrong
			}
		}()
	}
	g := guest.New(t, guest.Config{Name: "linux", Limit: guestLimit, Short: with.short})
	t.Logf("Linux %s, boot took %v", g.Kernel(), g.BootTime())
	b := &bed{Guest: g}
	b.programs(t)
	kernel = &side{bed: b, backend: "kernel", addr: kernelAddr, sockets: []string{"-smc"}}
	// The Go runtime preempts goroutines by signals, which would interrupt a connect.
	kernel.under = []string{"env", "GODEBUG=asyncpreemptoff=1"}
	user = &side{bed: b, backend: "user", addr: userAddr, prefix: []string{"nsenter", "--net=/run/netns/" + netns}} // "ip netns exec" hides the cgroups
	user.under = []string{b.smcr, "run", "--mode", "user", "--no-adapt", "--"}

	if err := errors.Join(g.LoadStack(t.Context()), g.LoadChangedSMC(t.Context(), guest.SMCOptions{Version1: with.version1, Idle: with.kernelIdle})); err != nil {
		t.Fatal(err)
	}
	b.batch(t, nil, "link add lan type bridge\nnetns add "+netns+"\n")
	// The bridge must not answer ARP for the addresses of k0 and k1.
	kernel.run(t, "sysctl", "-qw", "net.ipv4.conf.lan.arp_ignore=8")
	b.batch(t, nil, "link set lan up\n")
	if with.apart {
		b.batch(t, nil, "link add lan1 type bridge\n")
		kernel.run(t, "sysctl", "-qw", "net.ipv4.conf.lan1.arp_ignore=8")
		b.batch(t, nil, "link set lan1 up\n")
	}
	b.batch(t, user.prefix, "link set lo up\n")
	for i := range with.devices {
		// k0 and k1 are the kernel's ends of separate links to the bridge.
		lan, addr := "lan", addrOf
		if with.apart && i == 1 {
			lan, addr = "lan1", addrApart
		}
		b.wire(t, kernel, lan, fmt.Sprintf("k%d", i), addr(kernelAddr, i), mtu)
		b.wire(t, user, lan, fmt.Sprintf("u%d", i), addr(userAddr, i), mtu)
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
	for i := range with.devices {
		if with.apart { // otherwise the subnet tells which devices are on one LAN
			user.smcrun(t, "pnet", "add", "SMC1", "-I", fmt.Sprintf("u%d", i))
		}
	}
	return kernel, user
}

// serve starts the user-space stack.
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

// guestPrograms are the programs of the guest: smcr and peer.
var guestPrograms = [2]string{"smcr/cmd/smcr", "smcr/internal/testing/programs/peer"}

// programs copies the programs to the guest.
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
	b.smcr, b.peer = push(guestPrograms[0]), push(guestPrograms[1])
}

// addrOf returns the address of device i of a side whose first address is given.
func addrOf(first string, i int) string {
	a := netip.MustParseAddr(first).As4()
	a[3] += byte(10 * i)
	return netip.AddrFrom4(a).String()
}

// addrApart is addrOf in a subnet for each device.
func addrApart(first string, i int) string {
	a := netip.MustParseAddr(first).As4()
	a[2] += byte(i)
	return netip.AddrFrom4(a).String()
}

// wire gives a side a netdev on a LAN.
func (b *bed) wire(t *testing.T, s *side, lan, name, addr string, mtu int) {
	t.Helper()
	port := "p" + name
	lines := fmt.Sprintf("link add %[1]s mtu %[3]d type veth peer name %[2]s mtu %[3]d\nlink set %[1]s master %[4]s up\n", port, name, mtu, lan)
	if len(s.prefix) > 0 {
		lines += fmt.Sprintf("link set %s netns %s\n", name, netns)
	}
	b.batch(t, nil, lines)
	// Two netdevs are in one subnet, so each must answer only for its own address.
	sysctl := []string{"sysctl", "-qw"}
	for _, set := range []string{"arp_ignore=1", "arp_announce=2", "rp_filter=0"} {
		sysctl = append(sysctl, "net.ipv4.conf."+name+"."+set)
	}
	s.run(t, sysctl...)
	b.batch(t, s.prefix, fmt.Sprintf("addr add %[2]s/24 dev %[1]s\nlink set %[1]s up\n", name, addr))
}

// batch runs ip once for all lines, because starting a process takes long in the guest.
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

// smcrun runs an smcr command for the stack of this side.
func (s *side) smcrun(t *testing.T, args ...string) string {
	t.Helper()
	return s.run(t, append([]string{s.smcr, "--backend", s.backend}, args...)...)
}

// peerArgs returns the command line of a peer that uses the stack of this side.
func (s *side) peerArgs(command string, args ...string) []string {
	argv := append(append([]string{}, s.under...), s.peer, command)
	return append(append(argv, s.sockets...), args...)
}

// connect runs a peer to its end, with the server on the other side.
func (s *side) connect(t *testing.T, command string, to netip.AddrPort, args ...string) {
	t.Helper()
	t.Logf("%s: %s", s.backend, s.run(t, s.peerArgs(command, append(args, to.String())...)...))
}

// start starts a peer and waits until it has written ready. stop ends it and returns its
// output.
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

// stop ends a command with SIGTERM.
func (b *bed) stop(t *testing.T, c *guest.Cmd) guest.Result {
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), settleLimit)
	defer cancel()
	r, _ := c.Wait(ctx) // for some programs, the status is that of the signal
	return r
}

// query returns the rows of a list of a side.
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
// settleLimit. It looks less often than testkind.Eventually.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	pause := firstPause
	for deadline := time.Now().Add(settleLimit); !ok(); {
		if time.Now().After(deadline) {
			t.Errorf("not within %v: %s", settleLimit, what)
			return
		}
		time.Sleep(pause) // Real time: a look costs the guest, see above.
		pause = min(2*pause, longestPause)
	}
}
