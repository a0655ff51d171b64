// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// TestChangesAreSeenAtOnce: what a command has changed is so in the next answer, although answers are kept.
func TestChangesAreSeenAtOnce(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	own, remote := p.A.Links[0].IPv4, p.B.Links[0].IPv4
	a, b := netip.AddrPortFrom(own, 5000), netip.AddrPortFrom(remote, 80)
	var n *Namespace
	via := func(want string) func() error {
		return func() error {
			rt, err := n.Route(own, remote)
			if err != nil {
				return err
			}
			if got := rt.Gateway.String(); got != want {
				return fmt.Errorf("gateway %s, want %s", got, want)
			}
			return nil
		}
	}
	const direct = "invalid IP"
	here := func() error {
		if _, err := n.Route(own, remote); !errors.Is(err, ErrThisHost) {
			return fmt.Errorf("route to an own address: %v", err)
		}
		return nil
	}
	gone := func() error {
		if rt, err := n.Route(own, remote); !errors.Is(err, ErrNotOnLink) {
			return fmt.Errorf("route %+v, %v", rt, err)
		}
		return nil
	}
	prefixes := func(want int) func() error {
		return func() error {
			rt, err := n.Route(own, remote)
			if err == nil && len(rt.Local) != want {
				err = fmt.Errorf("addresses %v, want %d", rt.Local, want)
			}
			return err
		}
	}
	secured := func(want bool) func() error {
		return func() error {
			is, err := n.Secured(a, b)
			if err == nil && is != want {
				err = fmt.Errorf("secured: %t", is)
			}
			return err
		}
	}
	gw := netip.MustParseAddr("10.77.0.99").String()
	err := p.A.Do(func() (err error) {
		if n, err = Open(); err != nil {
			return err
		}
		defer n.Close()
		rt, err := n.Route(own, remote)
		if err != nil {
			return err
		}
		had := len(rt.Local)
		for _, s := range []struct {
			command string
			is      func() error
		}{
			{"", via(direct)},
			{"route add " + remote.String() + "/32 via " + gw + " dev eth0 onlink", via(gw)},
			{"route del " + remote.String() + "/32", via(direct)},
			{"route add table 77 " + remote.String() + "/32 via " + gw + " dev eth0 onlink", via(direct)},
			{"rule add to " + remote.String() + " table 77 priority 7", via(gw)},
			{"rule del to " + remote.String() + " table 77 priority 7", via(direct)},
			{"nexthop add id 7 via " + gw + " dev eth0 onlink", via(direct)},
			{"route add " + remote.String() + "/32 nhid 7", via(gw)},
			{"nexthop del id 7", via(direct)},
			{"addr add 10.99.0.1/24 dev eth0", prefixes(had + 1)},
			{"addr del 10.99.0.1/24 dev eth0", prefixes(had)},
			{"addr add " + remote.String() + "/32 dev lo", here},
			{"addr del " + remote.String() + "/32 dev lo", via(direct)},
			{"", secured(false)},
			{"xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out tmpl proto esp mode transport", secured(true)},
			{"xfrm policy flush", secured(false)},
			{"link set eth0 down", gone},
		} {
			if s.command != "" {
				if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(s.command)...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %s: %w: %s", s.command, err, out)
				}
			}
			for range 2 { // the second answer is a kept one
				if err := s.is(); err != nil {
					t.Errorf("after ip %s: %v", s.command, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWatchOverflows: reports for which there was no room are a change.
func TestWatchOverflows(t *testing.T) {
	netnstest.Require(t, "ip")
	p := netnstest.New(t, netnstest.Options{})
	err := p.A.Do(func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		own, remote := p.A.Links[0].IPv4, p.B.Links[0].IPv4
		if _, err := n.Route(own, remote); err != nil {
			return err
		}
		var batch strings.Builder
		for i := range 4000 {
			fmt.Fprintf(&batch, "route add 10.%d.%d.0/24 dev eth0\n", 100+i/256, i%256)
		}
		fmt.Fprintf(&batch, "route add %s/32 via 10.77.0.99 dev eth0 onlink\n", remote)
		cmd := exec.CommandContext(t.Context(), "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip -batch: %w: %s", err, out)
		}
		for range 2 {
			if rt, err := n.Route(own, remote); err != nil || !rt.Gateway.IsValid() {
				t.Errorf("route %+v, %v", rt, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
