// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net/netip"
)

// ErrNotOnLink tells that SMC-R does not reach a destination: it is local or
// without route, or behind a router where version 1 is all that can be spoken.
var ErrNotOnLink = errors.New("userstack: destination is not on a directly attached network")

// A Route is what the stack must know of the way to a peer.
type Route struct {
	NetDev  string         // outgoing netdev
	IfIndex int            // its index
	VLAN    uint16         // its VLAN id, 0 if it is none
	Gateway netip.Addr     // next hop; the zero Addr for a neighbour
	Local   []netip.Prefix // addresses of the netdev with their prefix lengths, and the source address if a peer has it
	Peers   []string       // other netdevs of the same VLAN with an address in the same subnet: alternates for a second link
}

// A Network answers questions about addresses and netdevs of one network
// namespace. The real one asks rtnetlink; tests have their own.
type Network interface {
	// Route finds the netdev that leads from local (may be the zero Addr)
	// to remote. If there is no such route to another host, the error is
	// ErrNotOnLink.
	Route(local, remote netip.Addr) (Route, error)
	// Secured reports whether IPsec is to protect the packets of a TCP
	// connection.
	Secured(local, remote netip.AddrPort) (bool, error)
	// NetDevs lists the netdevs a RoCE device can stand on.
	NetDevs() ([]NetDev, error)
}

// A NetDev is an Ethernet-like network device.
type NetDev struct {
	Name  string
	Index int
	Up    bool
	VLAN  uint16   // its VLAN id, 0 if it is none
	Lower []string // of a VLAN, the netdevs that it is stacked upon, nearest first
}

// samePrefix reports whether a and b, an address each with its prefix
// length, are in the same subnet by RFC 7609's rule: the same subnet number
// and the same prefix length.
func samePrefix(a, b netip.Prefix) bool {
	return a.IsValid() && b.IsValid() && a.Bits() == b.Bits() && a.Masked() == b.Masked()
}

// prefixOf returns the address and prefix of rt for a TCP connection from addr:
// addr itself, or where the route leads over another netdev, as it does when
// that of addr is down, the address there in whose subnet addr is.
func (rt *Route) prefixOf(addr netip.Addr) (netip.Prefix, bool) {
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

// ipv6Prefixes returns the global IPv6 prefixes of rt, at most max.
func (rt *Route) ipv6Prefixes(max int) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range rt.Local {
		if p.Addr().Is6() && !p.Addr().IsLinkLocalUnicast() && len(out) < max {
			out = append(out, p.Masked())
		}
	}
	return out
}
