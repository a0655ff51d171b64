// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Addresses with a router between the sides.
const (
	routedUserAddr = "10.7.3.2"
	routerToKernel = "10.7.2.254"
	routerToUser   = "10.7.3.254"
)

// route puts a router between the sides: it moves the user side's end of the link to the
// LAN into the router.
func route(t *testing.T, kernel, user *side) {
	t.Helper()
	router := &side{bed: kernel.bed, prefix: []string{"ip", "netns", "exec", "router"}}
	for _, c := range []struct {
		at   *side
		argv string
	}{
		{kernel, "ip netns add router"},
		{kernel, "ip link add pr0 type veth peer name r0"},
		{kernel, "ip link set pr0 master lan up"},
		{kernel, "ip link set r0 netns router"},
		{kernel, "ip link set pu0 nomaster"},
		{kernel, "ip link set pu0 netns router"},
		{router, "ip addr add " + routerToKernel + "/24 dev r0"},
		{router, "ip addr add " + routerToUser + "/24 dev pu0"},
		{router, "ip link set r0 up"},
		{router, "ip link set pu0 up"},
		{router, "sysctl -qw net.ipv4.ip_forward=1"},
		{kernel, "ip route add 10.7.3.0/24 via " + routerToKernel},
		{user, "ip addr flush dev u0 scope global"},
		{user, "ip addr add " + routedUserAddr + "/24 dev u0"},
		{user, "ip route add default via " + routerToUser},
	} {
		c.at.run(t, strings.Fields(c.argv)...)
	}
	user.addr = routedUserAddr
}

type routedGroup struct {
	V2R *struct {
		Direct bool `json:"direct"`
	} `json:"v2_r"`
}

// TestRouted: the kernel and the user-space stack use version 2 through a router.
func TestRouted(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 1)
	route(t, kernel, user)
	for i, tt := range []struct {
		name           string
		client, server *side
	}{
		{"KernelToUser", kernel, user},
		{"UserToKernel", user, kernel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := netip.AddrPortFrom(netip.MustParseAddr(tt.server.addr), uint16(5500+i))
			tt.server.start(t, "listening", "serve", at.String())
			end := tt.client.start(t, "done", "echo", "-hold", at.String())
			for _, s := range []*side{kernel, user} {
				groups := query[routedGroup](t, s, "linkgroup", "list")
				if len(groups) != i+1 || slices.ContainsFunc(groups, func(g routedGroup) bool { return g.V2R == nil || g.V2R.Direct }) {
					t.Errorf("%s: not %d link groups with a router between: %+v", s.backend, i+1, groups)
				}
			}
			tt.client.connect(t, "echo", at, "-n", "10", "-bytes", "200003")
			end()
		})
	}
	for _, s := range []*side{kernel, user} {
		x := stats(t, s)
		if x.Fallbacks.Client != 0 || x.Fallbacks.Server != 0 || x.SMCR.ClientV2 != 11 || x.SMCR.ServerV2 != 11 {
			t.Errorf("%s: %+v, want 11 connections of version 2 in each direction, and no fallback", s.backend, x)
		}
	}
}
