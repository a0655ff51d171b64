// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/verbstest"
	"smcr/smc"
)

// successor is a provider of host A that takes part n of the numbers.
func successor(t *testing.T, n int) *Provider {
	t.Helper()
	p := New()
	q, err := QPNPart(n)
	if err != nil {
		t.Fatal(err)
	}
	p.UseQPNs(q)
	return p
}

// opened opens eth0 of a host with p.
func opened(t *testing.T, h *netnstest.Host, p *Provider) *Device {
	t.Helper()
	var dev rdmaverbs.Device
	if err := h.Do(func() (err error) {
		dev, err = p.Open(context.Background(), namePrefix+"eth0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev.(*Device)
}

// version2 returns the version 2 GID of a device that is an IPv4 or IPv6 address.
func version2(t *testing.T, d *Device, is func(netip.Addr) bool) verbstest.End {
	t.Helper()
	gids, err := d.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range gids {
		if g.Type == rdmaverbs.RoCEv2 && is(g.GID.Addr()) {
			return verbstest.End{Dev: d, SGIDIndex: i}
		}
	}
	t.Fatalf("no such GID: %v", gids)
	return verbstest.End{}
}

// TestHandOver passes the sockets of host A on twice. The queue pairs of each process
// transfer data before and after, at the same time, over each version of RoCE and IP.
// No process sees a packet that is for another one as a forgery.
func TestHandOver(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	b := opened(t, p.B, New())
	type path struct {
		name string
		is   func(netip.Addr) bool
	}
	paths := []path{{"IPv4", netip.Addr.Is4}, {"IPv6", func(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() }}, {"link-local", netip.Addr.IsLinkLocalUnicast}}
	// Each stage uses connections of all processes that transferred nothing before.
	const stages = 5
	var conns [stages][][2]*verbstest.Conn
	connectFor := func(stage int, a *Device) {
		for _, x := range paths {
			ends := verbstest.Pair{A: version2(t, a, x.is), B: version2(t, b, x.is)}
			ends.A.DMAC, ends.B.DMAC = b.Attr().HWAddr, a.Attr().HWAddr
			ca, cb := verbstest.Connect(t, ends, verbstest.Config{MTU: smc.MTU1024, Reads: 4, Timeout: 14, RetryCnt: 7})
			conns[stage] = append(conns[stage], [2]*verbstest.Conn{ca, cb})
		}
		v1 := verbstest.Pair{A: endFor(t, a, b, rdmaverbs.RoCEv1), B: endFor(t, b, a, rdmaverbs.RoCEv1)}
		ca, cb := verbstest.Connect(t, v1, verbstest.Config{MTU: smc.MTU1024, Reads: 4})
		conns[stage] = append(conns[stage], [2]*verbstest.Conn{ca, cb})
	}
	connect := func(from int, a *Device) {
		for stage := from; stage < stages; stage++ {
			connectFor(stage, a)
		}
	}
	stress := func(name string, stage int) {
		t.Run(name, func(t *testing.T) {
			for i, c := range conns[stage] {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					t.Parallel()
					verbstest.Stress(t, c[0], c[1], verbstest.StressConfig{Seed: uint64(stage), Ops: 60, MaxSize: 50000})
				})
			}
		})
	}
	old := successor(t, 0)
	devices := []*Device{opened(t, p.A, old)}
	connect(0, devices[0])
	stress("before", 0)
	for n := 1; n < 3; n++ {
		next := successor(t, n)
		var r []Receivers
		if err := p.A.Do(func() (err error) { r, err = old.HandOver(); return err }); err != nil {
			t.Fatal(err)
		}
		if len(r) != 2 {
			t.Fatalf("handed over %v, want IPv4 and IPv6", r)
		}
		stress(fmt.Sprintf("tapped %d", n), 2*n-1)
		next.Inherit(r)
		if err := p.A.Do(next.LacksV2); err != nil {
			t.Errorf("before a device is open: %v", err)
		}
		devices = append(devices, opened(t, p.A, next))
		old.Leave()
		connect(2*n, devices[n])
		stress(fmt.Sprintf("inherited %d", n), 2*n)
		old = next
	}
	for n, d := range devices {
		if got := d.drops.wrongPeer.Load() + d.drops.wrongSource.Load(); got > 0 {
			t.Errorf("process %d: %d packets of its peers were refused", n, got)
		}
		for _, q := range d.allQPs() {
			if q.ep.qpn>>20 != uint32(n) {
				t.Errorf("process %d has queue pair %#x", n, q.ep.qpn)
			}
		}
	}
}

// TestTakeBack checks that a process goes on as before if the new one has failed, and
// that nothing stays open.
func TestTakeBack(t *testing.T) {
	p := netnstest.New(t, netnstest.Options{})
	old := successor(t, 3)
	a, b := opened(t, p.A, old), opened(t, p.B, New())
	fds := socktest.OpenFiles(t)
	for n := range 3 {
		is := netip.Addr.Is4
		ca, cb := verbstest.Connect(t, verbstest.Pair{A: version2(t, a, is), B: version2(t, b, is)}, verbstest.Config{MTU: smc.MTU1024, Reads: 4, Timeout: 14, RetryCnt: 7})
		if err := p.A.Do(func() error {
			r, err := old.HandOver()
			if err != nil {
				return err
			}
			if _, err := old.HandOver(); err == nil {
				t.Error("handed over twice")
			}
			if _, err := old.Open(t.Context(), namePrefix+"eth0"); err == nil {
				t.Error("opened a device after HandOver")
			}
			for _, x := range r {
				if err := x.Close(); err != nil {
					return err
				}
			}
			return old.TakeBack()
		}); err != nil {
			t.Fatal(err)
		}
		verbstest.Stress(t, ca, cb, verbstest.StressConfig{Seed: uint64(n), Ops: 60, MaxSize: 50000})
	}
	if now := socktest.OpenFiles(t); now != fds {
		t.Errorf("%d files are open, %d were before", now, fds)
	}
}

// TestQPNs checks that the parts of the numbers are disjoint.
func TestQPNs(t *testing.T) {
	for n := range QPNParts {
		q, err := QPNPart(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, random := range []uint32{0, 1, 0xffffff, 0xffffffff, 0x123456} {
			if got := q.pick(random); got>>20 != uint32(n) || got&0xfffff != random&0xfffff || !q.has(got) {
				t.Errorf("part %d: %#x of %#x", n, got, random)
			}
		}
		if q.has(uint32(n+1) % QPNParts << 20) {
			t.Errorf("part %d has a number of the next", n)
		}
	}
	var all QPNs
	if all.pick(0xffabcdef) != 0xabcdef || !all.has(0xabcdef) {
		t.Error("the zero value has not all numbers")
	}
	for _, n := range []int{-1, QPNParts} {
		if _, err := QPNPart(n); err == nil {
			t.Errorf("part %d", n)
		}
	}
}
