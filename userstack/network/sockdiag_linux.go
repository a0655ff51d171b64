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

	"smcr/nl"
	"smcr/smc"
)

// SockDiag lists the TCP sockets of a network namespace (sock_diag). The zero value
// stands for the namespace of the thread that calls a method.
type SockDiag struct {
	sock *vnl.SocketHandle
}

// OpenSockDiag returns the sockets of the calling thread's namespace, for all
// threads. On a kernel without sock_diag it returns the zero value.
func OpenSockDiag() (SockDiag, error) {
	s, err := vnl.Subscribe(unix.NETLINK_INET_DIAG)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return SockDiag{}, nil
	}
	if err == nil {
		err = s.SetReceiveTimeout(&vnl.SocketTimeoutTv)
	}
	if err != nil {
		return SockDiag{}, fmt.Errorf("network: open sock_diag: %w", err)
	}
	return SockDiag{&vnl.SocketHandle{Socket: s}}, nil
}

// Close closes the netlink socket.
func (d SockDiag) Close() {
	if d.sock != nil {
		d.sock.Close()
	}
}

// Sizes and numbers of linux/inet_diag.h.
const (
	inetDiagRequestLen = 56 // struct inet_diag_req_v2
	inetDiagMessageLen = 72 // struct inet_diag_msg
)

// inetDiagRequest is the request for the TCP sockets of a family.
type inetDiagRequest uint8

// Len implements nl.NetlinkRequestData.
func (r inetDiagRequest) Len() int { return inetDiagRequestLen }

// Serialize implements nl.NetlinkRequestData.
func (r inetDiagRequest) Serialize() []byte {
	// All states that stateOf knows.
	states := uint32(0)
	for s := range uint8(32) {
		if _, _, ok := stateOf(s); ok {
			states |= 1 << s
		}
	}
	b := make([]byte, inetDiagRequestLen)
	b[0], b[1] = uint8(r), unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], states)
	return b
}

// Each calls found for each TCP socket that a process has, with the socket's cookie, and the number of its cgroup (0 before
// Linux 5.8).
func (d SockDiag) Each(found func(cookie, cgroup uint64, c nl.Connection)) error {
	return d.dump(0, func(m []byte) {
		if cookie, c, ok := parseInetDiag(m); ok {
			found(cookie, cgroupOf(m), c)
		}
	})
}

// cgroupOf returns the attribute INET_DIAG_CGROUP_ID of a struct inet_diag_msg, or 0.
func cgroupOf(m []byte) uint64 {
	attrs, err := vnl.ParseRouteAttr(m[inetDiagMessageLen:])
	if err != nil {
		return 0
	}
	for _, a := range attrs {
		if a.Attr.Type == netlink.INET_DIAG_CGROUP_ID && len(a.Value) >= 8 {
			return binary.NativeEndian.Uint64(a.Value)
		}
	}
	return 0
}

// dump calls found with the struct inet_diag_msg, and its attributes, of each TCP socket. extensions
// are the attributes that the kernel adds: 1 << (INET_DIAG_… - 1).
func (d SockDiag) dump(extensions uint8, found func(m []byte)) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		b := rawRequest(inetDiagRequest(family).Serialize())
		b[2] = extensions
		req := vnl.NewNetlinkRequest(vnl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(b)
		if d.sock != nil {
			req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: d.sock}
		}
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, vnl.SOCK_DIAG_BY_FAMILY, func(m []byte) bool {
			found(m)
			return true
		})
		// A list that changed while it was read may be incomplete.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("network: list TCP sockets: %w", err)
		}
	}
	return nil
}

// rawRequest is an encoded request.
type rawRequest []byte

// Len implements nl.NetlinkRequestData.
func (r rawRequest) Len() int { return len(r) }

// Serialize implements nl.NetlinkRequestData.
func (r rawRequest) Serialize() []byte { return r }

// parseInetDiag reads a struct inet_diag_msg. It is not ok for a socket that no
// process has.
func parseInetDiag(m []byte) (cookie uint64, c nl.Connection, ok bool) {
	if len(m) < inetDiagMessageLen {
		return 0, c, false
	}
	ne, be := binary.NativeEndian, binary.BigEndian
	inode := ne.Uint32(m[68:])
	if c.State, c.Shutdown, ok = stateOf(m[1]); !ok || inode == 0 {
		return 0, c, false
	}
	addr := func(b []byte, port uint16) netip.AddrPort {
		a := netip.AddrFrom4([4]byte(b[:4]))
		if m[0] == unix.AF_INET6 {
			a = netip.AddrFrom16([16]byte(b[:16])).Unmap()
		}
		return netip.AddrPortFrom(a, port)
	}
	c.Local = addr(m[8:], be.Uint16(m[4:]))
	if c.State != smc.StateListen {
		c.Remote = addr(m[24:], be.Uint16(m[6:]))
	}
	c.NetDev, c.UID, c.Inode = ne.Uint32(m[40:]), ne.Uint32(m[64:]), uint64(inode)
	// Two words in host byte order, the lower word first.
	return uint64(ne.Uint32(m[44:])) | uint64(ne.Uint32(m[48:]))<<32, c, true
}

// stateOf returns how listings show a TCP socket in the state tcp. A half-closed
// connection is ACTIVE, as in the kernel's listings of SMC sockets that use TCP. ok
// is false for states in which no program has the socket, or which sock_diag does not
// list.
func stateOf(tcp uint8) (_ smc.ConnState, _ nl.Shutdown, ok bool) {
	switch tcp {
	case unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_SYN_RECV:
		return smc.StateActive, 0, true
	case unix.BPF_TCP_SYN_SENT:
		return smc.StateInit, 0, true
	case unix.BPF_TCP_LISTEN:
		return smc.StateListen, 0, true
	case unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_FIN_WAIT2:
		return smc.StateActive, nl.ShutdownSend, true
	case unix.BPF_TCP_CLOSE_WAIT:
		return smc.StateActive, nl.ShutdownRecv, true
	case unix.BPF_TCP_CLOSING, unix.BPF_TCP_LAST_ACK:
		return smc.StateActive, nl.ShutdownRecv | nl.ShutdownSend, true
	}
	return 0, 0, false
}
