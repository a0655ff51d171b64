// SPDX-License-Identifier: Apache-2.0

package quota

import "net/netip"

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
