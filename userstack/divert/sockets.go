// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"smcr/internal/inetdiag"
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

const anyCookie = inetdiag.AnyCookie

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
	out, err := s.ask(inetdiag.ByFamily, 0, id)
	if err != nil {
		return 0, fmt.Errorf("divert: look for a TCP socket: %w", err)
	}
	if len(out) != 1 {
		return 0, fmt.Errorf("divert: look for a TCP socket: %w", unix.EBADMSG)
	}
	m, ok := inetdiag.Parse(out[0])
	if !ok {
		return 0, fmt.Errorf("divert: look for a TCP socket: %w", unix.EBADMSG)
	}
	return m.State, nil
}

// abort ends the connection of a socket: its program sees ECONNABORTED. Errors are those of state.
func (s *sockets) abort(id socketID) error {
	if _, err := s.ask(inetdiag.Destroy, unix.NLM_F_ACK, id); err != nil {
		return fmt.Errorf("divert: abort a TCP connection: %w", err)
	}
	return nil
}

func (s *sockets) ask(what uint16, flags int, id socketID) ([][]byte, error) {
	if s.diag == nil {
		return nil, errors.ErrUnsupported
	}
	return s.send(what, flags, inetdiag.One(inetdiag.ID{Local: id.tuple.Local, Remote: id.tuple.Remote, Dev: id.dev, Cookie: id.cookie}))
}

// send sends a request, and returns the answers.
func (s *sockets) send(what uint16, flags int, r inetdiag.Request) ([][]byte, error) {
	req := vnl.NewNetlinkRequest(int(what), flags)
	req.AddData(r)
	req.Sockets = map[int]*vnl.SocketHandle{unix.NETLINK_INET_DIAG: s.diag}
	return req.Execute(unix.NETLINK_INET_DIAG, inetdiag.ByFamily)
}

// handshakeStates are the bits of the states of sockets whose handshake has not ended.
const handshakeStates = 1<<unix.BPF_TCP_SYN_SENT | 1<<unix.BPF_TCP_SYN_RECV | 1<<unix.BPF_TCP_NEW_SYN_RECV

// handshakes returns the cookies of the sockets whose handshake has not ended. The kernel looks at all sockets.
func (s *sockets) handshakes() (map[uint64]bool, error) {
	if s.diag == nil {
		return nil, fmt.Errorf("divert: list TCP sockets: %w", errors.ErrUnsupported)
	}
	all := map[uint64]bool{}
	for _, family := range []byte{inetdiag.IPv4, inetdiag.IPv6} {
		out, err := s.dump(family, unix.IPPROTO_TCP, handshakeStates)
		if err != nil {
			return nil, fmt.Errorf("divert: list TCP sockets: %w", err)
		}
		for _, b := range out {
			if m, ok := inetdiag.Parse(b); ok {
				all[m.ID.Cookie] = true
			}
		}
	}
	return all, nil
}

// dump returns the sockets of a family and protocol whose states are some of these. The error is ENOENT if the kernel cannot tell.
func (s *sockets) dump(family, protocol byte, states uint32) ([][]byte, error) {
	return s.send(inetdiag.ByFamily, unix.NLM_F_DUMP, inetdiag.Request{Family: family, Protocol: protocol, States: states})
}
