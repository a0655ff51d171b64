// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// openAll opens eth0 and eth1 of a host by one provider.
func openAll(t *testing.T, h *netnstest.Host) (devs [2]*Device) {
	t.Helper()
	if err := h.Do(func() error {
		p := New()
		for i, name := range []string{"eth0", "eth1"} {
			d, err := p.Open(context.Background(), namePrefix+name)
			if err != nil {
				return err
			}
			t.Cleanup(func() { d.Close() })
			devs[i] = d.(*Device)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return devs
}

// v2End is a device with its version 2 entry of an IPv4 address.
func v2End(t *testing.T, d *Device) verbstest.End {
	t.Helper()
	gids, err := d.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(gids, func(g rdmaverbs.GIDEntry) bool { return g.Type == rdmaverbs.RoCEv2 && g.GID.Addr().Is4() })
	if i < 0 {
		t.Fatalf("no such entry: %v", gids)
	}
	return verbstest.End{Dev: d, SGIDIndex: i}
}

// TestSeveralDevices has two netdevs a host: in two subnets; with packets to one
// arriving at the other; and with each other.
func TestSeveralDevices(t *testing.T) {
	netnstest.Require(t, "sysctl")
	p := netnstest.New(t, netnstest.Options{MTU: 9000, Links: 2})
	for _, h := range []*netnstest.Host{p.A, p.B} {
		for _, dev := range []string{"all", "eth0", "eth1"} {
			if out, err := h.Command(t.Context(), "sysctl", "-qw", "net.ipv4.conf."+dev+".rp_filter=0").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	a, b := openAll(t, p.A), openAll(t, p.B)
	icmp := p.A.StartCapture(t, netnstest.CaptureOptions{Filter: "icmp or icmp6 and ip6[40] == 1"})
	icmp1 := p.A.StartCapture(t, netnstest.CaptureOptions{Link: 1, Filter: "icmp or icmp6 and ip6[40] == 1"})
	stress := func(name string, x, y *Device) {
		t.Run(name, func(t *testing.T) {
			cx, cy := verbstest.Connect(t, verbstest.Pair{A: v2End(t, x), B: v2End(t, y)}, verbstest.Config{MTU: smc.MTU1024, Reads: 4})
			verbstest.Stress(t, cx, cy, verbstest.StressConfig{Seed: 7, Ops: 200, MaxSize: 20000})
		})
	}
	stress("Subnet0", a[0], b[0])
	stress("Subnet1", a[1], b[1])
	stress("OwnHost", a[0], a[1])
	// A sends to the address of B's eth1 by the wire to eth0, and B answers by
	// the wire of eth1.
	there := p.B.Links[1].IPv4.String()
	ip(t, p.A, "route", "add", there+"/32", "dev", "eth0", "src", p.A.Addr())
	ip(t, p.A, "neigh", "replace", there, "lladdr", p.B.Links[0].MAC.String(), "dev", "eth0")
	stress("Crossed", a[0], b[1])
	if c := b[0].Counters(); c.WrongPort != 0 || c.WrongPeer != 0 {
		t.Errorf("counters of the netdev that packets came to: %+v", c)
	}
	for _, c := range []*netnstest.Capture{icmp, icmp1} {
		if _, err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		if tr, err := c.Count(); err != nil || tr.Other.Packets != 0 {
			t.Errorf("ICMP unreachable: %+v, %v", tr, err)
		}
	}
}

// TestCloseNotice: if a queue pair is closed while its netdev is down, its peer
// gets the close notice through another netdev.
func TestCloseNotice(t *testing.T) {
	netnstest.Require(t, "sysctl")
	p := netnstest.New(t, netnstest.Options{MTU: 9000, Links: 2})
	for _, dev := range []string{"all", "eth0", "eth1"} {
		if out, err := p.A.Command(t.Context(), "sysctl", "-qw", "net.ipv4.conf."+dev+".rp_filter=0").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	a, b := openAll(t, p.A), openAll(t, p.B)
	x, y := verbstest.Connect(t, verbstest.Pair{A: v2End(t, a[0]), B: v2End(t, b[0])}, verbstest.Config{Timeout: 22, RetryCnt: 7})
	dst, _ := y.MR(64, verbstest.All)
	x.Send(oneByte(1, dst))
	x.OK(1, 1)
	ip(t, p.B, "link", "set", "eth0", "down")
	testkind.Eventually(t, "the port is not down", func() (any, bool) {
		at, err := b[0].Port(1)
		if err != nil {
			t.Fatal(err)
		}
		return at, at.State == rdmaverbs.PortDown
	})
	x.Send(oneByte(2, dst))
	if err := y.QP.Close(); err != nil {
		t.Fatal(err)
	}
	x.Fails(x.SendCQ, 2, rdmaverbs.StatusRemOpErr)
}

// TestOtherUDP: other UDP sockets of the host receive their packets while a
// device is busy.
func TestOtherUDP(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{MTU: 9000})
	a, b := openIn(t, p.A, "eth0"), openIn(t, p.B, "eth0")
	listen := func(h *netnstest.Host) (c *net.UDPConn) {
		if err := h.Do(func() (err error) {
			c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: h.Links[0].IPv4.AsSlice(), Port: 4790})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	from, to := listen(p.A), listen(p.B)
	x, y := verbstest.Connect(t, verbstest.Pair{A: v2End(t, a), B: v2End(t, b)}, verbstest.Config{MTU: smc.MTU4096, Reads: 4})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for i := range byte(100) {
			if _, err := from.WriteTo([]byte{i}, to.LocalAddr()); err != nil {
				t.Error(err)
				return
			}
			_ = to.SetReadDeadline(time.Now().Add(testkind.Patience))
			if n, err := to.Read(buf); err != nil || n != 1 || buf[0] != i {
				t.Errorf("datagram %d: %d bytes %x, %v", i, n, buf[:n], err)
				return
			}
		}
	}()
	verbstest.Stress(t, x, y, verbstest.StressConfig{Seed: 3, Ops: 300, MaxSize: 50000})
	<-done
}
