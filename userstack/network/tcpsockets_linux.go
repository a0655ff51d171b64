// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var _ TCPSockets = (*Namespace)(nil)

// Listening implements [TCPSockets].
func (n *Namespace) Listening(found func(cookie uint64, local netip.AddrPort)) error {
	return n.diag.Listening(found)
}

// LookUp implements [TCPSockets]. It may wait for the lock of the socket, so it has a netlink
// socket of its own.
func (n *Namespace) LookUp(local, remote netip.AddrPort) (s TCPSocket, ok bool, err error) {
	err = n.ns.Do(func() (err error) {
		s, ok, err = SockDiag{}.LookUp(local, remote)
		return err
	})
	return s, ok, err
}

// Reset implements [TCPSockets]. It may wait for the lock of the socket, as LookUp.
func (n *Namespace) Reset(local, remote netip.AddrPort, cookie uint64) error {
	return n.ns.Do(func() error { return SockDiag{}.Reset(local, remote, cookie) })
}

// Numbers of linux/inet_diag.h and linux/sock_diag.h.
const (
	inetDiagInfo = 2  // INET_DIAG_INFO: the attribute with struct tcp_info
	sockDestroy  = 21 // SOCK_DESTROY
	// tcpInfoReceived is the offset in bytes of tcpi_bytes_received in struct tcp_info.
	tcpInfoReceived = 128
)

// Listening calls found for each listening TCP socket.
func (d SockDiag) Listening(found func(cookie uint64, local netip.AddrPort)) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		b := make(rawRequest, inetDiagRequestLen)
		b[0], b[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(b[4:], 1<<unix.BPF_TCP_LISTEN)
		req := vnl.NewNetlinkRequest(vnl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(b)
		if d.sock != nil {
			req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: d.sock}
		}
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, vnl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
			// A socket without an inode is being closed.
			if cookie, c, ok := parseInetDiag(m); ok {
				found(cookie, c.Local)
			}
			return true
		})
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("network: list listening TCP sockets: %w", err)
		}
	}
	return nil
}

// LookUp looks for a connection by its addresses. ok reports whether there is one.
func (d SockDiag) LookUp(local, remote netip.AddrPort) (s TCPSocket, ok bool, err error) {
	b := exactRequest(local, remote, noCookie)
	b[2] = 1 << (inetDiagInfo - 1)
	m, err := d.find(b)
	if m == nil || err != nil {
		return s, false, err
	}
	ne := binary.NativeEndian
	s.Cookie = uint64(ne.Uint32(m[44:])) | uint64(ne.Uint32(m[48:]))<<32
	switch m[1] {
	case unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_SYN_RECV, unix.BPF_TCP_CLOSE_WAIT:
		s.Accepted = ne.Uint32(m[68:]) != 0
	default:
		s.Accepted = true // it was closed since
	}
	s.Unread, s.Unsent = int(ne.Uint32(m[56:])), int(ne.Uint32(m[60:]))
	attrs, err := vnl.ParseRouteAttr(m[inetDiagMessageLen:])
	if err != nil {
		return s, false, fmt.Errorf("network: look for a TCP socket: %w", err)
	}
	for _, a := range attrs {
		if a.Attr.Type == inetDiagInfo && len(a.Value) >= tcpInfoReceived+8 {
			s.Received = ne.Uint64(a.Value[tcpInfoReceived:])
		}
	}
	return s, true, nil
}

// Reset resets a connection, whoever has its socket, whose cookie must be cookie. It needs
// CAP_NET_ADMIN. The error is errors.ErrUnsupported on a kernel without
// CONFIG_INET_DIAG_DESTROY. If the connection has ended, there is none.
func (d SockDiag) Reset(local, remote netip.AddrPort, cookie uint64) error {
	req := vnl.NewNetlinkRequest(sockDestroy, unix.NLM_F_ACK)
	req.AddData(exactRequest(local, remote, cookie))
	if d.sock != nil {
		req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: d.sock}
	}
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("network: reset a TCP connection (CONFIG_INET_DIAG_DESTROY): %w", errors.ErrUnsupported)
	}
	return fmt.Errorf("network: reset a TCP connection: %w", err)
}
