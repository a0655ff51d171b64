// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net"
	"net/netip"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// canAnnounce returns why SMC cannot be announced to remote, or nil.
func (s *Stack) canAnnounce(local, remote netip.Addr) error {
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
	if _, _, err := s.devices.For(rt); err != nil {
		return err
	}
	if s.opt.marker == nil && !s.opt.assumed(remote) {
		return ErrNoOption
	}
	return s.tryPath(&rt, local, remote)
}

// fallbackFor returns why a connection stays TCP, with the numbers of Linux. It returns 0 if
// err is not the reason for a fallback.
func fallbackFor(err error) (f nl.ConnFallback) {
	var d *DeclineError
	code := smc.DiagInternal
	switch {
	case errors.As(err, &d) && d.Remote:
		return nl.ConnFallback{Reason: uint32(smc.DiagPeerDeclined), Peer: uint32(d.Code)}
	case errors.As(err, &d):
		code = d.Code
	case errors.Is(err, ErrStackClosed), errors.Is(err, devices.ErrClosed):
		code = 0
	case errors.Is(err, network.ErrThisHost):
		code = smc.DiagLocal
	case errors.Is(err, ErrNotOnLink):
		code = smc.DiagNoRoute
	case errors.Is(err, ErrNoOption):
		code = smc.DiagConfig
	case errors.Is(err, tcpopt.ErrUnsupportedSocket):
		code = smc.DiagSocketOption
	default:
		code = declineFor(err).Code
	}
	return nl.ConnFallback{Reason: uint32(code)}
}

// staysTCP counts a connection that stays TCP because of err, and records the cookie of its socket for
// listings. A *DeclineError of [Stack.Client] or [Stack.Server] has been counted before. It
// returns the reason, and the reason of the peer if the peer declined.
func (s *Stack) staysTCP(o inside.Owner, cookie uint64, client bool, err error) (reason, peer uint32) {
	f := fallbackFor(err)
	if f.Reason == 0 {
		return 0, 0
	}
	var d *DeclineError
	if f.Reason == uint32(smc.DiagLocal) {
		// The right thing, and no fallback.
	} else if !errors.As(err, &d) || d.uncounted {
		s.count(sideOf(client), f)
	}
	s.tcpSockets.Note(cookie, inside.TCPSocket{Owner: o, Fallback: f})
	return f.Reason, f.Peer
}

// ownStaysTCP is staysTCP for a connection of this process.
func (s *Stack) ownStaysTCP(tcp *net.TCPConn, client bool, err error) {
	rc, rerr := tcp.SyscallConn()
	if rerr != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) { s.staysTCP(inside.Self(), network.Cookie(int(fd)), client, err) }) // an error means that it is closed
}

// count counts a connection that stays TCP.
func (s *Stack) count(side smc.Role, f nl.ConnFallback) {
	if f.Reason == uint32(smc.DiagPeerDeclined) {
		s.stats.PeerDeclined(side, f.Peer)
	} else {
		s.stats.Fallback(side, f.Reason)
	}
}

func sideOf(client bool) smc.Role {
	if client {
		return smc.Client
	}
	return smc.Server
}

// account counts the outcome of a rendezvous.
func (s *Stack) account(side smc.Role, version uint8, err error) {
	var d *DeclineError
	switch {
	case err == nil:
		s.stats.Connection(side, int(version))
	case errors.As(err, &d):
		s.count(side, fallbackFor(d))
	default:
		s.stats.HandshakeError(side)
	}
}

// speaksV2 reports whether the stack may use version 2 with a peer of this address.
func (s *Stack) speaksV2(remote netip.Addr) bool {
	return !s.cfg.NoVersion2 && remote.Unmap().Is4() && len(s.eids.list()) > 0
}
