// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/inside"
)

var _ broker.Decliner = (*Service)(nil)

// errSocket is wrapped by the error of a socket that a launcher passed and that is
// not what the message says.
var errSocket = errors.New("the stack does not take this socket")

// errNetns is the error of a socket of another network namespace: the stack does
// not know the routes and devices for its addresses.
var errNetns = fmt.Errorf("%w: it belongs to another network namespace", errSocket)

// TCP states (linux/tcp_states.h).
const (
	tcpEstablished = 1
	tcpSynSent     = 2
	tcpClose       = 7
	tcpCloseWait   = 8
	tcpListen      = 10
)

// socketUse is the purpose for which a launcher passes a socket.
type socketUse int

const (
	toListen   socketUse = iota // about to listen, or listening: marked for a new stack
	toConnect                   // not connected
	isAccepted                  // connected
)

// checkSocket checks what a launcher passed, because a launcher is not trusted: it
// must be a TCP socket of the stack's network namespace, in the state for use.
func (s *Service) checkSocket(fd int, use socketUse) error {
	listens := []int{0}
	if use == toListen {
		listens = []int{0, 1}
	}
	for _, want := range []struct {
		name   int
		values []int
		text   string
	}{
		{unix.SO_DOMAIN, []int{unix.AF_INET, unix.AF_INET6}, "it is not an IPv4 or IPv6 socket"},
		{unix.SO_TYPE, []int{unix.SOCK_STREAM}, "it is not a stream socket"},
		{unix.SO_PROTOCOL, []int{unix.IPPROTO_TCP}, "it is not a TCP socket"},
		{unix.SO_ACCEPTCONN, listens, "it listens"},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.name)
		if err != nil {
			return fmt.Errorf("%w: %w", errSocket, err)
		}
		if !slices.Contains(want.values, got) {
			return fmt.Errorf("%w: %s", errSocket, want.text)
		}
	}
	switch cookie, err := place.CookieOf(fd); {
	case err != nil:
		return fmt.Errorf("service: %w", err)
	case cookie != s.netns:
		return errNetns
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errSocket, err)
	case use == toListen && info.State == tcpListen:
	case use != isAccepted && info.State != tcpClose:
		return fmt.Errorf("%w: it is in use", errSocket)
	case use == isAccepted && (info.State == tcpClose || info.State == tcpSynSent):
		return unix.ENOTCONN
	}
	return nil
}

// Decline implements broker.Decliner.
func (s *Service) Decline(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, why error) {
	defer sock.Close()
	smc := false
	release := func() {}
	defer func() { release() }()
	err := sock.Control(func(fd int) (err error) {
		if err := s.checkSocket(fd, isAccepted); err != nil {
			return err
		}
		if release, err = s.sockets.claims.take(fd); err != nil {
			return err
		}
		remote, err := socketAddr(bounded.Peername(fd))
		if err != nil {
			return err
		}
		if smc, err = s.programs.PeerAnnounced(fd, remote.Addr()); err != nil {
			smc = true // unless the kernel reports otherwise
		}
		return nil
	})
	if err != nil {
		_ = c.NotCandidate(err.Error())
		return
	}
	if smc {
		h := held{sock: sock}
		tcp, restore, err := h.takeTCP()
		if err != nil {
			return
		}
		err = s.programs.Decline(inside.WithOwner(ctx, ownerOf(c.Launcher())), tcp, why)
		restore()
		_ = tcp.Close()
		if _, ok := errors.AsType[*userstack.DeclineError](err); !ok {
			s.log.Info("rendezvous failed", "launcher", c.Launcher().PID, "err", err)
			return
		}
	}
	_ = c.NotCandidate(why.Error())
}
