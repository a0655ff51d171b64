// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"smcr/internal/inetdiag"
	"smcr/quota"
)

// A source is who answers for a connection: a user of this host, or another host.
type source struct {
	host netip.Addr // if it is not of a user
	user uint32
	own  bool // it is of a user
}

// loopback is the source of the connections within this host whose users are not known.
var loopback = source{host: netip.IPv6Loopback()}

// first reports whether there are places for the source alone: that of root, or of the user of this process.
func (s source) first() bool { return s.own && (s.user == 0 || s.user == uint32(os.Geteuid())) }

// sourceOf returns the source of a connection that was accepted.
func sourceOf(c net.Conn) source {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return loopback
	}
	at := remote.AddrPort().Addr()
	if uid, ok := userOf(remote.AddrPort(), local.AddrPort()); ok {
		return source{user: quota.Account(uid), own: true}
	}
	if at.Unmap().IsLoopback() { // a user has as many of these addresses as it wants
		return loopback
	}
	return source{host: quota.Host(at)}
}

// loopbackIndex is the index of the loopback device of each network namespace.
const loopbackIndex = 1

// open are the states of a socket whose user is known: not those of one that listens, or that nobody has any more.
var open = []uint8{unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_FIN_WAIT2, unix.BPF_TCP_CLOSE_WAIT}

// userOf returns the user of the TCP socket of this network namespace with these addresses, if there is one.
func userOf(local, remote netip.AddrPort) (uid uint32, ok bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	for _, dev := range []uint32{0, loopbackIndex} { // it may be bound to the loopback device
		if uid, ok = askFor(fd, local, remote, dev); ok {
			return uid, true
		}
	}
	return 0, false
}

// askFor asks for one socket, which may be bound to a device. The kernel has answered when the request is sent.
func askFor(fd int, local, remote netip.AddrPort, dev uint32) (uid uint32, ok bool) {
	ne := binary.NativeEndian
	q := inetdiag.One(inetdiag.ID{Local: local, Remote: remote, Dev: dev, Cookie: inetdiag.AnyCookie}).Serialize()
	b := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(q))
	ne.PutUint32(b, uint32(cap(b)))
	ne.PutUint16(b[4:], inetdiag.ByFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, append(b, q...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, false
	}
	in := make([]byte, 1024)
	n, _, err := unix.Recvfrom(fd, in, unix.MSG_DONTWAIT)
	if err != nil || n < unix.NLMSG_HDRLEN || ne.Uint16(in[4:]) != inetdiag.ByFamily {
		return 0, false
	}
	m, ok := inetdiag.Parse(in[unix.NLMSG_HDRLEN:n])
	if !ok {
		return 0, false
	}
	return userAt(m, remote.Port())
}

// userAt returns the user of a socket that is connected to a port. The kernel also says root for a socket that has no owner any more, and
// finds those that listen at an address.
func userAt(m inetdiag.Message, port uint16) (uid uint32, ok bool) {
	if !slices.Contains(open, m.State) || m.ID.Remote.Port() != port || m.Inode == 0 {
		return 0, false
	}
	return m.UID, true
}
