// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/binary"
	"net/netip"
)

// A Tuple is a TCP connection as this host sees it. IPv4 addresses are not IPv4-mapped.
type Tuple struct{ Local, Remote netip.AddrPort }

func (t Tuple) String() string { return t.Local.String() + "-" + t.Remote.String() }

// LogSource is for package quota: the other end may cause many records.
func (t Tuple) LogSource() netip.Addr { return t.Remote.Addr() }

// reverse returns the tuple as the other end sees it.
func (t Tuple) reverse() Tuple { return Tuple{t.Remote, t.Local} }

// key returns the tuple as the eBPF programs have it: ports are in network byte order.
func (t Tuple) key() bpfTuple {
	return bpfTuple{
		Local: t.Local.Addr().As16(), Remote: t.Remote.Addr().As16(),
		Lport: swapped(t.Local.Port()), Rport: swapped(t.Remote.Port()),
	}
}

// tupleOf is the inverse of key.
func tupleOf(k bpfTuple) Tuple {
	return Tuple{
		Local:  netip.AddrPortFrom(netip.AddrFrom16(k.Local).Unmap(), swapped(k.Lport)),
		Remote: netip.AddrPortFrom(netip.AddrFrom16(k.Remote).Unmap(), swapped(k.Rport)),
	}
}

// swapped converts between the byte orders of the host and of the network.
func swapped(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// swapped32 does likewise.
func swapped32(n uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return binary.NativeEndian.Uint32(b[:])
}
