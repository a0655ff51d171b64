// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// TestServices reads the services of IPVS as the kernel writes them.
func TestServices(t *testing.T) {
	const head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	four, six := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		text           string
		all, four, six bool
	}{
		{"", false, false, false},
		{head, false, false, false},
		{head + "TCP  C6336401:0FA1 rr \n  -> 0A4D0002:0FA1      Masq    1      0          0         \n", false, true, false},
		{head + "TCP  C6336401:0000 rr persistent 300 FFFFFFFF\nTCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0fa1 wlc \n", false, true, true},
		{head + "UDP  C6336401:0FA1 rr \n", false, false, false},
		{head + "FWM  00000001 rr \n", true, false, false},
		{head + "FWM  00000001 IPv6 rr \n", true, false, false},
		{head + "TCP  something:0FA1 rr \n", true, false, false},
		{head + "TCP  noport rr \n", true, false, false},
	} {
		all, addrs := parseServices([]byte(tt.text))
		if all != tt.all || addrs[four] != tt.four || addrs[six] != tt.six {
			t.Errorf("%q: %v, %v", tt.text, all, addrs)
		}
	}
}

// TestRouteBalanced: a connection to an address for which IPVS has a service stays TCP, also if it
// is an address of the host.
func TestRouteBalanced(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "modprobe", "-a", "ip_vs", "ip_vs_rr").CombinedOutput(); err != nil {
		if _, serr := os.Stat("/proc/net/ip_vs"); serr != nil {
			t.Skipf("this kernel has no IPVS: %v: %s", err, out)
		}
	}
	netnstest.Require(t, "ipvsadm")
	l := netnstest.New(t, netnstest.Options{})
	run := func(argv ...string) {
		t.Helper()
		if out, err := l.A.Output(t.Context(), argv[0], argv[1:]...); err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
	const own = "198.51.100.77"
	run("ip", "addr", "add", own+"/32", "dev", "lo")
	if err := l.A.Do(func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		route := func(to string) error {
			n.balancer.until = time.Time{}
			_, err := n.Route(netip.Addr{}, netip.MustParseAddr(to))
			return err
		}
		if err := route(own); !errors.Is(err, ErrThisHost) {
			t.Errorf("before: %v", err)
		}
		if err := route(l.B.Addr()); err != nil {
			t.Errorf("another host, before: %v", err)
		}
		run("ipvsadm", "-A", "-t", own+":4001", "-s", "rr")
		run("ipvsadm", "-A", "-t", l.B.Addr()+":4001", "-s", "rr")
		for _, to := range []string{own, "::ffff:" + own, l.B.Addr()} {
			if err := route(to); !errors.Is(err, ErrNotOnLink) || errors.Is(err, ErrThisHost) {
				t.Errorf("%s: %v", to, err)
			}
		}
		run("ipvsadm", "-C")
		if err := route(l.B.Addr()); err != nil {
			t.Errorf("after: %v", err)
		}
		run("ipvsadm", "-A", "-f", "1", "-s", "rr")
		if err := route(l.B.Addr()); !errors.Is(err, ErrNotOnLink) {
			t.Errorf("by a mark: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
