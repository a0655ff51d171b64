// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

// failoverRecord records what two kernels do when devices go down and up.
const failoverRecord = "testdata/failover/two-kernels.txt"

const (
	// downAfter is how long data is sent before a device goes down.
	downAfter = 500 * time.Millisecond

	// transferLimit limits the connections of one step, symmetricLimit the wait for a
	// second link.
	transferLimit  = time.Minute
	symmetricLimit = 20 * time.Second
	stuckLimit     = 30 * time.Second
)

// TestTwoKernelsDown records what two Linux kernels with two devices each do when a
// device of one of them goes down and up again while connections are open: the
// configuration and the steps of TestDeviceDown and TestFlap, but with a kernel on both
// sides. It varies which connections survive, so no test compares with the record. It
// shows what TestDeviceDown can demand.
func TestTwoKernelsDown(t *testing.T) {
	t.Parallel()
	if !*updateKernels {
		t.Skip("records reference data: go test ./internal/testing/interop -run TestTwoKernelsDown -update-kernels -timeout 60m, -count for more runs")
	}
	for _, who := range []string{"client", "server"} {
		for name, c := range map[string]struct {
			title string
			do    func(t *testing.T, p *pair)
		}{
			"k1":       {"k1 down", func(t *testing.T, p *pair) { p.down(t, p.side(who), "k1", "") }},
			"k0":       {"k0 down", func(t *testing.T, p *pair) { p.down(t, p.side(who), "k0", "") }},
			"k1-k0":    {"k0 down, k1 was before", func(t *testing.T, p *pair) { p.down(t, p.side(who), "k0", "k1") }},
			"flap":     {"devices flap", func(t *testing.T, p *pair) { p.flap(t, p.side(who), false) }},
			"connects": {"devices flap, connects meanwhile", func(t *testing.T, p *pair) { p.flap(t, p.side(who), true) }},
		} {
			t.Run(who+"/"+name, func(t *testing.T) {
				p := newPair(t)
				// This also records a run in which a kernel panics.
				defer func() {
					if t.Failed() {
						p.record("the run ends here%s", p.panics())
					}
					if err := addRun(failoverRecord, who+"'s "+c.title, "  "+strings.Join(p.lines, "\n  ")+"\n"); err != nil {
						t.Error(err)
					}
				}()
				c.do(t, p)
				p.kernelErrors(t)
			})
		}
	}
}

// addRun adds a run to a section of a file, which begins with "== NAME". Delete what must
// be recorded again.
func addRun(file, name, text string) error {
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	sections := map[string]string{}
	for _, s := range strings.Split("\n"+string(old), "\n== ")[1:] {
		title, body, _ := strings.Cut(s, "\n")
		sections[title] = strings.TrimRight(body, "\n") + "\n"
	}
	runs := strings.Count("\n"+sections[name], "\nrun ")
	sections[name] += fmt.Sprintf("run %d\n%s", runs+1, text)
	var out strings.Builder
	for _, title := range slices.Sorted(maps.Keys(sections)) {
		fmt.Fprintf(&out, "== %s\n%s", title, sections[title])
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

// A pair is two kernels on one LAN, with the devices k0 and k1 each.
type pair struct {
	client, server *side
	messages       *capture
	ahead          time.Duration // how much the clock of the capture is ahead of the host's
	lines          []string      // the lines to record
}

func (p *pair) record(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

func (p *pair) side(who string) *side {
	return map[string]*side{"client": p.client, "server": p.server}[who]
}

func newPair(t *testing.T) *pair {
	t.Helper()
	a, b := guest.Pair(t)
	p := &pair{server: newKernelOnLAN(t, a, kernelAddr), client: newKernelOnLAN(t, b, userAddr)}
	p.messages = newCapture(t, a, "eth0")
	p.messages.start(t)
	t.Cleanup(func() {
		if err := os.Link(p.messages.file, filepath.Join(t.ArtifactDir(), "messages.pcap")); err != nil {
			t.Log(err)
		}
	})
	best := time.Minute
	for range 5 {
		begin := time.Now()
		out := strings.TrimSpace(p.server.run(t, "date", "+%s%N"))
		took := time.Since(begin)
		ns, err := strconv.ParseInt(out, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if took < best {
			best, p.ahead = took, time.Unix(0, ns).Sub(begin.Add(took/2))
		}
	}
	return p
}

// newKernelOnLAN configures SMC in one of two linked guests, with two soft-RoCE devices
// behind a bridge on the link. So the netdevs of both guests are on one LAN and in one
// subnet, as Linux requires for two links of version 2.
func newKernelOnLAN(t *testing.T, g *guest.Guest, addr string) *side {
	t.Helper()
	b := &bed{Guest: g}
	b.programs(t)
	s := &side{bed: b, backend: "kernel", addr: addr, sockets: []string{"-smc"}}
	s.under = []string{"env", "GODEBUG=asyncpreemptoff=1"}
	if err := g.LoadSMC(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.run(t, "ip", "link", "add", "lan", "type", "bridge")
	s.run(t, "sysctl", "-qw", "net.ipv4.conf.lan.arp_ignore=8") // the bridge must not answer for k0 and k1
	s.run(t, "ip", "link", "set", "lan", "up")
	s.run(t, "ip", "link", "set", "eth0", "master", "lan", "up")
	for i := range 2 {
		netdev, rxe := fmt.Sprintf("k%d", i), fmt.Sprintf("rxe%d", i)
		b.wire(t, s, "lan", netdev, addrOf(addr, i), 1500)
		if err := g.AddRXE(t.Context(), rxe, netdev); err != nil {
			t.Fatal(err)
		}
		s.smcrun(t, "pnet", "add", "SMC1", "-I", netdev, "-D", rxe)
	}
	s.smcrun(t, "ueid", "add", eid)
	return s
}

// groups records the link groups of both sides.
func (p *pair) groups(t *testing.T) string {
	t.Helper()
	var text []string
	for _, who := range []string{"client", "server"} {
		s := p.side(who)
		links := len(query[struct{}](t, s, "link", "list"))
		text = append(text, fmt.Sprintf("%s %s, %d links", who, cmp.Or(strings.Join(types(t, s), " "), "none"), links))
	}
	return strings.Join(text, "; ")
}

// symmetric reports whether all link groups of both sides have two links.
func (p *pair) symmetric(t *testing.T) bool {
	t.Helper()
	for _, s := range []*side{p.client, p.server} {
		list := types(t, s)
		if len(list) == 0 || slices.ContainsFunc(list, func(s string) bool { return s != "SYM" }) {
			return false
		}
	}
	return true
}

// within waits until ok returns true, and returns how long that took.
func within(limit time.Duration, ok func() bool) (time.Duration, bool) {
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > limit { // Real time: how long kernels take is recorded, and not judged.
			return limit, false
		}
		time.Sleep(50 * time.Millisecond) // Real time: so often it looks.
	}
	return time.Since(begin).Round(10 * time.Millisecond), true
}

// echoes runs connections until they end, or until limit. It returns the result of each
// and of all.
func (p *pair) echoes(t *testing.T, limit time.Duration, at netip.AddrPort, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := p.client.try(ctx, p.client.peerArgs("echo", append(append([]string{"-tell"}, args...), at.String())...)...)
	var lines []string
	for line := range strings.Lines(r.Stdout) {
		if strings.HasPrefix(line, "connection ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	switch {
	case ctx.Err() != nil:
		lines = append(lines, fmt.Sprintf("killed after %v", limit))
	case len(lines) == 0:
		lines = append(lines, fmt.Sprint(err))
	}
	return lines
}

// down sets a device of one side down while connections are open, and up again. Before
// that, it sets the device first, if given, down for a second without load.
func (p *pair) down(t *testing.T, of *side, device, first string) {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(p.server.addr), 7300)
	stop := p.server.start(t, "listening", "serve", "-check", at.String())
	p.client.connect(t, "echo", at)
	if _, ok := within(symmetricLimit, func() bool { return p.symmetric(t) }); !ok {
		t.Fatalf("no second link: %s", p.groups(t))
	}
	p.record("before: %s", p.groups(t))
	if first != "" {
		// The RMBs of these connections are reused later.
		p.echoes(t, transferLimit, at, "-n", "4", "-parallel", "-bytes", "100000")
		of.run(t, "ip", "link", "set", first, "down")
		within(symmetricLimit, func() bool { return !p.symmetric(t) })
		time.Sleep(flapPeriod) // Real time: the fault lasts so long.
		p.record("%s down: %s", first, p.groups(t))
		of.run(t, "ip", "link", "set", first, "up")
		took, ok := within(symmetricLimit, func() bool { return p.symmetric(t) })
		p.record("%s up, two links again: %v, after %v", first, ok, took)
	}
	from := p.messages.size()

	moment := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	go func() {
		time.Sleep(downAfter) // Real time: data is sent before the fault.
		moment <- time.Now()
		if _, err := of.try(ctx, "ip", "link", "set", device, "down"); err != nil {
			t.Error(err)
		}
	}()
	p.record("4 while it goes down:")
	p.record("  %s", strings.Join(p.echoes(t, transferLimit, at, "-n", "4", "-parallel", "-bytes", "2000000"), "\n    "))
	downAt := <-moment
	p.record("after them: %s", p.groups(t))
	// TCP uses the addresses of the first devices.
	if device == "k1" {
		p.waiting(t)
		p.record("3 while it is down:")
		p.record("  %s", strings.Join(p.echoes(t, transferLimit, at, "-n", "3"), "\n    "))
		p.record("after them: %s", p.groups(t))
	}
	upAt := time.Now()
	of.run(t, "ip", "link", "set", device, "up")
	p.record("3 after it came up, %v after it went down:", upAt.Sub(downAt).Round(100*time.Millisecond))
	p.record("  %s", strings.Join(p.echoes(t, transferLimit, at, "-n", "3"), "\n    "))
	_, ok := within(symmetricLimit-time.Since(upAt), func() bool { return p.symmetric(t) })
	left := time.Since(upAt).Round(100 * time.Millisecond)
	if !ok {
		p.record("not two links again within %v of that: %s", left, p.groups(t))
		p.waiting(t)
		if took, ok := within(stuckLimit, func() bool { return p.symmetric(t) }); ok {
			p.record("two links again %v after that", took)
		} else {
			p.record("nor within another %v: %s", took, p.groups(t))
		}
	} else {
		p.record("two links again %v after that: %s", left, p.groups(t))
	}
	p.record("the server's program: %s", serverOutput(stop()))
	p.wire(t, from, downAt)
}

// flap sets the devices of a side down and up, one after the other, while data is sent,
// like testFlap. If connects is true, it makes new connections meanwhile, whenever the
// address of TCP can be reached.
func (p *pair) flap(t *testing.T, of *side, connects bool) {
	t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr(p.server.addr), 7300)
	stop := p.server.start(t, "listening", "serve", "-check", at.String())
	from := p.messages.size()
	done := make(chan []string, 1)
	begin := time.Now()
	go func() {
		done <- p.echoes(t, flapLimit, at, "-n", "4", "-parallel", "-bytes", "6000000")
	}()
	if _, ok := within(symmetricLimit, func() bool { return p.symmetric(t) }); !ok {
		t.Fatalf("no second link: %s", p.groups(t))
	}
	var back []string
	var ended, made []string
	probed := make(chan []string, 1)
	probing := false
	probe := func(when string) {
		select {
		case x := <-probed:
			made, probing = append(made, x...), false
		default:
		}
		if !connects || probing {
			return
		}
		probing = true
		since := time.Since(begin).Round(100 * time.Millisecond)
		go func() {
			x := p.echoes(t, transferLimit, at, "-n", "1", "-bytes", "1000")
			probed <- []string{fmt.Sprintf("%v, %s: %s", since, when, strings.Join(x, ", "))}
		}()
	}
	for n := 0; ended == nil; n++ {
		device := fmt.Sprintf("k%d", n%2)
		of.run(t, "ip", "link", "set", device, "down")
		if device == "k1" {
			probe("k1 down")
		}
		time.Sleep(flapPeriod) // Real time: the fault lasts so long.
		of.run(t, "ip", "link", "set", device, "up")
		probe(device + " up")
		took, ok := within(flapBack, func() bool {
			select {
			case ended = <-done:
				return true
			default:
				return p.symmetric(t)
			}
		})
		switch {
		case ended != nil:
		case !ok:
			back = append(back, fmt.Sprintf("not in %v (%s)", flapBack, p.groups(t)))
		default:
			back = append(back, took.String())
		}
		if ended == nil {
			select {
			case ended = <-done:
			case <-time.After(flapPeriod):
			}
		}
	}
	p.record("4 connections: %v", time.Since(begin).Round(100*time.Millisecond))
	p.record("  %s", strings.Join(ended, "\n    "))
	p.record("two links again after: %s", cmp.Or(strings.Join(back, ", "), "no flap"))
	if probing {
		made = append(made, <-probed...)
	}
	if connects {
		p.record("new connections: %d", len(made))
		p.record("  %s", strings.Join(made, "\n    "))
	}
	p.record("at the end: %s", p.groups(t))
	p.record("the server's program: %s", serverOutput(stop()))
	p.answers(t, from)
}
