// SPDX-License-Identifier: Apache-2.0

package inetdiag

import (
	"encoding/binary"
	"net/netip"
)

// Types of messages of netlink.
const (
	ByFamily = 20 // SOCK_DIAG_BY_FAMILY: look for sockets; answers have it, too
	Destroy  = 21 // SOCK_DESTROY: abort the connection of a socket
)

// Families of addresses, and the protocol, of Linux on each architecture.
const (
	IPv4 = 2  // AF_INET
	IPv6 = 10 // AF_INET6
	tcp  = 6
)

// Attributes of answers.
const (
	AttrInfo   = 2  // INET_DIAG_INFO: struct tcp_info
	AttrCgroup = 21 // INET_DIAG_CGROUP_ID: the number of the cgroup of the socket, since Linux 5.8
)

const (
	// AllStates asks for sockets in any state.
	AllStates = ^uint32(0)
	// AnyCookie asks for a socket whatever its cookie is.
	AnyCookie = ^uint64(0)

	requestLen = 56 // struct inet_diag_req_v2
	messageLen = 72 // struct inet_diag_msg
)

// An ID says which socket is meant: the one that packets of a connection reach by a device, if it has the cookie.
type ID struct {
	Local, Remote netip.AddrPort
	Dev           uint32 // the index of a network device, or 0: of a socket that is bound to none
	Cookie        uint64
}

// A Request asks for one socket, or for all of a family.
//
//	0  family, protocol, extensions, padding
//	4  states (4)
//	8  ID
type Request struct {
	// Family is IPv4 or IPv6. It is that of the addresses, if the ID has some.
	Family uint8
	// Protocol is a number of IP. 0 means TCP.
	Protocol uint8
	// Extensions are the attributes that the answer has beside those that it always has: 1 << (Attr… - 1).
	Extensions uint8
	// States are the states of sockets, of linux/tcp.h: 1 << state.
	States uint32
	// ID of the socket, or the zero value for all.
	ID ID
}

// One returns the request for one socket, in any state. IPv4 addresses may be in the form of IPv6.
func One(id ID) Request {
	id.Local, id.Remote = netip.AddrPortFrom(id.Local.Addr().Unmap(), id.Local.Port()), netip.AddrPortFrom(id.Remote.Addr().Unmap(), id.Remote.Port())
	r := Request{Family: IPv4, States: AllStates, ID: id}
	if id.Local.Addr().Is6() {
		r.Family = IPv6
	}
	return r
}

// Len returns the length of the encoding, in bytes.
func (Request) Len() int { return requestLen }

// Serialize returns the encoding.
func (r Request) Serialize() []byte {
	b := make([]byte, requestLen)
	if b[0], b[1], b[2] = r.Family, r.Protocol, r.Extensions; r.Protocol == 0 {
		b[1] = tcp
	}
	binary.NativeEndian.PutUint32(b[4:], r.States)
	r.ID.put(b[8:])
	return b
}

// put writes struct inet_diag_sockid: ports and addresses in network byte order, all else in that of the host.
//
//	0  local port, remote port (2 each)
//	4  local address, remote address (16 each)
//	36 device (4)
//	40 cookie: the lower half, the upper one (4 each)
func (id ID) put(b []byte) {
	ne, be := binary.NativeEndian, binary.BigEndian
	be.PutUint16(b, id.Local.Port())
	be.PutUint16(b[2:], id.Remote.Port())
	copy(b[4:20], id.Local.Addr().AsSlice())
	copy(b[20:36], id.Remote.Addr().AsSlice())
	ne.PutUint32(b[36:], id.Dev)
	ne.PutUint32(b[40:], uint32(id.Cookie))
	ne.PutUint32(b[44:], uint32(id.Cookie>>32))
}

// A Message is what the kernel says about a socket.
//
//	0  family, state, timer, retransmissions
//	4  ID
//	52 expiry of the timer, bytes to read, bytes to send (4 each)
//	64 user, inode (4 each)
//	72 attributes
type Message struct {
	Family uint8
	State  uint8 // of linux/tcp.h
	// ID of the socket. IPv4 addresses of IPv6 sockets are in the form of IPv4.
	ID    ID
	UID   uint32
	Inode uint32 // 0: no process has the socket

	attrs []byte
}

// Parse reads an answer, of which it keeps a part. It is not ok if the answer is too short, or of another family.
func Parse(b []byte) (m Message, ok bool) {
	if len(b) < messageLen || b[0] != IPv4 && b[0] != IPv6 {
		return m, false
	}
	ne, be := binary.NativeEndian, binary.BigEndian
	addr := func(b []byte, port []byte) netip.AddrPort {
		a := netip.AddrFrom4([4]byte(b))
		if m.Family == IPv6 {
			a = netip.AddrFrom16([16]byte(b)).Unmap()
		}
		return netip.AddrPortFrom(a, be.Uint16(port))
	}
	m.Family, m.State = b[0], b[1]
	m.ID = ID{
		Local: addr(b[8:], b[4:]), Remote: addr(b[24:], b[6:]), Dev: ne.Uint32(b[40:]),
		Cookie: uint64(ne.Uint32(b[44:])) | uint64(ne.Uint32(b[48:]))<<32,
	}
	m.UID, m.Inode, m.attrs = ne.Uint32(b[64:]), ne.Uint32(b[68:]), b[messageLen:]
	return m, true
}

// Attr returns the value of an attribute (Attr…), or nil.
func (m *Message) Attr(kind uint16) []byte {
	ne := binary.NativeEndian
	for b := m.attrs; len(b) >= 4; {
		n := int(ne.Uint16(b))
		if n < 4 || n > len(b) {
			return nil
		}
		if ne.Uint16(b[2:]) == kind {
			return b[4:n]
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// Cgroup returns the number of the cgroup of the socket, or 0 if the kernel does not say it.
func (m *Message) Cgroup() uint64 {
	if b := m.Attr(AttrCgroup); len(b) >= 8 {
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}
