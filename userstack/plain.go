// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// fallbackFor returns why a connection stays TCP, in the numbers that Linux
// uses. It returns 0 for what is no fallback.
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

// StaysTCP counts a program's connection that stays TCP for the reason in err,
// and remembers its socket fd for listings. A *DeclineError of [Stack.Client] or
// [Stack.Server] is counted already. It returns the reason in numbers, and the
// peer's if the peer declined.
func (s programs) StaysTCP(o inside.Owner, fd int, client bool, err error) (reason, peer uint32) {
	f := fallbackFor(err)
	if f.Reason == 0 {
		return 0, 0
	}
	var d *DeclineError
	if !errors.As(err, &d) || d.uncounted {
		s.countFallback(client, smc.Diagnosis(f.Reason))
	}
	s.plains.note(network.Cookie(fd), inside.TCPSocket{owner: o, fallback: f})
	return f.Reason, f.Peer
}

// LeftToTCP implements inside.Programs.
func (s programs) LeftToTCP(o inside.Owner, cookie uint64, client, short bool) {
	code := smc.DiagPeerNoSMC
	if short {
		code = smc.DiagShort
	}
	s.countFallback(client, code)
	s.plains.note(cookie, inside.TCPSocket{owner: o, fallback: nl.ConnFallback{Reason: uint32(code)}, begun: true})
}

// Listens remembers a program's socket fd that is about to listen for listings.
func (s programs) Listens(o inside.Owner, fd int) {
	s.plains.note(network.Cookie(fd), inside.TCPSocket{owner: o})
}

// NoSMC is the error of a connection whose peer does not speak SMC, as far as
// PeerAnnounced can tell.
func (s programs) NoSMC() error { return s.notAnnounced() }

// staysTCP is StaysTCP for a connection of this process.
func (s *Stack) staysTCP(tcp *net.TCPConn, client bool, err error) {
	rc, rerr := tcp.SyscallConn()
	if rerr != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) { s.programs().StaysTCP(inside.Self(), int(fd), client, err) }) // else it is closed
}
