// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"net/netip"

	"smcr/userstack/driver"
)

// addrPort returns the address and port of a.
//
// It is the zero AddrPort for nil, which package net returns for a socket that has ended, and
// for an address that is not an IP address.
func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap
}

// TCPConn is the TCP connection on which [Stack.Client] and [Stack.Server] run the
// rendezvous. *net.TCPConn implements it.
type TCPConn = driver.TCP
