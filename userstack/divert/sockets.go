// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/binary"
	"errors"
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// sockets are the TCP sockets of the host, by sock_diag. One goroutine has it.
type sockets struct {
	diag *vnl.SocketHandle // nil: the kernel has no sock_diag, or none of TCP
	// aborts reports whether abort works: the kernel may be built without (CONFIG_INET_DIAG_DESTROY).
	aborts bool
}

// A socketID says which socket is meant: that which packets of a connection reach by a device, if it has the cookie.
type socketID struct {
	tuple  Tuple
	cookie uint64 // or anyCookie
	dev    uint32
}

const anyCookie = ^uint64(0)

// Of linux/inet_diag.h and linux/sock_diag.h.
const (
	inetDiagRequest = 56 // bytes of struct inet_diag_req_v2
	inetDiagAnswer  = 72 // of struct inet_diag_msg
	sockDestroy     = 21
)

// openSockets opens sock_diag of the network namespace of the calling thread.
func openSockets() (*sockets, error) {
	s, err := vnl.Subscribe(unix.NETLINK_INET_DIAG)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return &sockets{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("divert: open sock_diag: %w", err)
	}
	if err := s.SetReceiveTimeout(&vnl.SocketTimeoutTv); err != nil {
		s.Close()
		return nil, fmt.Errorf("divert: open sock_diag: %w", err)
	}
	all := &sockets{diag: &vnl.SocketHandle{Socket: s}}
	// Without it (CONFIG_INET_DIAG), each socket would look as if it were not there.
	if _, err := all.dump(unix.AF_INET, unix.IPPROTO_TCP, 0); errors.Is(err, unix.ENOENT) {
		s.Close()
		return &sockets{}, nil
	}
	// There is no such socket: a kernel that looked for it can abort others.
	all.aborts = errors.Is(all.abort(socketID{cookie: anyCookie - 1}), unix.ENOENT)
	return all, nil
}

func (s *sockets) close() {
	if s != nil && s.diag != nil {
		s.diag.Close()
	}
}

// state returns the TCP state of a socket. The error matches unix.ENOENT if there is none, and unix.ESTALE if it has another cookie.
func (s *sockets) state(id socketID) (state uint8, err error) {
	out, err := s.ask(vnl.SOCK_DIAG_BY_FAMILY, 0, id)
	if err != nil {
		return 0, fmt.Errorf("divert: look for a TCP socket: %w", err)
	}
	if len(out) != 1 || len(out[0]) < inetDiagAnswer {
		return 0, fmt.Errorf("divert: look for a TCP socket: %w", unix.EBADMSG)
	}
	return out[0][1], nil
}

// abort ends the connection of a socket: its program sees ECONNABORTED. Errors are those of state.
func (s *sockets) abort(id socketID) error {
	if _, err := s.ask(sockDestroy, unix.NLM_F_ACK, id); err != nil {
		return fmt.Errorf("divert: abort a TCP connection: %w", err)
	}
	return nil
}

func (s *sockets) ask(what uint16, flags int, id socketID) ([][]byte, error) {
	if s.diag == nil {
		return nil, errors.ErrUnsupported
	}
	b := make(diagRequest, inetDiagRequest)
	b[0], b[1] = unix.AF_INET, unix.IPPROTO_TCP
	if id.tuple.Local.Addr().Is6() {
		b[0] = unix.AF_INET6
	}
	ne := binary.NativeEndian
	ne.PutUint32(b[4:], ^uint32(0)) // all states
	binary.BigEndian.PutUint16(b[8:], id.tuple.Local.Port())
	binary.BigEndian.PutUint16(b[10:], id.tuple.Remote.Port())
	copy(b[12:28], id.tuple.Local.Addr().AsSlice())
	copy(b[28:44], id.tuple.Remote.Addr().AsSlice())
	ne.PutUint32(b[44:], id.dev)
	ne.PutUint32(b[48:], uint32(id.cookie))
	ne.PutUint32(b[52:], uint32(id.cookie>>32))
	req := vnl.NewNetlinkRequest(int(what), flags)
	req.AddData(b)
	req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: s.diag}
	return req.Execute(unix.NETLINK_INET_DIAG, vnl.SOCK_DIAG_BY_FAMILY)
}

// Bits of the states of sockets whose handshake has not ended, and where a cookie is in struct inet_diag_msg.
const (
	handshakeStates = 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_SYN_RECV | 1<<unix.BPF_TCP_NEW_SYN_RECV
	diagCookie      = 44
)

// handshakes returns the cookies of the sockets whose handshake has not ended. The kernel looks at all sockets.
func (s *sockets) handshakes() (map[uint64]bool, error) {
	if s.diag == nil {
		return nil, fmt.Errorf("divert: list TCP sockets: %w", errors.ErrUnsupported)
	}
	all := map[uint64]bool{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		out, err := s.dump(family, unix.IPPROTO_TCP, handshakeStates)
		if err != nil {
			return nil, fmt.Errorf("divert: list TCP sockets: %w", err)
		}
		for _, m := range out {
			if len(m) >= inetDiagAnswer {
				all[binary.NativeEndian.Uint64(m[diagCookie:])] = true
			}
		}
	}
	return all, nil
}

// dump returns the sockets of a family and protocol whose states are some of these. The error is ENOENT if the kernel cannot tell.
func (s *sockets) dump(family, protocol byte, states uint32) ([][]byte, error) {
	b := make(diagRequest, inetDiagRequest)
	b[0], b[1] = family, protocol
	binary.NativeEndian.PutUint32(b[4:], states)
	req := vnl.NewNetlinkRequest(vnl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	req.AddData(b)
	req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: s.diag}
	return req.Execute(unix.NETLINK_INET_DIAG, vnl.SOCK_DIAG_BY_FAMILY)
}

// diagRequest is an encoded request.
type diagRequest []byte

// Len implements vnl.NetlinkRequestData.
func (r diagRequest) Len() int { return len(r) }

// Serialize implements vnl.NetlinkRequestData.
func (r diagRequest) Serialize() []byte { return r }
