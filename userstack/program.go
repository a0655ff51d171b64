// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"smcr/stats"
	"smcr/userstack/wire"
)

// ReasonPeerNoSMC is the fallback reason of connections whose peer did not
// announce SMC in the TCP handshake.
const ReasonPeerNoSMC = wire.DiagPeerNoSMC

// ErrNoOption means that SMC cannot be announced toward a peer: the TCP
// option is not permitted and the peer is not assumed to speak SMC.
var ErrNoOption = errors.New("userstack: the TCP option of SMC is not permitted here, and --assume-smc does not list the peer")

// Candidate decides whether a connection that a program is about to open can
// become SMC-R, and if so marks its socket fd so that the TCP handshake
// announces SMC. Otherwise the error says why, and fd is untouched.
func (s *Stack) Candidate(local, remote netip.Addr, fd int) error {
	if s.ctx.Err() != nil {
		return ErrStackClosed
	}
	rt, err := s.net.Route(local, remote)
	if err != nil {
		return err
	}
	if rt.Gateway.IsValid() && !s.speaksV2(remote) {
		return errRouted(remote)
	}
	if _, _, err := s.devicesFor(rt); err != nil {
		return err
	}
	if s.option == nil {
		if !s.Assumed(remote) {
			return ErrNoOption
		}
		return nil
	}
	return s.option.MarkConnect(fd)
}

// MarkListen makes the SYN-ACKs of a program's listening socket answer the
// SMC option.
func (s *Stack) MarkListen(fd int) error {
	if s.option == nil {
		return nil
	}
	return s.option.MarkListen(fd)
}

// PeerAnnounced reports whether the peer of a program's connected socket
// speaks SMC, as far as the TCP handshake or the configuration tells.
func (s *Stack) PeerAnnounced(fd int, remote netip.Addr) (bool, error) {
	if s.option == nil {
		return s.Assumed(remote), nil
	}
	return s.option.PeerSMC(fd)
}

// ServerMaybe is [Stack.Server] for an accepted connection of which only the
// configuration says that the peer speaks SMC: it looks before it reads.
func (s *Stack) ServerMaybe(ctx context.Context, tcp *net.TCPConn) (*Conn, error) {
	if s.option == nil && !looksLikeCLC(tcp) {
		s.CountFallback(false, ReasonPeerNoSMC)
		return nil, &DeclineError{Code: ReasonPeerNoSMC, Err: errors.New("no CLC message")}
	}
	return s.Server(ctx, tcp)
}

// CountFallback counts a connection that stays TCP.
func (s *Stack) CountFallback(client bool, code wire.Diagnosis) {
	side := sideServer
	if client {
		side = sideClient
	}
	s.stats.Fallback(side, uint32(code))
}

const (
	sideServer = stats.Server
	sideClient = stats.Client
)

// account counts the outcome of a rendezvous.
func (s *Stack) account(side stats.Side, c *Conn, err error) {
	var d *DeclineError
	switch {
	case err == nil:
		s.stats.Connection(side, int(c.g.terms.version()))
	case errors.As(err, &d):
		code := d.Code
		if d.Remote {
			code = wire.DiagPeerDeclined
		}
		s.stats.Fallback(side, uint32(code))
	default:
		s.stats.HandshakeError(side)
	}
}

// Busy reports what keeps the stack from ending when idle: connections, and
// rendezvous that hold link groups.
func (s *Stack) Busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

// Owner is the process a connection belongs to, for listings.
type Owner struct {
	UID, PID uint32
	Command  string
}

type ownerKey struct{}

// WithOwner returns a context under which Client and Server make connections
// that belong to o. Otherwise they belong to the calling process.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerFrom(ctx context.Context) Owner {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o
	}
	return Owner{UID: uint32(os.Geteuid()), PID: uint32(os.Getpid()), Command: filepath.Base(os.Args[0])}
}
