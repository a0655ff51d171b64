// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"net/netip"
	"os"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/rendezvous"
	"smcr/userstack/tcpopt"
)

// Reasons for which connections most often stay TCP, as [DeclineError] has them
// in Code. The others are the Diag constants of package smc.
const (
	ReasonPeerNoSMC = smc.DiagPeerNoSMC // the peer did not announce SMC in the TCP handshake
	ReasonNoDevice  = smc.DiagNoSMCRDev // no RoCE device serves the network of the connection
	ReasonNoRoute   = smc.DiagNoRoute   // SMC-R does not reach the peer: see [ErrNotOnLink]
)

// ErrNoOption means that SMC cannot be announced to a peer: the TCP option is
// not permitted here (see [Stack.OptionError]), and the peer is not in
// Config.AssumeSMC, which is --assume-smc of smcr serve.
var ErrNoOption = errors.New("userstack: the TCP option of SMC is not permitted here, and --assume-smc does not list the peer")

// programs is what a stack does for programs that have sockets of their own,
// which is the business of package service.
type programs struct{ *Stack }

func (s *Stack) programs() programs { return programs{s} }

var _ inside.Programs[*Conn] = programs{}

// Candidate decides whether a connection that a program is about to open can
// become SMC-R, and if so marks its socket fd so that the TCP handshake
// announces SMC. Otherwise the error says why, and fd is untouched.
func (s programs) Candidate(o inside.Owner, local, remote netip.Addr, fd int) error {
	if err := s.canAnnounce(local, remote); err != nil || s.option == nil {
		return err
	}
	return s.gated(o, fd, s.option.GateConnect, s.option.MarkConnect)
}

// gated marks a program's socket with gate. Where the kernel has no gate, the stack
// trusts the programs of its own user: they may use ungated.
func (s programs) gated(o inside.Owner, fd int, gate, ungated func(fd int) error) error {
	err := gate(fd)
	if !errors.Is(err, tcpopt.ErrNoGate) {
		return err
	}
	s.noGate.Do(func() {
		s.log.Warn("only programs of the stack's own user use SMC-R: the kernel would not keep those of others from sending CLC messages of their own", "err", err)
	})
	if !s.trusts(o) {
		return err
	}
	return ungated(fd)
}

// trusts tells whether a program is of the user to whom the stack belongs.
func (s *Stack) trusts(o inside.Owner) bool { return o.UID == uint32(os.Geteuid()) }

// canAnnounce returns why SMC cannot be announced to remote.
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
	if s.option == nil && !s.assumed(remote) {
		return ErrNoOption
	}
	return nil
}

// MarkListen makes the SYN-ACKs of a program's listening socket answer the
// SMC option.
func (s programs) MarkListen(o inside.Owner, fd int) error {
	if s.option == nil {
		return nil
	}
	return s.gated(o, fd, s.option.GateListen, s.option.MarkListen)
}

// PeerAnnounced reports whether the peer of a program's connected socket
// speaks SMC, as far as the TCP handshake or the configuration tells.
func (s programs) PeerAnnounced(fd int, remote netip.Addr) (bool, error) {
	if s.option == nil {
		return s.assumed(remote), nil
	}
	return s.option.PeerSMC(fd)
}

// ServerMaybe is [Stack.Server] for a connection that a program accepted: it
// looks at the first bytes before it reads. The peer may not speak SMC, if only the
// configuration says so. Or it may not know that this host does: something on the path
// removed the option from the SYN-ACK, or the SYN-ACK was sent before the stack marked the
// listening socket. Such a peer sends data, and the program gets them.
func (s programs) ServerMaybe(ctx context.Context, tcp inside.TCPConn) (*Conn, error) {
	return s.serverLook(ctx, tcp, noCLC(), nil)
}

// noCLC is why a connection stays TCP whose peer sends something else than CLC messages.
func noCLC() rendezvous.Refusal {
	return rendezvous.Refusal{Code: ReasonPeerNoSMC, Err: errors.New("no CLC message")}
}

// ByOption implements inside.Programs.
func (s programs) ByOption() bool { return s.option != nil }

// Carried implements inside.Programs.
func (s programs) Carried(c *Conn) uint64 {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	return c.rxBytes + c.txBytes
}

// Decline is [Stack.Server] for an accepted connection that is to stay TCP for
// lack of resources: it waits for what the peer proposes and declines. The error
// is a *DeclineError then; after another one the connection is of no use.
func (s programs) Decline(ctx context.Context, tcp inside.TCPConn, why error) error {
	code := smc.DiagMem
	if d, ok := errors.AsType[*DeclineError](why); ok {
		code = d.Code
	}
	_, err := s.serverLook(ctx, tcp, noCLC(), &rendezvous.Refusal{Code: code, Err: why})
	return err
}

// countFallback counts a connection that stays TCP.
func (s *Stack) countFallback(client bool, code smc.Diagnosis) {
	side := smc.Server
	if client {
		side = smc.Client
	}
	s.stats.Fallback(side, uint32(code))
}

// account counts the outcome of a rendezvous.
func (s *Stack) account(side smc.Role, c *Conn, err error) {
	var d *DeclineError
	switch {
	case err == nil:
		s.stats.Connection(side, int(c.g.terms.Version()))
	case errors.As(err, &d):
		code := d.Code
		if d.Remote {
			code = smc.DiagPeerDeclined
		}
		s.stats.Fallback(side, uint32(code))
	default:
		s.stats.HandshakeError(side)
	}
}

// Busy reports what keeps the stack from ending when idle: connections, and
// rendezvous that hold link groups.
func (s programs) Busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

// OnQuiet implements inside.Programs.
func (s programs) OnQuiet(f func()) {
	s.trim.mu.Lock()
	defer s.trim.mu.Unlock()
	s.trim.quiet = f
}
