// SPDX-License-Identifier: Apache-2.0

package cmdutil

import "net/netip"

// PlainAddr returns an address without what listings do not have alike: the form of IPv4 addresses
// in IPv6 sockets, and the zone.
func PlainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Plain is PlainAddr for the address of p. What is invalid is the zero value.
func Plain(p netip.AddrPort) netip.AddrPort {
	if !p.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(PlainAddr(p.Addr()), p.Port())
}
