// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// A Namespace is the [Network] and [Locator] of a network namespace. It keeps the
// netdevs, addresses and routes until rtnetlink reports a change, because every rendezvous
// asks for them.
type Namespace struct {
	h     *netlink.Handle
	ipsec ipsec
	diag  SockDiag
	ns    *NetNS
	done  chan struct{}

	changes chan struct{} // see Changes

	balancer   balancer
	neighbours *neighbours

	mu     sync.Mutex
	watch  watch
	seen   *snapshot // nil: to be read again
	routes map[routeKey]knownRoute
}

// A snapshot is what a namespace had at one time. Nobody changes it.
type snapshot struct {
	links   []netlink.Link
	addrs   []netlink.Addr
	netdevs []NetDev
}

const (
	// mostRoutes is how many routes a Namespace keeps, and routeFresh for how long: an ICMP redirect
	// is not reported.
	mostRoutes = 1024
	routeFresh = time.Second
)

type routeKey struct{ local, remote netip.Addr }

type knownRoute struct {
	Route
	until time.Time
}

var (
	_ Network = (*Namespace)(nil)
	_ Locator = (*Namespace)(nil)
)

// Open returns the network namespace of the calling thread. All later questions use
// the sockets that it opens, so they can come from any thread. Close ends it.
func Open() (*Namespace, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network: open rtnetlink: %w", err)
	}
	policies, err := openIPsec()
	if err != nil {
		h.Close()
		return nil, err
	}
	diag, err := OpenSockDiag()
	if err != nil {
		h.Close()
		policies.close()
		return nil, err
	}
	ns, err := OpenNetNS()
	if err != nil {
		h.Close()
		policies.close()
		diag.Close()
		return nil, err
	}
	neighbours, err := openNeighbours()
	if err != nil {
		h.Close()
		policies.close()
		diag.Close()
		_ = ns.Close()
		return nil, err
	}
	n := &Namespace{h: h, ipsec: policies, diag: diag, ns: ns, neighbours: neighbours, watch: noWatch, routes: map[routeKey]knownRoute{}, done: make(chan struct{}), changes: make(chan struct{}, 1)}
	n.watch, err = openWatch(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("network: watch routes: %w", err)
	}
	notify := func() {
		select {
		case n.changes <- struct{}{}:
		default:
		}
	}
	// Both channels are closed when done is closed.
	lc, ac := make(chan netlink.LinkUpdate, 16), make(chan netlink.AddrUpdate, 16)
	if err := netlink.LinkSubscribe(lc, n.done); err != nil {
		n.Close()
		return nil, fmt.Errorf("network: watch netdevs: %w", err)
	}
	// No guard: notify only writes to a channel.
	go func() {
		for range lc {
			notify()
		}
		notify()
	}()
	if err := netlink.AddrSubscribe(ac, n.done); err != nil {
		n.Close()
		return nil, fmt.Errorf("network: watch addresses: %w", err)
	}
	// No guard: notify only writes to a channel.
	go func() {
		for range ac {
			notify()
		}
		notify()
	}()
	// A socket for which there was no room in Go's poller looks open, but every question
	// over it fails. Ask once, so that it is noticed now.
	if _, err := n.state(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close ends the subscriptions and closes the sockets. No method may be called after
// it.
func (n *Namespace) Close() {
	close(n.done)
	n.watch.close()
	n.h.Close()
	n.ipsec.close()
	n.diag.Close()
	n.neighbours.close()
	_ = n.ns.Close()
}

// SockDiag returns the TCP sockets of the namespace. Close of n ends its use.
func (n *Namespace) SockDiag() SockDiag { return n.diag }

// Secured implements [Network].
func (n *Namespace) Secured(local, remote netip.AddrPort) (bool, error) {
	return n.ipsec.secured(local, remote)
}

// current forgets what is not so any more. mu is held.
func (n *Namespace) current() {
	n.watch.reports(func(typ uint16) {
		clear(n.routes)
		switch typ {
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		default:
			n.seen = nil
		}
	})
}

// state returns the netdevs and addresses.
func (n *Namespace) state() (*snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.current()
	return n.read()
}

// read is state as of the last call of current. mu is held.
func (n *Namespace) read() (*snapshot, error) {
	if n.seen != nil {
		return n.seen, nil
	}
	links, err := retry.Whole(netlink.ErrDumpInterrupted, n.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("network: list netdevs: %w", err)
	}
	addrs, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Addr, error) { return n.h.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("network: list addresses: %w", err)
	}
	n.seen = &snapshot{links: links, addrs: addrs, netdevs: netDevs(links, addrs)}
	return n.seen, nil
}

// Route implements [Network].
func (n *Namespace) Route(local, remote netip.Addr) (Route, error) {
	remote = remote.Unmap()
	now := time.Now()
	if n.balancer.leads(now, remote.WithZone("")) {
		return Route{}, fmt.Errorf("%w: the load balancer of the kernel (IPVS) leads connections to %s elsewhere", ErrNotOnLink, remote)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.current()
	key := routeKey{local, remote}
	if known, ok := n.routes[key]; ok && now.Before(known.until) {
		return known.Route, nil
	}
	rt, err := n.route(local, remote)
	if err == nil {
		if len(n.routes) >= mostRoutes {
			clear(n.routes)
		}
		n.routes[key] = knownRoute{rt, now.Add(routeFresh)}
	}
	return rt, err
}

// route asks the kernel for the route to a remote address. mu is held.
func (n *Namespace) route(local, remote netip.Addr) (Route, error) {
	opt := &netlink.RouteGetOptions{}
	if local.IsValid() && !local.IsUnspecified() {
		opt.SrcAddr = net.IP(local.Unmap().WithZone("").AsSlice())
	}
	var routes []netlink.Route
	var err error
	if zone := remote.Zone(); zone != "" {
		// The scope id of a program's address, or a name, as package net uses it.
		if opt.OifIndex, err = strconv.Atoi(zone); err != nil {
			opt.Oif = zone
		}
		remote = remote.WithZone("")
	}
	routes, err = n.h.RouteGetWithOptions(net.IP(remote.AsSlice()), opt)
	if err != nil || len(routes) == 0 {
		return Route{}, fmt.Errorf("%w: route to %s: %v", ErrNotOnLink, remote, err)
	}
	r := routes[0]
	var gateway netip.Addr
	if r.Via != nil {
		return Route{}, fmt.Errorf("%w: the route to %s uses a router of the other IP version", ErrNotOnLink, remote)
	}
	if len(r.Gw) != 0 {
		gateway, _ = netip.AddrFromSlice(r.Gw)
		gateway = gateway.Unmap()
	}
	if r.Type == unix.RTN_LOCAL {
		return Route{}, fmt.Errorf("%w: %s: %w", ErrNotOnLink, remote, ErrThisHost)
	}
	if r.Type != 0 && r.Type != unix.RTN_UNICAST {
		return Route{}, fmt.Errorf("%w: %s has no unicast route", ErrNotOnLink, remote)
	}
	if r.Encap != nil || r.MPLSDst != nil {
		// RoCE packets would not be encapsulated, and the gate of a program's socket may
		// not see its TCP segments.
		return Route{}, fmt.Errorf("%w: the route to %s encapsulates packets", ErrNotOnLink, remote)
	}
	seen, err := n.read()
	if err != nil {
		return Route{}, err
	}
	rt := Route{IfIndex: r.LinkIndex, Gateway: gateway}
	if source, ok := netip.AddrFromSlice(r.Src); ok {
		rt.Source = source.Unmap()
	}
	i := slices.IndexFunc(seen.links, func(l netlink.Link) bool { return l.Attrs().Index == r.LinkIndex })
	if i < 0 {
		return Route{}, fmt.Errorf("network: netdev %d of the route to %s is gone", r.LinkIndex, remote)
	}
	l := seen.links[i]
	rt.NetDev = l.Attrs().Name
	rt.VLAN = vlanOf(l)
	for _, a := range seen.addrs {
		if p, ok := prefixFromIPNet(a.IPNet); ok && a.LinkIndex == rt.IfIndex {
			rt.Local = append(rt.Local, p)
		}
	}
	rt.join(seen.netdevs, local.Unmap().WithZone(""))
	// Several callers have them.
	rt.Local, rt.Peers = slices.Clip(rt.Local), slices.Clip(rt.Peers)
	return rt, nil
}

// Addresses implements [Locator].
func (n *Namespace) Addresses() (out []netip.Addr, err error) {
	seen, err := n.state()
	if err != nil {
		return nil, err
	}
	for _, a := range seen.addrs {
		if p, ok := prefixFromIPNet(a.IPNet); ok {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}

// Changes implements [Locator].
func (n *Namespace) Changes() <-chan struct{} { return n.changes }

// NetDevs implements [Network].
func (n *Namespace) NetDevs() ([]NetDev, error) {
	seen, err := n.state()
	if err != nil {
		return nil, err
	}
	return seen.netdevs, nil
}

// netDevs returns those of the links that may carry RoCE.
func netDevs(links []netlink.Link, addrs []netlink.Addr) (out []NetDev) {
	for _, l := range links {
		if !ethernetLike(l) {
			continue
		}
		at := l.Attrs()
		d := NetDev{
			Name: at.Name, Index: at.Index, Up: at.Flags&net.FlagUp != 0 && at.RawFlags&unix.IFF_RUNNING != 0,
			VLAN: vlanOf(l), Lower: below(l, links),
		}
		for _, a := range addrs {
			if p, ok := prefixFromIPNet(a.IPNet); ok && a.LinkIndex == at.Index {
				d.Addrs = append(d.Addrs, p)
			}
		}
		out = append(out, d)
	}
	return out
}

// vlanOf returns the VLAN id of a netdev, 0 if it is none.
func vlanOf(l netlink.Link) uint16 {
	if v, ok := l.(*netlink.Vlan); ok {
		return uint16(v.VlanId)
	}
	return 0
}

// below names the netdevs below a VLAN, the nearest first.
func below(l netlink.Link, links []netlink.Link) (names []string) {
	for vlanOf(l) != 0 && len(names) < len(links) {
		i := slices.IndexFunc(links, func(o netlink.Link) bool { return o.Attrs().Index == l.Attrs().ParentIndex })
		if i < 0 {
			break // in another network namespace
		}
		l = links[i]
		names = append(names, l.Attrs().Name)
	}
	return names
}

// ethernetLike reports whether RoCE frames can be sent on l.
func ethernetLike(l netlink.Link) bool {
	at := l.Attrs()
	return at.EncapType == "ether" && len(at.HardwareAddr) == 6 && at.MasterIndex == 0
}

func prefixFromIPNet(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if a.Is4In6() && bits == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a.Unmap(), ones), true
}
