// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs"
	"smcr/smc"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

func TestGIDTable(t *testing.T) {
	addr := netip.MustParseAddr
	got := gidTable("eth0", [6]byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}, []netip.Addr{
		addr("10.77.0.1"), addr("127.0.0.1"), addr("::1"), addr("fe80::5054:ff:fe12:3456"), addr("fd77::1"), addr("0.0.0.0"), addr("ff02::1"),
	})
	var text []string
	for _, e := range got {
		text = append(text, fmt.Sprintf("%v v%d %s", e.GID, e.Type, e.NetDev))
	}
	want := []string{
		"fe80:0000:0000:0000:5054:00ff:fe12:3456 v1 eth0",
		"fe80:0000:0000:0000:5054:00ff:fe12:3456 v2 eth0",
		"0000:0000:0000:0000:0000:ffff:0a4d:0001 v1 eth0",
		"0000:0000:0000:0000:0000:ffff:0a4d:0001 v2 eth0",
		"0000:0000:0000:0000:0000:ffff:7f00:0001 v1 eth0",
		"0000:0000:0000:0000:0000:ffff:7f00:0001 v2 eth0",
		"fd77:0000:0000:0000:0000:0000:0000:0001 v1 eth0",
		"fd77:0000:0000:0000:0000:0000:0000:0001 v2 eth0",
	}
	if d := cmp.Diff(want, text); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestMergeGIDs: entries keep their index while they exist.
func TestMergeGIDs(t *testing.T) {
	const mac1, mac2 = 1, 2
	table := func(mac byte, ips ...string) []rdmaverbs.GIDEntry {
		var a []netip.Addr
		for _, ip := range ips {
			a = append(a, netip.MustParseAddr(ip))
		}
		return gidTable("eth0", [6]byte{5: mac}, a)
	}
	text := func(table []rdmaverbs.GIDEntry) (s []string) {
		for _, e := range table {
			switch {
			case e.GID.IsZero():
				s = append(s, "-")
			case e.Type == rdmaverbs.RoCEv2:
				s = append(s, e.GID.Addr().String())
			}
		}
		return s
	}
	var got []rdmaverbs.GIDEntry
	for _, step := range []struct {
		now  []rdmaverbs.GIDEntry
		want []string
	}{
		{table(mac1, "10.0.0.1", "10.0.0.2", "10.0.0.3"), []string{"fe80::200:ff:fe00:1", "10.0.0.1", "10.0.0.2", "10.0.0.3"}},
		{table(mac1, "10.0.0.1", "10.0.0.3"), []string{"fe80::200:ff:fe00:1", "10.0.0.1", "-", "-", "10.0.0.3"}},
		{table(mac2, "10.0.0.3", "10.0.0.1"), []string{"fe80::200:ff:fe00:2", "10.0.0.1", "-", "-", "10.0.0.3"}},
		{table(mac2, "10.0.0.4", "10.0.0.3", "10.0.0.5"), []string{"fe80::200:ff:fe00:2", "10.0.0.4", "10.0.0.5", "10.0.0.3"}},
		{table(mac2, "10.0.0.4"), []string{"fe80::200:ff:fe00:2", "10.0.0.4"}},
		{table(mac2), []string{"fe80::200:ff:fe00:2"}},
	} {
		got = mergeGIDs(got, step.now, 2)
		if d := cmp.Diff(step.want, text(got)); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	// A restriction to version 2 leaves one default GID.
	only := []rdmaverbs.GIDEntry{{GID: defaultGID([6]byte{5: mac1}), Type: rdmaverbs.RoCEv2}}
	if got := mergeGIDs(nil, only, 1); !slices.Equal(got, only) {
		t.Errorf("version 2 alone: %v", got)
	}
}

func TestPathMTU(t *testing.T) {
	for _, c := range []struct {
		mtu    int
		v1, v2 smc.MTU
	}{
		{9000, smc.MTU4096, smc.MTU4096},
		{4096 + 76, smc.MTU4096, smc.MTU2048},
		{1500, smc.MTU1024, smc.MTU1024},
		{1024 + 75, smc.MTU512, smc.MTU512},
		{300, 0, 0},
	} {
		i := netdevInfo{MTU: c.mtu}
		if v1, v2 := i.pathMTU(rdmaverbs.RoCEv1), i.pathMTU(rdmaverbs.RoCEv2); v1 != c.v1 || v2 != c.v2 {
			t.Errorf("netdev MTU %d: %d and %d, want %d and %d", c.mtu, v1, v2, c.v1, c.v2)
		}
	}
}

// TestNetdevFacts compares the facts with what the test set up.
func TestNetdevFacts(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{MTU: 4200})
	l := pair.A.Links[0]
	if err := pair.A.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}); err != nil {
			return err
		}
		f, err := newFacts()
		if err != nil {
			return err
		}
		defer f.close()
		names, err := f.netdevs()
		if err != nil {
			return err
		}
		if want := []string{"eth0", "lo"}; !slices.Equal(names, want) {
			t.Errorf("netdevs %v, want %v", names, want)
		}
		i, err := f.byName("eth0")
		if err != nil {
			return err
		}
		gids := i.GIDs
		i.GIDs, i.hasDefault = nil, false // the kernel assigns the address later
		want := netdevInfo{Name: "eth0", Index: i.Index, HWAddr: l.MAC, MTU: 4200, Up: true}
		if d := cmp.Diff(want, *i, cmp.AllowUnexported(netdevInfo{})); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		if gids[0].GID != defaultGID([6]byte(l.MAC)) || gids[0].Type != rdmaverbs.RoCEv1 {
			t.Errorf("entry 0 is %v", gids[0])
		}
		if !slices.Contains(gids, rdmaverbs.GIDEntry{GID: gidOf(l.IPv4), Type: rdmaverbs.RoCEv2, NetDev: "eth0"}) {
			t.Errorf("GIDs %v lack %v", gids, l.IPv4)
		}
		if _, err := f.byName("nonesuch"); !errors.Is(err, rdmaverbs.ErrNoDevice) {
			t.Errorf("unknown netdev: %v", err)
		}
		if _, _, _, err := openWire("nonesuch", defaultConfig()); !errors.Is(err, rdmaverbs.ErrNoDevice) {
			t.Errorf("wire on an unknown netdev: %v", err)
		}
		if _, _, _, err := openWire("tun0", defaultConfig()); !errors.Is(err, errNotEthernet) {
			t.Errorf("wire on a tunnel: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNetdevWatch makes each kind of change and expects its report.
func TestNetdevWatch(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	changes := make(chan netdevChange, 64)
	var watch io.Closer
	var index int
	if err := pair.A.Do(func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		index = dev.Index
		watch, err = watchNetdev(index, nil, func(c netdevChange) { changes <- c })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer watch.Close()

	expect := func(what string, ok func(netdevChange) bool) {
		t.Helper()
		timeout := time.After(testkind.Patience)
		for {
			select {
			case c := <-changes:
				if ok(c) {
					return
				}
			case <-timeout:
				t.Fatalf("no report of %s", what)
			}
		}
	}
	do := func(f func(netlink.Link) error) {
		t.Helper()
		if err := pair.A.Do(func() error {
			l, err := netlink.LinkByIndex(index)
			if err != nil {
				return err
			}
			return f(l)
		}); err != nil {
			t.Fatal(err)
		}
	}

	if err := pair.B.SetLink(0, false); err != nil {
		t.Fatal(err)
	}
	expect("carrier lost", func(c netdevChange) bool { return !c.Info.Up && !c.Gone })
	if err := pair.B.SetLink(0, true); err != nil {
		t.Fatal(err)
	}
	expect("carrier back", func(c netdevChange) bool { return c.Info.Up })
	if err := pair.A.SetLink(0, false); err != nil {
		t.Fatal(err)
	}
	expect("down", func(c netdevChange) bool { return !c.Info.Up })
	if err := pair.A.SetLink(0, true); err != nil {
		t.Fatal(err)
	}
	expect("up", func(c netdevChange) bool { return c.Info.Up })
	do(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })
	expect("MTU", func(c netdevChange) bool { return c.Info.MTU == 1300 })

	ip := netip.MustParseAddr("192.0.2.9")
	na := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	has := func(c netdevChange) bool {
		return slices.ContainsFunc(c.Info.GIDs, func(e rdmaverbs.GIDEntry) bool { return e.GID == gidOf(ip) })
	}
	do(func(l netlink.Link) error { return netlink.AddrAdd(l, na) })
	expect("new address", has)
	do(func(l netlink.Link) error { return netlink.AddrDel(l, na) })
	expect("removed address", func(c netdevChange) bool { return !has(c) })
	mac := net.HardwareAddr{2, 1, 2, 3, 4, 5}
	do(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) })
	expect("MAC", func(c netdevChange) bool { return c.Info.GIDs[0].GID == defaultGID([6]byte(mac)) })

	// Changes of another netdev are not reported.
	for len(changes) > 0 {
		<-changes
	}
	if err := pair.A.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(lo, 9000)
	}); err != nil {
		t.Fatal(err)
	}
	do(netlink.LinkDel)
	expect("deletion", func(c netdevChange) bool {
		if c.Info.Index != index {
			t.Errorf("report about netdev %d", c.Info.Index)
		}
		return c.Gone
	})
	if err := watch.Close(); err != nil {
		t.Error(err)
	}
}

// TestNetdevWatchClose closes watches at once and twice.
func TestNetdevWatchClose(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{})
	files := socktest.OpenFiles(t)
	for range 50 {
		if err := pair.A.Do(func() error {
			w, err := watchNetdev(1, nil, func(netdevChange) {})
			if err != nil {
				return err
			}
			return errors.Join(w.Close(), w.Close())
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := socktest.OpenFiles(t); n > files {
		t.Errorf("%d files open, were %d", n, files)
	}
}
