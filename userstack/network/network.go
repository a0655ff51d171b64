// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net/netip"
	"slices"

	"smcr/smc"
)

// ErrNotOnLink means that SMC-R does not reach a destination: it is this host
// itself, there is no route to it, or it is behind a router and the stack cannot
// use version 2 of SMC with it. Version 1 does not cross routers.
var ErrNotOnLink = errors.New("network: destination is not on a directly attached network")

// ErrThisHost is wrapped by the error of Network.Route for a remote address that
// belongs to this network namespace. The connection is TCP, which is the right thing.
var ErrThisHost = errors.New(smc.DiagLocal.Text())

// A Network answers questions about the addresses and netdevs of one network
// namespace. [Namespace] asks the kernel; tests and simulations have their own.
type Network interface {
	// Route finds the netdev that leads from local (may be the zero Addr) to
	// remote. Without such a route to another host the error is ErrNotOnLink; it
	// also wraps ErrThisHost if remote is an address of this host.
	Route(local, remote netip.Addr) (Route, error)
	// Secured reports whether an IPsec policy covers the packets of a TCP
	// connection.
	Secured(local, remote netip.AddrPort) (bool, error)
	// NetDevs lists the netdevs that can carry RoCE. The caller does not change the list.
	NetDevs() ([]NetDev, error)
}

// A Locator is a Network that also knows the addresses of its namespace.
type Locator interface {
	// Addresses lists the addresses of the network namespace.
	Addresses() ([]netip.Addr, error)
	// Changes returns a channel that gets a value after the addresses have changed. It has
	// one reader.
	Changes() <-chan struct{}
}

// Neighbours is a Network that also knows who has an address of the LAN.
type Neighbours interface {
	// Neighbour returns the Ethernet address of a neighbour. It is not ok for a host behind a router, and if the kernel does not know
	// it: as long as there is a TCP connection with the host, it usually does.
	Neighbour(local, remote netip.Addr) (mac smc.MAC, ok bool)
}

// A NetDev is an Ethernet-like network device.
type NetDev struct {
	Name  string
	Index int
	Up    bool
	VLAN  uint16         // its VLAN id, 0 if it is none
	Lower []string       // for a VLAN: the netdevs below it, the nearest first
	Addrs []netip.Prefix // with their prefix lengths
}

// A Route is what the stack must know about the way to a peer.
type Route struct {
	NetDev  string         // outgoing netdev
	IfIndex int            // its index
	VLAN    uint16         // its VLAN id, 0 if it is none
	Source  netip.Addr     // the address of this host, if the kernel chooses it; the zero Addr if that is not known
	Gateway netip.Addr     // next hop; the zero Addr for a neighbour
	Local   []netip.Prefix // addresses of the netdev with their prefix lengths; also the source address if a netdev of Peers has it
	Peers   []string       // other netdevs of the same VLAN with an address in the same subnet: alternates for a second link
}

// By returns the route to neighbours by one of the netdevs of a namespace.
func By(n *NetDev, netdevs []NetDev) Route {
	rt := Route{NetDev: n.Name, IfIndex: n.Index, VLAN: n.VLAN, Local: slices.Clone(n.Addrs)}
	rt.join(netdevs, netip.Addr{})
	return rt
}

// join adds the other netdevs of the same VLAN with an address in the same subnet. local is the source address, or the
// zero Addr.
func (rt *Route) join(netdevs []NetDev, local netip.Addr) {
	for _, n := range netdevs {
		if n.Index == rt.IfIndex || n.VLAN != rt.VLAN {
			continue
		}
		named := false
		for _, p := range n.Addrs {
			if p.Addr().IsLinkLocalUnicast() || !slices.ContainsFunc(rt.Local, func(q netip.Prefix) bool { return smc.SamePrefix(p, q) }) {
				continue
			}
			if !named {
				named = true
				rt.Peers = append(rt.Peers, n.Name)
			}
			// With two netdevs in a subnet, the route may use the one without the
			// source address.
			if p.Addr() == local {
				rt.Local = append(rt.Local, p)
			}
		}
	}
}

// PrefixOf returns the address and prefix length of rt for a TCP connection from
// addr. That is addr itself. If addr is on another netdev, for example because that
// netdev is down, it is the address of rt in whose subnet addr is.
func (rt *Route) PrefixOf(addr netip.Addr) (netip.Prefix, bool) {
	addr = addr.Unmap().WithZone("")
	for _, p := range rt.Local {
		if p.Addr() == addr {
			return p, true
		}
	}
	for _, p := range rt.Local {
		if p.Contains(addr) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// IPv6Prefixes returns the IPv6 prefixes of rt that are not link-local, at most
// limit.
func (rt *Route) IPv6Prefixes(limit int) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range rt.Local {
		if p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && len(out) < limit {
			out = append(out, p.Masked())
		}
	}
	return out
}
