// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestRouteTwoNetDevs: after the first of two netdevs in a subnet was down the
// route takes the second one, also from the address of the first. Either may
// serve, and the prefix of the address is known.
func TestRouteTwoNetDevs(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	err := p.A.Do(func() error {
		for _, c := range []string{
			"link add eth7 type veth peer name eth8",
			"addr add 10.77.0.70/24 dev eth7",
			"link set eth8 up",
			"link set eth7 up",
			"link set eth0 down",
			"link set eth0 up",
		} {
			if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", c, err, out)
			}
		}
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		own, remote := p.A.Links[0].IPv4, p.B.Links[0].IPv4
		rt, err := n.Route(own, remote)
		if err != nil {
			return err
		}
		if rt.NetDev != "eth7" || !slices.Equal(rt.Peers, []string{"eth0"}) {
			t.Errorf("route over %s, peers %q; want eth7, eth0", rt.NetDev, rt.Peers)
		}
		for _, local := range []netip.Addr{own, netip.MustParseAddr("10.77.0.70")} {
			if got, ok := rt.PrefixOf(local); !ok || got != netip.PrefixFrom(local, 24) {
				t.Errorf("prefix of %s: %v, %v", local, got, ok)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostRoutes asks the routing table of a host about neighbours, gateways, what
// no adapter can reach, and what has changed since.
func TestHostRoutes(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	own, peer := p.A.Links[0].IPv4, p.B.Links[0].IPv4
	addr := netip.MustParseAddr
	if err := p.A.Do(func() error {
		do := func(commands ...string) error {
			for _, c := range commands {
				if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %s: %w: %s", c, err, out)
				}
			}
			return nil
		}
		if err := do(
			"link add eth7 type veth peer name eth8",
			"link set eth7 up",
			"link set eth8 up",
			"addr add 10.77.0.77/32 dev eth0",
			"route add 10.90.0.0/24 via "+peer.String(),
			"route add blackhole 10.91.0.0/24",
			"route add local 10.92.0.0/24 dev lo",
			"route add broadcast 10.93.0.1 dev eth0",
			"route add 10.94.0.0/24 via inet6 fe80::1 dev eth0",
			"rule add from 10.77.0.77 table 100",
			"route add 10.95.0.0/24 via 10.77.0.9 dev eth0 table 100",
		); err != nil {
			return err
		}
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		for _, tt := range []struct {
			name          string
			local, remote netip.Addr
			netdev        string
			gateway       netip.Addr
		}{
			{"Neighbour", own, peer, "eth0", netip.Addr{}},
			{"NoSource", netip.Addr{}, peer, "eth0", netip.Addr{}},
			{"Mapped", netip.AddrFrom16(own.As16()), netip.AddrFrom16(peer.As16()), "eth0", netip.Addr{}},
			{"IPv6", p.A.Links[0].IPv6, p.B.Links[0].IPv6, "eth0", netip.Addr{}},
			{"Gateway", own, addr("10.90.0.1"), "eth0", peer},
			{"GatewayOfTheSource", addr("10.77.0.77"), addr("10.95.0.1"), "eth0", addr("10.77.0.9")},
			{"LinkLocal", netip.Addr{}, addr("fe80::99%eth7"), "eth7", netip.Addr{}},
			{"ThisHost", own, own, "", netip.Addr{}},
			{"Loopback", netip.Addr{}, addr("127.0.0.1"), "", netip.Addr{}},
			{"LocalPrefix", own, addr("10.92.0.5"), "", netip.Addr{}},
			{"Blackhole", own, addr("10.91.0.1"), "", netip.Addr{}},
			{"Broadcast", own, addr("10.93.0.1"), "", netip.Addr{}},
			{"GatewayOfOtherVersion", own, addr("10.94.0.1"), "", netip.Addr{}},
			{"None", own, addr("10.95.0.1"), "", netip.Addr{}},
		} {
			rt, err := n.Route(tt.local, tt.remote)
			if tt.netdev == "" {
				if !errors.Is(err, ErrNotOnLink) {
					t.Errorf("%s: %+v, %v", tt.name, rt, err)
				}
				continue
			}
			if err != nil || rt.NetDev != tt.netdev || rt.Gateway != tt.gateway {
				t.Errorf("%s: %+v, %v", tt.name, rt, err)
			}
			if tt.name == "NoSource" && rt.Source != own {
				t.Errorf("the kernel would use %v, want %v", rt.Source, own)
			}
		}

		// What is kept of addresses and netdevs follows them.
		later := netip.MustParsePrefix("10.77.0.78/24")
		within := func(what string, ok func() bool) {
			if err := netnstest.Until(testkind.Patience, func() error {
				if !ok() {
					return fmt.Errorf("%s: not noticed", what)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		has := func() bool {
			rt, err := n.Route(own, peer)
			return err == nil && slices.Contains(rt.Local, later)
		}
		netdev := func(name string) *NetDev {
			devs, err := n.NetDevs()
			if i := slices.IndexFunc(devs, func(d NetDev) bool { return d.Name == name }); err == nil && i >= 0 {
				return &devs[i]
			}
			return nil
		}
		if has() {
			t.Error("an address is there that is added later")
		}
		if err := do("addr add " + later.String() + " dev eth0"); err != nil {
			return err
		}
		within("new address", has)
		if err := do("addr del " + later.String() + " dev eth0"); err != nil {
			return err
		}
		within("address removed", func() bool { return !has() })
		if d := netdev("eth7"); d == nil || !d.Up {
			t.Errorf("eth7 is %+v", d)
		}
		if err := do("link set eth7 down"); err != nil {
			return err
		}
		within("netdev down", func() bool { d := netdev("eth7"); return d != nil && !d.Up })
		// A part of a bridge carries nothing of its own.
		if err := do("link add br0 type bridge", "link set eth7 master br0"); err != nil {
			return err
		}
		within("bridge", func() bool { return netdev("eth7") == nil && netdev("br0") != nil && netdev("lo") == nil })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRouteEncapsulates: a route that puts packets into others is none for RoCE.
func TestRouteEncapsulates(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	peer := p.B.Links[0].IPv6.String()
	for _, encap := range []string{
		"seg6 mode encap segs " + peer + " dev eth0",
		"seg6 mode inline segs " + peer + " dev eth0",
		"mpls 100 via " + peer + " dev eth0",
		"rpl segs " + peer + " dev eth0",
	} {
		t.Run(strings.Fields(encap)[0], func(t *testing.T) {
			line := append([]string{"-6", "route", "replace", "fd99::2/128", "encap"}, strings.Fields(encap)...)
			if out, err := p.A.Output(t.Context(), "ip", line...); err != nil {
				t.Skipf("this kernel has no such route: %v: %s", err, out)
			}
			if err := p.A.Do(func() error {
				n, err := Open()
				if err != nil {
					return err
				}
				defer n.Close()
				rt, err := n.Route(p.A.Links[0].IPv6, netip.MustParseAddr("fd99::2"))
				if !errors.Is(err, ErrNotOnLink) || !strings.Contains(err.Error(), "encapsulates") {
					t.Errorf("%+v, %v", rt, err)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// refused connects to a port where nobody listens: there and back, one packet goes each way.
func refused(t *testing.T, to netip.Addr) error {
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", netip.AddrPortFrom(to, 1).String())
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err == nil {
		err = errors.Join(errors.New("somebody listens"), c.Close())
	}
	return fmt.Errorf("%s: %w", to, err)
}

// TestNeighbour: whose an address of the LAN is, when there was a packet of it, and not that of a host behind it.
func TestNeighbour(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	b, alias, routed := p.B.Links[0].IPv4, netip.MustParseAddr("10.77.0.99"), netip.MustParseAddr("10.99.0.1")
	for _, c := range []struct {
		h   *netnstest.Host
		cmd string
	}{
		{p.B, "ip addr add " + alias.String() + "/24 dev " + p.B.Links[0].Name},
		{p.B, "ip addr add " + routed.String() + "/32 dev lo"},
		{p.A, "ip route add 10.99.0.0/24 via " + b.String()},
	} {
		args := strings.Fields(c.cmd)
		if out, err := c.h.Command(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c.cmd, err, out)
		}
	}
	if err := p.A.Do(func() error {
		for _, to := range []netip.Addr{b, alias, routed, p.B.Links[0].IPv6} {
			if err := refused(t, to); err != nil {
				return err
			}
		}
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		for _, tt := range []struct {
			local, remote netip.Addr
			ok            bool
		}{
			{p.A.Links[0].IPv4, b, true},
			{p.A.Links[0].IPv4, netip.AddrFrom16(b.As16()), true},
			{p.A.Links[0].IPv4, alias, true},
			{p.A.Links[0].IPv6, p.B.Links[0].IPv6, true},
			{p.A.Links[0].IPv4, routed, false},
			{p.A.Links[0].IPv4, netip.MustParseAddr("10.77.0.200"), false},
			{p.A.Links[0].IPv4, p.A.Links[0].IPv4, false},
		} {
			for range 2 { // what it remembers is the same
				mac, ok := n.Neighbour(tt.local, tt.remote)
				if ok != tt.ok || ok && mac != smc.MAC(p.B.Links[0].MAC) {
					t.Errorf("neighbour %s: %s, %t; want %s, %t", tt.remote, mac, ok, p.B.Links[0].MAC, tt.ok)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
