// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// openIn opens the device of a netdev in a namespace.
func openIn(t testing.TB, h *netnstest.Host, netdev string, opts ...Option) *Device {
	t.Helper()
	var dev rdmaverbs.Device
	if err := h.Do(func() (err error) {
		dev, err = New(opts...).Open(context.Background(), namePrefix+netdev)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev.(*Device)
}

// endFor finds a GID of that type and the peer's MAC address.
func endFor(t testing.TB, d, peer *Device, typ rdmaverbs.GIDType) verbstest.End {
	t.Helper()
	gids, err := d.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(gids, func(g rdmaverbs.GIDEntry) bool {
		return g.Type == typ && (typ == rdmaverbs.RoCEv1 || g.GID.Addr().Is4())
	})
	if i < 0 {
		t.Fatalf("%s has no GID of type %d: %v", d.Name(), typ, gids)
	}
	return verbstest.End{Dev: d, SGIDIndex: i, DMAC: peer.Attr().HWAddr}
}

// hostPair returns a function that opens a device in each namespace.
func hostPair(p *netnstest.Pair, typ rdmaverbs.GIDType) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		a, b := openIn(t, p.A, "eth0"), openIn(t, p.B, "eth0")
		return verbstest.Pair{A: endFor(t, a, b, typ), B: endFor(t, b, a, typ)}
	}
}

// loPair returns a function that opens lo once, for both ends.
func loPair(p *netnstest.Pair, typ rdmaverbs.GIDType) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		d := openIn(t, p.A, "lo")
		e := endFor(t, d, d, typ)
		return verbstest.Pair{A: e, B: e}
	}
}

// selfPair returns a function that opens eth0 once, for both ends.
func selfPair(p *netnstest.Pair, typ rdmaverbs.GIDType) verbstest.Open {
	return func(t testing.TB) verbstest.Pair {
		d := openIn(t, p.A, "eth0")
		e := endFor(t, d, d, typ)
		return verbstest.Pair{A: e, B: e}
	}
}

// TestVerbsNetdev runs the verbs suite over veth between two namespaces, over
// lo, and between two queue pairs of one netdev.
func TestVerbsNetdev(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		p := netnstest.New(t, netnstest.Options{MTU: mtu})
		for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
			t.Run(fmt.Sprintf("veth/v%d/%d", typ, mtu), func(t *testing.T) { verbstest.Run(t, hostPair(p, typ)) })
			if mtu == 9000 {
				t.Run(fmt.Sprintf("lo/v%d", typ), func(t *testing.T) { verbstest.Run(t, loPair(p, typ)) })
				t.Run(fmt.Sprintf("self/v%d", typ), func(t *testing.T) { verbstest.Run(t, selfPair(p, typ)) })
			}
		}
	}
}

// TestLossyNetdev makes the kernel lose packets at random in both directions.
func TestLossyNetdev(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	impair(t, p.A)
	impair(t, p.B)
	for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
		t.Run(fmt.Sprintf("v%d", typ), func(t *testing.T) {
			a, b := verbstest.Connect(t, hostPair(p, typ)(t), verbstest.Config{MTU: smc.MTU1024, Reads: 4})
			verbstest.Stress(t, a, b, verbstest.StressConfig{Seed: uint64(typ), Ops: 400, MaxSize: 20000})
			// Few packets are lost. All of them may be in one direction.
			again := uint64(0)
			for _, c := range []*verbstest.Conn{a, b} {
				q := c.QP.(*qp)
				q.mu.Lock()
				again += uint64(q.ep.stats.retransmits)
				t.Logf("%+v", q.ep.stats)
				q.mu.Unlock()
			}
			if again == 0 {
				t.Error("nothing was sent again")
			}
		})
	}
}

// impair makes eth0 lose one packet in a hundred and reorder some by netem,
// or, on kernels without it, lose one in a hundred received ones by XDP.
func impair(t *testing.T, h *netnstest.Host) {
	t.Helper()
	out, err := h.Command(t.Context(), "tc", strings.Fields("qdisc add dev eth0 root netem loss 1% delay 200us reorder 97%")...).CombinedOutput()
	if err == nil {
		return
	}
	t.Logf("no netem (%s): losing packets by XDP", bytes.TrimSpace(out))
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP,
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(),
			asm.Mod.Imm32(asm.R0, 100),
			asm.JEq.Imm32(asm.R0, 7, "drop"),
			asm.Mov.Imm(asm.R0, 2), // XDP_PASS
			asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), // XDP_DROP
			asm.Return(),
		},
		License: "Apache-2.0",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close() // the netdev keeps it
	if err := h.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(l, prog.FD(), nl.XDP_FLAGS_SKB_MODE)
	}); err != nil {
		t.Fatal(err)
	}
}

// waitEvent waits for an event of that type.
func waitEvent(t *testing.T, d *Device, want rdmaverbs.AsyncEventType) {
	t.Helper()
	timeout := time.After(verbstest.Patience)
	for {
		select {
		case ev, ok := <-d.Events():
			if !ok {
				t.Fatalf("events ended before one of type %d", want)
			}
			if ev.Type == want {
				return
			}
		case <-timeout:
			t.Fatalf("no event of type %d", want)
		}
	}
}

// TestNetdevEvents takes a netdev down and up, changes its MTU and its
// addresses, and at last deletes it.
func TestNetdevEvents(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	pair := hostPair(p, rdmaverbs.RoCEv1)(t)
	a, b := verbstest.Connect(t, pair, verbstest.Config{})
	d := pair.A.Dev.(*Device)
	port := func() rdmaverbs.PortAttr {
		t.Helper()
		attr, err := d.Port(1)
		if err != nil {
			t.Fatal(err)
		}
		return attr
	}

	ip(t, p.A, "link", "set", "eth0", "down")
	waitEvent(t, d, rdmaverbs.EventPortErr)
	if s := port().State; s != rdmaverbs.PortDown {
		t.Errorf("port state %d after the netdev went down", s)
	}
	// A queue pair outlives a short interruption.
	b.Recv(rdmaverbs.RecvWR{ID: 1})
	a.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm, Flags: rdmaverbs.Signaled})
	ip(t, p.A, "link", "set", "eth0", "up")
	waitEvent(t, d, rdmaverbs.EventPortActive)
	if s := port().State; s != rdmaverbs.PortActive {
		t.Errorf("port state %d after the netdev went up", s)
	}
	a.OK(1, 1)
	b.OKRecv(1, 1)

	ip(t, p.A, "link", "set", "eth0", "mtu", "1500")
	waitEvent(t, d, rdmaverbs.EventMTUChange)
	if m := port().ActiveMTU; m != smc.MTU1024 {
		t.Errorf("active MTU is %d bytes with a netdev MTU of 1500", m.Bytes())
	}
	ip(t, p.A, "addr", "add", "10.99.1.2/24", "dev", "eth0")
	waitEvent(t, d, rdmaverbs.EventGIDChange)
	gids, _ := d.GIDs(1)
	if !slices.ContainsFunc(gids, func(g rdmaverbs.GIDEntry) bool { return g.GID.Addr() == netip.MustParseAddr("10.99.1.2") }) {
		t.Errorf("GID table without the new address: %v", gids)
	}

	a.Recv(rdmaverbs.RecvWR{ID: 9})
	ip(t, p.A, "link", "del", "eth0")
	waitEvent(t, d, rdmaverbs.EventDeviceFatal)
	a.Fails(a.RecvCQ, 9, rdmaverbs.StatusFlushErr)
	if s := a.QP.State(); s != rdmaverbs.QPSErr {
		t.Errorf("state of the queue pair is %d", s)
	}
	if _, err := d.AllocPD(); !errors.Is(err, rdmaverbs.ErrNoDevice) {
		t.Errorf("AllocPD on a device without netdev: %v", err)
	}
	if s := port().State; s != rdmaverbs.PortDown {
		t.Errorf("port state %d after the netdev was deleted", s)
	}
}

// TestProvider lists and opens devices.
func TestProvider(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	ctx := t.Context()
	if err := p.A.Do(func() error {
		list, err := New().Devices(ctx)
		if err != nil {
			return err
		}
		on := func(netdev string) rdmaverbs.DeviceInfo {
			return rdmaverbs.DeviceInfo{Name: "soft-" + netdev, Software: true, Ports: []rdmaverbs.PortInfo{{NetDev: netdev}}}
		}
		if want := []rdmaverbs.DeviceInfo{on("eth0"), on("lo")}; !reflect.DeepEqual(list, want) {
			t.Errorf("devices %v, want %v", list, want)
		}
		if list, err = New(WithNetdevs("eth0", "eth7")).Devices(ctx); err != nil || !reflect.DeepEqual(list, []rdmaverbs.DeviceInfo{on("eth0")}) {
			t.Errorf("devices of a restricted provider: %v, %v", list, err)
		}
		for netdev, none := range map[string]bool{"eth0": false, "eth7": true} {
			if name, err := New().WhyNone(ctx, netdev); name != "soft-"+netdev || errors.Is(err, rdmaverbs.ErrNoDevice) != none || !none && err != nil {
				t.Errorf("why there is no device on %s: %s, %v", netdev, name, err)
			}
		}
		for _, name := range []string{"soft-eth7", "eth0", "soft-", ""} {
			if _, err := New().Open(ctx, name); !errors.Is(err, rdmaverbs.ErrNoDevice) {
				t.Errorf("Open(%q): %v, want ErrNoDevice", name, err)
			}
		}
		if _, err := New(WithNetdevs("eth0")).Open(ctx, "soft-lo"); !errors.Is(err, rdmaverbs.ErrNoDevice) {
			t.Errorf("Open of a netdev that is not offered: %v", err)
		}
		d, err := New(WithGIDTypes(rdmaverbs.RoCEv2), WithMaxQP(1)).Open(ctx, "soft-eth0")
		if err != nil {
			return err
		}
		defer d.Close()
		gids, err := d.GIDs(1)
		if err != nil || len(gids) == 0 || slices.ContainsFunc(gids, func(g rdmaverbs.GIDEntry) bool { return g.Type != rdmaverbs.RoCEv2 }) {
			t.Errorf("GID table restricted to version 2: %v, %v", gids, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNoLeak opens and closes devices with connections and work outstanding,
// and looks for goroutines and descriptors that stay.
func TestNoLeak(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	cycle := func() {
		a, b := openIn(t, p.A, "eth0"), openIn(t, p.B, "eth0")
		pair := verbstest.Pair{A: endFor(t, a, b, rdmaverbs.RoCEv1), B: endFor(t, b, a, rdmaverbs.RoCEv1)}
		x, _ := verbstest.Connect(t, pair, verbstest.Config{})
		x.Recv(rdmaverbs.RecvWR{ID: 1})
		x.Send(rdmaverbs.SendWR{ID: 1, Op: rdmaverbs.OpSendImm})
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
	}
	cycle() // the runtime opens some descriptors once, such as epoll
	fds, gos := socktest.OpenFiles(t), runtime.NumGoroutine()
	for range 5 {
		cycle()
	}
	if err := netnstest.Until(testkind.Patience, func() error {
		if n, g := socktest.OpenFiles(t), runtime.NumGoroutine(); n > fds || g > gos {
			return fmt.Errorf("%d descriptors and %d goroutines, %d and %d before", n, g, fds, gos)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func ip(t testing.TB, h *netnstest.Host, args ...string) {
	t.Helper()
	if out, err := h.Command(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func BenchmarkVerbs(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		p := netnstest.New(b, netnstest.Options{MTU: mtu})
		for _, typ := range []rdmaverbs.GIDType{rdmaverbs.RoCEv1, rdmaverbs.RoCEv2} {
			b.Run(fmt.Sprintf("veth/v%d/%d", typ, mtu), func(b *testing.B) { verbstest.Bench(b, hostPair(p, typ)) })
		}
	}
}
