// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"smcr/internal/inetdiag"
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

// listedStates are all states that stateOf knows.
var listedStates = func() (states uint32) {
	for s := range uint8(32) {
		if _, _, ok := stateOf(s); ok {
			states |= 1 << s
		}
	}
	return states
}()

// Each calls found for each TCP socket that a process has, with the socket's cookie, and the number of its cgroup (0 before
// Linux 5.8).
func (d SockDiag) Each(found func(cookie, cgroup uint64, c nl.Connection)) error {
	return d.dump(0, func(m inetdiag.Message) {
		if c, ok := connectionOf(m); ok {
			found(m.ID.Cookie, m.Cgroup(), c)
		}
	})
}

// dump calls found for each TCP socket. extensions are those of a request.
func (d SockDiag) dump(extensions uint8, found func(m inetdiag.Message)) error {
	for _, family := range []uint8{inetdiag.IPv4, inetdiag.IPv6} {
		req := vnl.NewNetlinkRequest(inetdiag.ByFamily, unix.NLM_F_DUMP)
		req.AddData(inetdiag.Request{Family: family, Extensions: extensions, States: listedStates})
		if d.sock != nil {
			req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: d.sock}
		}
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, inetdiag.ByFamily, func(b []byte) bool {
			if m, ok := inetdiag.Parse(b); ok {
				found(m)
			}
			return true
		})
		// A list that changed while it was read may be incomplete.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("network: list TCP sockets: %w", err)
		}
	}
	return nil
}

// connectionOf returns a socket as listings have it. It is not ok for one that no process has.
func connectionOf(m inetdiag.Message) (c nl.Connection, ok bool) {
	if c.State, c.Shutdown, ok = stateOf(m.State); !ok || m.Inode == 0 {
		return nl.Connection{}, false
	}
	c.Local = m.ID.Local
	if c.State != smc.StateListen {
		c.Remote = m.ID.Remote
	}
	c.NetDev, c.UID, c.Inode = m.ID.Dev, m.UID, uint64(m.Inode)
	return c, true
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
