// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
)

// CandidateHere implements inside.Programs. No RoCE device is needed: the bytes of
// such a connection never leave the host. The gate is for the program that connects the
// marked socket to another host itself.
func (s programs) CandidateHere(o inside.Owner, fd int) error {
	if s.ctx.Err() != nil {
		return ErrStackClosed
	}
	if s.option == nil {
		return ErrNoOption
	}
	return s.gated(o, fd, s.option.GateConnect, s.option.MarkConnect)
}

// OpenHere implements inside.Programs. A stack declines what somebody proposes from
// its own host, so CLC messages over such a connection lead nowhere.
func (s programs) OpenHere(fd int) error {
	if s.option == nil {
		return nil
	}
	g, err := s.option.Gate(fd)
	if g == nil || err != nil {
		return err
	}
	sa, err := syscall.Getpeername(fd)
	if err != nil {
		return fmt.Errorf("userstack: getpeername: %w", err)
	}
	var remote netip.Addr
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		remote = netip.AddrFrom4(sa.Addr)
	case *syscall.SockaddrInet6:
		remote = netip.AddrFrom16(sa.Addr).Unmap()
	}
	if !s.isHere(remote) {
		return fmt.Errorf("userstack: %s is not this host", remote)
	}
	return g.OpenHere(fd)
}

// OpenAgreed implements inside.Programs.
func (s programs) OpenAgreed(fd int) error {
	if s.option == nil {
		return nil
	}
	g, err := s.option.Gate(fd)
	if g == nil || err != nil {
		return err
	}
	return g.OpenHere(fd)
}

// isHere tells whether an address is one of this host.
func (s *Stack) isHere(a netip.Addr) bool {
	_, err := s.net.Route(netip.Addr{}, a)
	return errors.Is(err, network.ErrThisHost)
}

// Locator implements inside.Programs.
func (s programs) Locator() network.Locator {
	l, _ := s.net.(network.Locator)
	return l
}

// IsLocal implements inside.Programs.
func (s programs) IsLocal(o inside.Owner, fd int, client bool) {
	side := smc.Server
	if client {
		side = smc.Client
	}
	s.stats.Local(side)
	s.plains.note(network.Cookie(fd), inside.TCPSocket{owner: o, local: true})
}
