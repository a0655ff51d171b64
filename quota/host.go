// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"net"
	"net/netip"
)

// Host returns the address by which a host is counted. A host of IPv6 can have any
// address of its subnet, so all addresses of a subnet count as one host, but for the
// link-local ones: these are one subnet on every link.
func Host(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if !a.Is6() || a.IsLinkLocalUnicast() {
		return a
	}
	p, _ := a.WithZone("").Prefix(64) // no error: an IPv6 address has more bits
	return p.Addr()
}

// An Origin is from where hosts come, as far as it can be known: whoever has an address of an origin may have all of them. One machine of
// the LAN can take many addresses of its subnet, so the addresses of a neighbour are counted by the Ethernet address that they share.
// The zero value is no origin.
type Origin struct {
	mac [6]byte
	net netip.Prefix
}

// OriginOfNeighbour returns the origin of all hosts with one Ethernet address.
func OriginOfNeighbour(mac [6]byte) Origin { return Origin{mac: mac} }

// Neighbour returns the Ethernet address of an origin that is one of the LAN.
func (o Origin) Neighbour() (mac [6]byte, ok bool) { return o.mac, o.mac != [6]byte{} }

// How many bits of an address are those of a network behind a router: what one owner usually gets.
const (
	Network4 = 24 // of IPv4
	Network6 = 48 // of IPv6
)

// Network returns the addresses of an origin that is not one of the LAN. It is not valid for one of the LAN, and for the zero Origin.
func (o Origin) Network() netip.Prefix { return o.net }

// HostOf is Host for a host of an origin. That of a neighbour is bounded by its Ethernet address, so its address is counted as it is.
func (o Origin) HostOf(a netip.Addr) netip.Addr {
	if o.mac != [6]byte{} {
		return a.Unmap()
	}
	return Host(a)
}

// OriginOfNetwork returns the origin of a host behind a router, and of one whose Ethernet address is not known: the hosts of a
// network, 24 bits of IPv4 and 48 bits of IPv6.
func OriginOfNetwork(host netip.Addr) Origin {
	host = host.Unmap().WithZone("")
	bits := Network6
	if host.Is4() {
		bits = Network4
	}
	p, _ := host.Prefix(bits) // no error: an address has more bits
	return Origin{net: p}
}

// OriginOfHost returns an origin that one host has alone, as [Host] counts it.
func OriginOfHost(host netip.Addr) Origin {
	host = Host(host)
	return Origin{net: netip.PrefixFrom(host, host.BitLen())}
}

func (o Origin) String() string {
	switch {
	case o.mac != [6]byte{}:
		return fmt.Sprintf("the neighbour %s", net.HardwareAddr(o.mac[:]))
	case o.net.IsValid() && o.net.IsSingleIP():
		return fmt.Sprintf("the host %s", o.net.Addr())
	}
	return fmt.Sprintf("the network %s", o.net)
}
